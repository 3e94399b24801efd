//! The judge: processes kept warm, one submission at a time.

mod conclude;
pub(crate) mod device_memory;
mod processes;
pub(crate) mod replaced;
mod stages;
mod suspects;
mod timing_stage;
mod triton;

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use rand::TryRngCore;
use rand::rngs::OsRng;
use serde_json::{Value, json};
use warpsmith_machine::{Caches, DeviceLease, GpuInfo, Nvcc, Python};
use warpsmith_sandbox as sandbox;
use warpsmith_schema::{
    Precision, Profile, Reward, Rule, Rules, Status, Submission, Target, Task, Verdict,
};

use self::conclude::{isolation_report, mark_failed_check};
use self::replaced::Replacement;
pub(crate) use self::stages::check_plan;
use crate::JudgeError;
use crate::baseline::Baselines;
use crate::candidate_failure::CandidateFailure;
use crate::cores::CoreSplit;
use crate::evidence;
use crate::harness::Harness;
use crate::pool::JudgePool;
use crate::process::PythonProcess;
use crate::sampled_code::CodeClassifier;
use crate::session::Session;
use crate::submission::{MODEL_NEW, SubmissionForm, folder_unit};
use crate::timing::TimingSamples;
use crate::toolchain::Toolchain;
use crate::trusted::TrustedProcess;
use crate::zygote::{self, Worker, WorkerLimits, Zygote};
use warpsmith_store::evidence::Evidence;

/// How to judge.
#[derive(Debug, Clone)]
pub struct JudgeConfig {
    pub target: Target,
    pub device: u32,
    pub profile: Profile,
    pub rules: Rules,
    pub isolation: sandbox::Isolation,
    /// A mode of `torch.compile` to compare with, or `None` for eager alone.
    pub compile_mode: Option<String>,
    /// Judge with this master seed instead of fresh entropy: only to replay evidence.
    pub seed: Option<u64>,
    /// Whose turns on the device this judge shares: in company, what takes much memory stays only while it is judged, and what
    /// fails because others hold the memory is judged again alone. `None`: that is an infrastructure failure.
    pub pool: Option<JudgePool>,
    pub caches: Caches,
    pub python: Python,
}

/// A verdict and what stands behind it.
#[derive(Debug, Clone)]
pub struct Judged {
    pub verdict: Verdict,
    pub evidence: Evidence,
}

/// How far a submission is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JudgeDepth {
    /// It compiles, and what it imports is allowed.
    Compiled,
    /// Its results are right too.
    Verified,
    /// All the way: its time as well.
    Timed,
}

/// Warm processes and the task they have loaded: one submission at a time, and nothing is remembered.
pub(crate) struct Supervisor {
    config: JudgeConfig,
    toolchain: Toolchain,
    harness: Harness,
    worker_limits: WorkerLimits,
    /// Where a GPU is the target and there are enough.
    cores: Option<CoreSplit>,
    device_name: String,
    gpu: Option<GpuInfo>,
    trusted: Option<TrustedProcess>,
    trusted_starting: Option<PythonProcess>,
    zygote: Option<Zygote>,
    /// A worker that waits for a candidate.
    standby: Option<Worker>,
    /// Output of the latest worker.
    worker_output: Option<Arc<File>>,
    /// Started ahead, used for one task: allocators and compilers keep too much behind to be reused.
    baseline: Option<PythonProcess>,
    /// Compiles the references of new tasks before anybody waits for it.
    ahead_compiler: Option<AheadCompiler>,
    session: Option<Session>,
    code_classifier: CodeClassifier,
    /// No other judge of the pool has anything on the device: a verdict stands, whatever programs hold its memory.
    alone: bool,
}

/// The process that fills the compiler's cache.
struct AheadCompiler {
    process: PythonProcess,
    greeted: bool,
    /// Hash of the task it is at work on.
    task_hash: Option<String>,
}

/// What the stages learn on the way.
struct JudgementState {
    verdict: Verdict,
    compile_log: String,
    raw: Vec<TimingSamples>,
    baselines: Option<Baselines>,
    /// How the device ran, before and after.
    clocks: [Value; 2],
    /// The device, from when it is needed to the end.
    lease: Option<DeviceLease>,
    /// By mixed rules.
    replacement: Option<Replacement>,
}

enum Step<T> {
    Go(T),
    Stop(CandidateFailure),
}

/// `?` for [`Step`]: leave with the fault.
macro_rules! go {
    ($step:expr) => {
        match $step {
            Step::Go(value) => value,
            Step::Stop(fault) => return Ok(Step::Stop(fault)),
        }
    };
}
use go;

impl Supervisor {
    /// Starts the processes; they import PyTorch side by side while the caller goes on.
    pub(crate) fn start(options: JudgeConfig) -> Result<Self, JudgeError> {
        let cxx = warpsmith_machine::find_cxx().ok_or_else(|| JudgeError::Infrastructure {
            code: "no_compiler",
            message: "no C++ compiler was found".to_owned(),
            hint: Some("install g++ (`apt install g++`)".to_owned()),
        })?;
        let (gpu, nvcc) = find_cuda(&options)?;
        let harness = Harness::install(&options.caches, &options.python, &cxx)?;
        let device_name = gpu
            .as_ref()
            .map_or_else(|| warpsmith_machine::cpu().name, |gpu| gpu.name.clone());
        let toolchain = Toolchain {
            caches: options.caches.clone(),
            python: options.python.clone(),
            cxx,
            nvcc,
            target: options.target,
            arch: gpu
                .as_ref()
                .map(|gpu| format!("{}{}", gpu.compute_capability.0, gpu.compute_capability.1)),
            isolation: options.isolation,
        };
        let mut judge = Self {
            worker_limits: WorkerLimits::of_this_machine(),
            cores: (options.target == Target::Cuda)
                .then(CoreSplit::split)
                .flatten(),
            config: options,
            toolchain,
            harness,
            device_name,
            gpu,
            trusted: None,
            trusted_starting: None,
            zygote: None,
            standby: None,
            worker_output: None,
            baseline: None,
            ahead_compiler: None,
            session: None,
            code_classifier: CodeClassifier::default(),
            alone: false,
        };
        judge.trusted_starting = Some(judge.launch_trusted()?);
        judge.zygote = Some(judge.launch_zygote()?);
        Ok(judge)
    }

    /// Builds what would otherwise be built on first use, the bytecode of what is imported included.
    pub(crate) fn prepare(&mut self) -> Result<(), JudgeError> {
        let mut baseline = self.launch_baseline()?;
        self.toolchain.precompile_all()?;
        self.toolchain.provide()?;
        baseline.await_hello().map(drop)
    }

    /// Judges one submission. An error is never a verdict; one of ours is retried once, with fresh processes unless others were in the way.
    pub(crate) fn judge(
        &mut self,
        task: &Task,
        submission: &Submission,
    ) -> Result<Judged, JudgeError> {
        let depth = match self.config.profile {
            Profile::Full | Profile::Rl => JudgeDepth::Timed,
            Profile::Verify => JudgeDepth::Verified,
        };
        self.judge_with_retry(task, submission, depth)
    }

    /// By the quickest profile that has times, whatever this judge's own is.
    pub(crate) fn time_briefly(
        &mut self,
        task: &Task,
        submission: &Submission,
    ) -> Result<Judged, JudgeError> {
        let own = std::mem::replace(&mut self.config.profile, Profile::Rl);
        let judged = self.judge_with_retry(task, submission, JudgeDepth::Timed);
        self.config.profile = own;
        judged
    }

    /// Fills the cache of objects. On a CPU compilers would take the cores of whoever is timed: there nothing is built ahead.
    pub(crate) fn build_ahead(&self, submissions: &[Submission]) -> Result<(), JudgeError> {
        if self.config.target == Target::Cpu {
            return Ok(());
        }
        let toolchain = &self.toolchain;
        let build = |submission: &Submission| match submission.form {
            SubmissionForm::Inline | SubmissionForm::Triton => Ok(()),
            SubmissionForm::Plain | SubmissionForm::CudaAgent => {
                let units = [folder_unit(submission)];
                toolchain.build(submission, &units).map(drop)
            }
        };
        thread::scope(|scope| {
            let building: Vec<_> = submissions
                .iter()
                .map(|submission| {
                    let build = &build;
                    scope.spawn(move || build(submission))
                })
                .collect();
            building.into_iter().try_for_each(|one| {
                one.join()
                    .map_err(|_| JudgeError::infrastructure("panic", "a compile thread panicked"))?
            })
        })
    }

    /// Acts while the device is this judge's alone.
    pub(crate) fn while_alone<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        self.alone = true;
        let result = act(self);
        self.alone = false;
        result
    }

    /// Goes part of the way: `None` if nothing is wrong that far, else the verdict that judging would end with.
    pub(crate) fn check(
        &mut self,
        task: &Task,
        submission: &Submission,
        reach: JudgeDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        let verdict = self.judge_with_retry(task, submission, reach)?.verdict;
        Ok((!verdict.passed()).then_some(verdict))
    }

    /// Whether the task can be judged here at all: it is loaded, tried out and laid out in the device's memory.
    pub(crate) fn survey(&mut self, task: &Task) -> Result<(), JudgeError> {
        let surveyed = match self.load_task(task) {
            Err(error) if error.retryable() && !self.is_crowded_out(&error) => {
                self.clean_up_after(&error);
                self.load_task(task)
            }
            other => other,
        };
        match surveyed {
            Ok(None) => Ok(()),
            Ok(Some(_lease)) => self.release_device_memory(),
            Err(error) => {
                self.restart();
                Err(error)
            }
        }
    }

    pub(crate) fn config(&self) -> &JudgeConfig {
        &self.config
    }

    pub(crate) fn harness_dir(&self) -> &std::path::Path {
        &self.harness.dir
    }

    /// The task, loaded, and the device for as long as its mutants are tried.
    pub(crate) fn load_for_mutants(&mut self, task: &Task) -> Result<DeviceLease, JudgeError> {
        let kept = self.load_task(task)?;
        kept.map_or_else(|| self.lease(), Ok)
    }

    /// The device's memory is given back while it is still leased.
    pub(crate) fn let_go(&mut self, lease: DeviceLease) -> Result<(), JudgeError> {
        let released = self.release_device_memory();
        drop(lease);
        released
    }

    fn judge_with_retry(
        &mut self,
        task: &Task,
        submission: &Submission,
        reach: JudgeDepth,
    ) -> Result<Judged, JudgeError> {
        let judged = match self.attempt(task, submission, reach) {
            Err(error) if error.retryable() && !self.is_crowded_out(&error) => {
                self.clean_up_after(&error);
                self.attempt(task, submission, reach)
            }
            other => other,
        };
        if let Err(error) = &judged {
            self.clean_up_after(error);
        }
        judged
    }

    /// Whether others of the pool explain this, who hold the memory or keep the device busy: with fresh processes it may fail again,
    /// and is to be done alone.
    fn is_crowded_out(&self, error: &JudgeError) -> bool {
        let pool = self.config.pool.as_ref().filter(|_| !self.alone);
        pool.is_some_and(|pool| pool.explains(error))
    }

    fn attempt(
        &mut self,
        task: &Task,
        submission: &Submission,
        reach: JudgeDepth,
    ) -> Result<Judged, JudgeError> {
        let started = Instant::now();
        let verdict = Verdict::unreached(
            Status::Crashed,
            self.config.target,
            self.config.profile,
            self.device_name.clone(),
        );
        let mut attempt = JudgementState {
            verdict,
            compile_log: String::new(),
            raw: Vec::new(),
            baselines: None,
            clocks: [Value::Null, Value::Null],
            lease: None,
            replacement: None,
        };
        attempt.verdict.rules = self.config.rules;
        let outcome = match self.stages((task, submission), reach, &mut attempt) {
            // The task was surveyed and its memory laid out before the candidate came.
            Err(error)
                if error.out_of_device_memory()
                    && attempt.verdict.progress.loaded
                    && self.device_memory_is_back()? =>
            {
                self.close_session();
                let reason = "the candidate left no memory on the device for the judge";
                Step::Stop(CandidateFailure::new(
                    Status::Crashed,
                    Some(Rule::MemoryLimit),
                    format!("{reason}: {error}"),
                ))
            }
            // Before anybody else gets the device.
            Err(error) => {
                self.clean_up_after(&error);
                return Err(error);
            }
            Ok(step) => step,
        };
        if let Step::Stop(fault) = &outcome
            && fault.rule == Some(Rule::BackgroundWork)
            && self.shares_device()
            && !self.alone
        {
            // Another judge may have been at work: its `torch.compile` runs the module while it compiles ahead.
            self.restart();
            return Err(JudgeError::device_busy(&fault.reason));
        }
        if let Step::Stop(fault) = &outcome
            && attempt.lease.is_some()
            && let Some(shortage) = self.memory_shortage(fault)?
        {
            self.restart();
            return Err(shortage.into());
        }
        let mut verdict = attempt.verdict;
        match outcome {
            Step::Go(()) => {
                verdict.status = Status::Passed;
                verdict.correct = true;
            }
            Step::Stop(fault) => {
                verdict.status = fault.status;
                verdict.rule = fault.rule;
                let mut reason = printable(&clip(&fault.reason, 6000));
                if self.alone {
                    reason.push_str(" (judged again alone on the device, since others may have been in the way)");
                }
                verdict.reason = Some(reason);
                verdict.correct = false;
                mark_failed_check(&mut verdict);
                verdict.times_us = None;
                verdict.speedup = None;
                verdict.matched_precision = None;
            }
        }
        if let Some(zygote) = &self.zygote {
            verdict.isolation = Some(isolation_report(zygote.effective()));
            verdict.trust.contained = zygote.effective().contained();
        }
        verdict.seconds.total = started.elapsed().as_secs_f64();
        verdict.reward = Reward::of(&verdict);
        let seed = self.session.as_ref().map_or(0, |session| session.seed);
        let [before, after] = attempt.clocks;
        let evidence = Evidence {
            task_name: task.name.clone(),
            task_source: task.source.clone(),
            submission: submission.clone(),
            seed,
            target: self.config.target,
            profile: self.config.profile,
            environment: self.environment(&json!({ "before": before, "after": after })),
            samples: evidence::samples(&attempt.raw, attempt.baselines.as_ref()),
            compile_log: attempt.compile_log,
            printed: self
                .worker_output
                .take()
                .map(|file| zygote::tail(&file))
                .unwrap_or_default(),
        };
        self.drop_single_use();
        if attempt.lease.is_some() {
            self.release_device_memory()?;
        }
        Ok(Judged { verdict, evidence })
    }

    fn stages(
        &mut self,
        (task, submission): (&Task, &Submission),
        reach: JudgeDepth,
        attempt: &mut JudgementState,
    ) -> Result<Step<()>, JudgeError> {
        let Some(source) = submission
            .files
            .get(MODEL_NEW)
            .and_then(|text| String::from_utf8(text.clone()).ok())
        else {
            let reason = "model_new.py is missing or not UTF-8";
            return Ok(Step::Stop(CandidateFailure::new(
                Status::Rejected,
                Some(Rule::Form),
                reason,
            )));
        };
        attempt.verdict.progress.parsed = true;
        if reach == JudgeDepth::Timed {
            self.prepare_for_baselines(task)?;
        }
        // A new task is loaded while the compilers run.
        let images = if submission.form == SubmissionForm::Triton {
            attempt.lease = self.load_task(task)?;
            go!(self.prepare_triton(&source, attempt)?)
        } else if submission.form == SubmissionForm::Inline {
            attempt.lease = self.load_task(task)?;
            let units = go!(self.extract(&source)?);
            let built = self.build(submission, &units, attempt)?;
            go!(Self::accept(built, attempt)?)
        } else {
            let units = [folder_unit(submission)];
            let toolchain = self.toolchain.clone();
            let submission = submission.clone();
            let compiling = std::thread::spawn(move || {
                (
                    Instant::now(),
                    toolchain.build(&submission, &units),
                    Instant::now(),
                )
            });
            let loaded = self.load_task(task).and_then(|lease| {
                attempt.lease = lease;
                self.stand_by()
            });
            let (begun, built, done) = compiling
                .join()
                .map_err(|_| JudgeError::infrastructure("panic", "the compile thread panicked"))?;
            loaded?;
            attempt.verdict.seconds.compile = (done - begun).as_secs_f64();
            go!(Self::accept(built?, attempt)?)
        };
        if reach == JudgeDepth::Compiled {
            return Ok(Step::Go(()));
        }
        self.check_trust(task, attempt);
        if attempt.lease.is_none() {
            attempt.lease = Some(self.lease()?);
        }
        let _held = self.cores.as_ref().and_then(CoreSplit::pin_this_thread);
        attempt.clocks[0] = self.clocks()?;

        self.count_reference(&task.source)?;
        let verifying = Instant::now();
        let mut worker = go!(self.load_candidate(&source, submission.form, &images, attempt)?);
        let class = go!(self.verify(&mut worker, attempt)?);
        go!(self.check_replaced(&mut worker, attempt));
        attempt.verdict.seconds.verify = verifying.elapsed().as_secs_f64();
        if reach == JudgeDepth::Verified {
            return Ok(Step::Go(()));
        }

        let timing = Instant::now();
        let (strict, fresh) = if let Some(kept) = self.cached_baselines(Precision::Fp32)? {
            (kept, false)
        } else {
            // Nothing of the candidate may be alive while a baseline is measured.
            drop(worker);
            let measured = self.measure_baselines(task, Precision::Fp32)?;
            worker = go!(self.load_candidate(&source, submission.form, &images, attempt)?);
            (measured, true)
        };
        let candidate = go!(self.time(&mut worker, &images, (&strict, fresh), attempt)?);
        attempt.clocks[1] = self.clocks()?;
        drop(worker);
        let matched = match class {
            Precision::Fp32 => strict.clone(),
            Precision::Tf32 => match self.cached_baselines(Precision::Tf32)? {
                Some(kept) => kept,
                None => self.measure_baselines(task, Precision::Tf32)?,
            },
        };
        attempt.verdict.seconds.time = timing.elapsed().as_secs_f64();
        Ok(self.conclude(&candidate, class, strict, &matched, attempt))
    }

    /// From the operating system, after the submission was frozen; fixed only to replay.
    fn fresh_seed(&self) -> Result<u64, JudgeError> {
        match self.config.seed {
            Some(seed) => Ok(seed),
            None => OsRng
                .try_next_u64()
                .map_err(|error| JudgeError::infrastructure("entropy", error.to_string())),
        }
    }

    /// The session and the trusted process, which exist once a task is loaded.
    pub(crate) fn session_and_trusted(
        &mut self,
    ) -> Result<(&mut Session, &mut TrustedProcess), JudgeError> {
        match (&mut self.session, &mut self.trusted) {
            (Some(session), Some(trusted)) => Ok((session, trusted)),
            _ => Err(JudgeError::infrastructure("harness", "no task is loaded")),
        }
    }
}

fn find_cuda(options: &JudgeConfig) -> Result<(Option<GpuInfo>, Option<Nvcc>), JudgeError> {
    if options.target == Target::Cpu {
        return Ok((None, None));
    }
    let gpu = warpsmith_machine::gpus()
        .into_iter()
        .find(|gpu| gpu.index == options.device);
    let gpu = gpu.ok_or_else(|| JudgeError::Config {
        code: "no_gpu",
        message: format!("there is no GPU {} on this machine", options.device),
        hint: Some(
            "use `--target cpu`, or another `--device`; `warpsmith doctor` lists what was found"
                .to_owned(),
        ),
    })?;
    let nvcc = warpsmith_machine::find_nvcc().ok_or_else(|| JudgeError::Infrastructure {
        code: "no_nvcc",
        message: "the CUDA compiler nvcc was not found".to_owned(),
        hint: Some("install the CUDA toolkit, or set CUDA_HOME".to_owned()),
    })?;
    Ok((Some(gpu), Some(nvcc)))
}

pub(crate) fn task_hash(task: &Task) -> String {
    blake3::hash(task.source.as_bytes()).to_hex().to_string()
}

/// What a candidate says, as a terminal may be shown it: nothing in it moves the cursor, sets a title or turns a line round.
fn printable(text: &str) -> String {
    let shown = |c: char| {
        let turns = matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        let harmless = c == '\n' || c == '\t' || !c.is_control();
        if harmless && !turns { c } else { '\u{fffd}' }
    };
    text.replace("\r\n", "\n").chars().map(shown).collect()
}

/// The head and the tail of a long text.
fn clip(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let half = limit / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text
        .chars()
        .rev()
        .take(half)
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .collect();
    format!("{head}\n[…]\n{tail}")
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn a_reason_does_nothing_to_a_terminal() {
        assert_eq!(
            printable("a\tb\r\n\u{1b}[2J\u{7}c\u{202e}ä"),
            "a\tb\n\u{fffd}[2J\u{fffd}c\u{fffd}ä"
        );
    }
}
