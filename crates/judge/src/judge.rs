//! The judge: processes kept warm, one submission at a time.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use fs_err as fs;
use rand::TryRngCore;
use rand::rngs::OsRng;
use serde_json::{Value, json};
use warpsmith_machine::{Caches, Gpu, Nvcc, Python};
use warpsmith_sandbox as sandbox;
use warpsmith_schema::{
    MatchedPrecision, Number, Numerics, Precision, Profile, Reward, Rule, Speedup, Status, Submission, Target, Times, TrustCheck,
    Verdict,
};

use crate::baseline::{self, Baselines};
use crate::evidence::{self, Evidence};
use crate::harness::Harness;
use crate::outcome::{Fault, Phase, channel_fault, sort, wrong};
use crate::process::{self, Process};
use crate::runner::attach;
use crate::session::{Plan, Session, Stopped, prepare};
use crate::submission::{Extension, Form, MODEL_NEW, Unit, content_hash, folder_unit, inline_units};
use crate::timing::{self, Estimate, Raw};
use crate::toolchain::{Built, Library, Toolchain};
use crate::trusted::{Check, Trusted};
use crate::zygote::{self, Allowance, Worker, Zygote};
use crate::{JudgeError, imports};

/// How to judge.
#[derive(Debug, Clone)]
pub struct Options {
    pub target: Target,
    pub device: u32,
    pub profile: Profile,
    pub isolation: sandbox::Isolation,
    /// A mode of `torch.compile` to compare with, or `None` for eager alone.
    pub compile_mode: Option<String>,
    /// Judge with this master seed instead of fresh entropy: only to replay evidence.
    pub seed: Option<u64>,
    pub caches: Caches,
    pub python: Python,
}

/// A task as the judge takes it.
#[derive(Debug, Clone)]
pub struct TaskSource {
    pub name: String,
    pub source: String,
}

/// A verdict and what stands behind it.
#[derive(Debug, Clone)]
pub struct Judged {
    pub verdict: Verdict,
    pub evidence: Evidence,
}

/// Warm processes and the task they have loaded.
pub struct Judge {
    options: Options,
    toolchain: Toolchain,
    harness: Harness,
    allowance: Allowance,
    device_name: String,
    gpu: Option<Gpu>,
    trusted: Option<Trusted>,
    trusted_starting: Option<Process>,
    zygote: Option<Zygote>,
    /// Started ahead, used for one task: allocators and compilers keep too much behind to be reused.
    baseline: Option<Process>,
    session: Option<Session>,
    /// Verdicts by task and content: in `rl` identical sources are judged once.
    known: BTreeMap<String, Judged>,
}

/// What the stages learn on the way.
struct Attempt {
    verdict: Verdict,
    compile_log: String,
    raw: Vec<Raw>,
    baselines: Option<Baselines>,
}

/// A library whose very bytes were checked, in memory that nobody can change any more.
struct Image {
    library: Library,
    fd: OwnedFd,
}

enum Step<T> {
    Go(T),
    Stop(Fault),
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

impl Judge {
    /// Starts the processes; they import PyTorch side by side while the caller goes on.
    pub fn start(options: Options) -> Result<Self, JudgeError> {
        let cxx = warpsmith_machine::find_cxx().ok_or_else(|| JudgeError::Infrastructure {
            code: "no_compiler",
            message: "no C++ compiler was found".to_owned(),
            hint: Some("install g++ (`apt install g++`)".to_owned()),
        })?;
        let (gpu, nvcc) = cuda_parts(&options)?;
        let harness = Harness::install(&options.caches, &options.python, &cxx)?;
        let device_name = gpu.as_ref().map_or_else(|| warpsmith_machine::cpu().name, |gpu| gpu.name.clone());
        let toolchain = Toolchain {
            caches: options.caches.clone(),
            python: options.python.clone(),
            cxx,
            nvcc,
            target: options.target,
            arch: gpu.as_ref().map(|gpu| format!("{}{}", gpu.compute_capability.0, gpu.compute_capability.1)),
            isolation: options.isolation,
        };
        let mut judge = Self {
            allowance: Allowance::of_this_machine(),
            options,
            toolchain,
            harness,
            device_name,
            gpu,
            trusted: None,
            trusted_starting: None,
            zygote: None,
            baseline: None,
            session: None,
            known: BTreeMap::new(),
        };
        judge.trusted_starting = Some(judge.launch_trusted()?);
        judge.zygote = Some(judge.launch_zygote()?);
        judge.baseline = Some(judge.launch_baseline()?);
        Ok(judge)
    }

    /// Builds what would otherwise be built on first use.
    pub fn prepare_headers(&self) -> Result<(), JudgeError> {
        self.toolchain.precompile()
    }

    /// Which protections hold for candidates.
    pub fn isolation(&self) -> Option<&sandbox::Effective> {
        self.zygote.as_ref().map(Zygote::effective)
    }

    /// Judges one submission. An error is never a verdict; one of ours is retried once with fresh processes.
    pub fn judge(&mut self, task: &TaskSource, submission: &Submission) -> Result<Judged, JudgeError> {
        let key = format!("{}:{}", task_hash(task), content_hash(submission));
        if self.options.profile == Profile::Rl {
            if let Some(known) = self.known.get(&key) {
                return Ok(known.clone());
            }
        }
        let judged = match self.attempt(task, submission) {
            Err(error) if error.retryable() => {
                self.restart();
                self.attempt(task, submission)
            }
            other => other,
        };
        if judged.is_err() {
            self.restart();
        }
        let judged = judged?;
        if self.options.profile == Profile::Rl {
            self.known.insert(key, judged.clone());
        }
        Ok(judged)
    }

    /// After a failure every process is suspect.
    fn restart(&mut self) {
        self.session = None;
        self.trusted = None;
        self.trusted_starting = None;
        self.zygote = None;
        self.baseline = None;
    }

    fn attempt(&mut self, task: &TaskSource, submission: &Submission) -> Result<Judged, JudgeError> {
        let started = Instant::now();
        let verdict =
            Verdict::unreached(Status::Crashed, self.options.target, self.options.profile, self.device_name.clone());
        let mut attempt = Attempt { verdict, compile_log: String::new(), raw: Vec::new(), baselines: None };
        let before = self.gpu.as_ref().and_then(|gpu| warpsmith_machine::gpu_clocks(gpu.index));
        let outcome = self.stages(task, submission, &mut attempt)?;
        let mut verdict = attempt.verdict;
        match outcome {
            Step::Go(()) => {
                verdict.status = Status::Passed;
                verdict.correct = true;
            }
            Step::Stop(fault) => {
                verdict.status = fault.status;
                verdict.rule = fault.rule;
                verdict.reason = Some(clip(&fault.reason, 6000));
                verdict.times_us = None;
                verdict.speedup = None;
                verdict.matched_precision = None;
            }
        }
        if let Some(zygote) = &self.zygote {
            verdict.isolation = Some(named(zygote.effective()));
            verdict.trust.contained = zygote.effective().contained();
        }
        verdict.seconds.total = started.elapsed().as_secs_f64();
        verdict.reward = Reward::of(&verdict);
        let seed = self.session.as_ref().map_or(0, |session| session.seed);
        let after = self.gpu.as_ref().and_then(|gpu| warpsmith_machine::gpu_clocks(gpu.index));
        let evidence = Evidence {
            task_name: task.name.clone(),
            task_source: task.source.clone(),
            submission: submission.clone(),
            seed,
            target: self.options.target,
            profile: self.options.profile,
            environment: self.environment(&json!({ "before": before, "after": after })),
            samples: evidence::samples(&attempt.raw, attempt.baselines.as_ref()),
            compile_log: attempt.compile_log,
            printed: self.zygote.as_ref().map(Zygote::tail).unwrap_or_default(),
        };
        if self.zygote.as_ref().is_some_and(Zygote::single_use) {
            self.zygote = None;
        }
        Ok(Judged { verdict, evidence })
    }

    fn stages(&mut self, task: &TaskSource, submission: &Submission, attempt: &mut Attempt) -> Result<Step<()>, JudgeError> {
        let Some(source) = submission.files.get(MODEL_NEW).and_then(|text| String::from_utf8(text.clone()).ok()) else {
            let reason = "model_new.py is missing or not UTF-8";
            return Ok(Step::Stop(Fault::new(Status::Rejected, Some(Rule::Form), reason)));
        };
        attempt.verdict.progress.parsed = true;
        // A new task is loaded while the compilers run.
        let built = if submission.form == Form::Inline {
            self.load_task(task)?;
            let units = go!(self.extract(&source)?);
            self.build(submission, &units, attempt)?
        } else {
            let units = [folder_unit(submission)];
            let toolchain = self.toolchain.clone();
            let submission = submission.clone();
            let compiling = std::thread::spawn(move || (Instant::now(), toolchain.build(&submission, &units), Instant::now()));
            let loaded = self.load_task(task);
            let (begun, built, done) =
                compiling.join().map_err(|_| JudgeError::infrastructure("panic", "the compile thread panicked"))?;
            loaded?;
            attempt.verdict.seconds.compile = (done - begun).as_secs_f64();
            built?
        };
        let images = go!(self.accept(built, attempt)?);
        self.check_trust(attempt);

        let verifying = Instant::now();
        let mut worker = go!(self.load_candidate(&source, submission.form, &images, attempt)?);
        let class = go!(self.verify(&mut worker, attempt)?);
        attempt.verdict.seconds.verify = verifying.elapsed().as_secs_f64();

        let timing = Instant::now();
        let strict = if let Some(kept) = self.kept_baselines(Precision::Fp32)? {
            kept
        } else {
            // Nothing of the candidate may be alive while a baseline is measured.
            drop(worker);
            let measured = self.baselines(task, Precision::Fp32)?;
            worker = go!(self.load_candidate(&source, submission.form, &images, attempt)?);
            measured
        };
        let candidate = go!(self.time(&mut worker, &strict, attempt)?);
        drop(worker);
        let matched = match class {
            Precision::Fp32 => strict.clone(),
            Precision::Tf32 => match self.kept_baselines(Precision::Tf32)? {
                Some(kept) => kept,
                None => self.baselines(task, Precision::Tf32)?,
            },
        };
        attempt.verdict.seconds.time = timing.elapsed().as_secs_f64();
        Ok(self.conclude(&candidate, class, strict, &matched, attempt))
    }

    // ---- processes ---------------------------------------------------------------------------------------------------

    fn launch_trusted(&self) -> Result<Process, JudgeError> {
        let mut environment = self.trusted_environment();
        // Its threads must not spin on the cores that the timed process needs.
        environment.push(("OMP_WAIT_POLICY".to_owned(), "PASSIVE".to_owned()));
        Process::start(process::Launch {
            name: "trusted",
            target: self.options.target,
            script: "trusted.py",
            arguments: Vec::new(),
            environment,
            python: &self.options.python,
            harness: &self.harness.dir,
        })
    }

    fn launch_baseline(&self) -> Result<Process, JudgeError> {
        let mut environment = self.trusted_environment();
        environment.push(("TORCHINDUCTOR_CACHE_DIR".to_owned(), self.options.caches.compile().display().to_string()));
        environment.push(("TRITON_CACHE_DIR".to_owned(), self.options.caches.compile().join("triton").display().to_string()));
        Process::start(process::Launch {
            name: "baseline",
            target: self.options.target,
            script: "worker.py",
            arguments: vec![self.harness.support.display().to_string(), self.harness.cuda_arena.display().to_string()],
            environment,
            python: &self.options.python,
            harness: &self.harness.dir,
        })
    }

    fn trusted_environment(&self) -> Vec<(String, String)> {
        let mut environment = zygote::device_environment(self.options.target, self.options.device);
        environment.push(("PATH".to_owned(), std::env::var("PATH").unwrap_or_default()));
        environment.push(("HOME".to_owned(), std::env::var("HOME").unwrap_or_default()));
        environment.push(("OMP_NUM_THREADS".to_owned(), self.allowance.threads.to_string()));
        environment.push(("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned()));
        environment
    }

    fn launch_zygote(&self) -> Result<Zygote, JudgeError> {
        Zygote::start(&zygote::Launch {
            python: &self.options.python,
            harness: &self.harness,
            target: self.options.target,
            device: self.options.device,
            isolation: self.options.isolation,
            allowance: self.allowance.clone(),
        })
    }

    fn trusted(&mut self) -> Result<&mut Trusted, JudgeError> {
        if self.trusted.as_mut().is_none_or(|trusted| !trusted.usable()) {
            self.session = None;
            let process = match self.trusted_starting.take() {
                Some(process) => process,
                None => self.launch_trusted()?,
            };
            self.trusted = Some(Trusted::greet(process)?);
        }
        self.trusted.as_mut().ok_or_else(|| JudgeError::infrastructure("harness", "no trusted process"))
    }

    fn fork(&mut self) -> Result<Worker, JudgeError> {
        if self.zygote.as_mut().is_none_or(|zygote| !zygote.usable()) {
            self.zygote = Some(self.launch_zygote()?);
        }
        match &mut self.zygote {
            Some(zygote) => zygote.fork(),
            None => Err(JudgeError::infrastructure("zygote", "no zygote")),
        }
    }

    // ---- the task ----------------------------------------------------------------------------------------------------

    fn load_task(&mut self, task: &TaskSource) -> Result<(), JudgeError> {
        let hash = task_hash(task);
        let seed = self.fresh_seed()?;
        self.trusted()?;
        if let Some(session) = self.session.as_mut().filter(|session| session.task_hash == hash) {
            session.reseed(seed);
            return Ok(());
        }
        let target = self.options.target;
        self.session = None;
        let trusted = self.trusted()?;
        let session = Session::open(trusted, (&task.name, &task.source, hash), target, seed)?;
        self.session = Some(session);
        Ok(())
    }

    /// From the operating system, after the submission was frozen; fixed only to replay.
    fn fresh_seed(&self) -> Result<u64, JudgeError> {
        match self.options.seed {
            Some(seed) => Ok(seed),
            None => OsRng.try_next_u64().map_err(|error| JudgeError::infrastructure("entropy", error.to_string())),
        }
    }

    /// The session and the trusted process, which exist once a task is loaded.
    fn at_work(&mut self) -> Result<(&mut Session, &mut Trusted), JudgeError> {
        match (&mut self.session, &mut self.trusted) {
            (Some(session), Some(trusted)) => Ok((session, trusted)),
            _ => Err(JudgeError::infrastructure("harness", "no task is loaded")),
        }
    }

    // ---- building ----------------------------------------------------------------------------------------------------

    /// Runs a single file once in a worker, to learn which sources it wants built.
    fn extract(&mut self, source: &str) -> Result<Step<Vec<Unit>>, JudgeError> {
        let (session, _) = self.at_work()?;
        let init = session.loaded.init.clone();
        let target = self.options.target;
        let mut worker = self.fork()?;
        let body = json!({
            "role": "extract", "target": target.name(), "source": source, "file_name": MODEL_NEW, "init": init,
            "threads": self.allowance.threads,
        });
        let reply = match worker.request("setup", body, Duration::from_secs(30)) {
            Ok(reply) => reply,
            Err(error) => return Ok(Step::Stop(channel_fault(error))),
        };
        let form = |text: String| Step::Stop(Fault::new(Status::Rejected, Some(Rule::Form), text));
        Ok(match serde_json::from_value::<Vec<Extension>>(reply["extensions"].clone()) {
            Ok(extensions) => match inline_units(extensions, target) {
                Ok(units) => Step::Go(units),
                Err(text) => form(text),
            },
            Err(error) => form(format!("the extensions cannot be read: {error}")),
        })
    }

    fn build(&self, submission: &Submission, units: &[Unit], attempt: &mut Attempt) -> Result<Built, JudgeError> {
        let begun = Instant::now();
        let built = self.toolchain.build(submission, units);
        attempt.verdict.seconds.compile = begun.elapsed().as_secs_f64();
        built
    }

    /// Takes the build, and checks from outside what the libraries import.
    fn accept(&self, built: Built, attempt: &mut Attempt) -> Result<Step<Vec<Image>>, JudgeError> {
        let (libraries, log) = match built {
            Built::Ready { libraries, log } => (libraries, log),
            Built::Failed { log } => {
                let reason = clip(&log, 4000);
                attempt.compile_log = log;
                return Ok(Step::Stop(Fault::new(Status::CompileFailed, None, reason)));
            }
        };
        attempt.compile_log = log;
        attempt.verdict.compiled = true;
        attempt.verdict.progress.compiled = true;
        let mut images = Vec::new();
        for library in libraries {
            let bytes = fs::read(&library.path).map_err(JudgeError::io("read a built library"))?;
            match imports::forbidden(&bytes) {
                Ok(None) => {
                    let fd = sealed(&bytes).map_err(JudgeError::io("seal a built library"))?;
                    images.push(Image { library, fd });
                }
                Ok(Some(reason)) => {
                    let reason = format!("the built library may not be run: {reason}");
                    return Ok(Step::Stop(Fault::new(Status::Rejected, Some(Rule::ForbiddenImport), reason)));
                }
                Err(reason) => return Ok(Step::Stop(Fault::new(Status::Rejected, Some(Rule::Form), reason))),
            }
        }
        Ok(Step::Go(images))
    }

    fn check_trust(&self, attempt: &mut Attempt) {
        let trust = &mut attempt.verdict.trust;
        if let Some(session) = &self.session {
            trust.degenerate_inputs = session.loaded.screen.degenerate_inputs;
            trust.excluded_share = session.loaded.excluded_share;
            trust.fp64 = Some(session.loaded.fp64.clone());
        }
        for check in ["imports", "values", "outputs_stable", "inputs_intact", "timed_outputs", "floor"] {
            trust.checks.insert(check.to_owned(), TrustCheck::NotReached);
        }
        trust.checks.insert("imports".to_owned(), TrustCheck::Held);
    }

    // ---- running -----------------------------------------------------------------------------------------------------

    fn load_candidate(
        &mut self,
        source: &str,
        form: Form,
        images: &[Image],
        attempt: &mut Attempt,
    ) -> Result<Step<Worker>, JudgeError> {
        let mut worker = self.fork()?;
        let threads = self.allowance.threads;
        let target = self.options.target;
        let (session, _) = self.at_work()?;
        let (regions, mut fds) = attach(&session.regions, session.loaded.weights_bytes);
        fds.extend(images.iter().map(|image| image.fd.as_fd()));
        let variant = session.variant(0);
        let decoys: Vec<Value> = crate::value::tensors(&variant.outputs)
            .iter()
            .map(|place| json!({ "dtype": place.dtype, "shape": place.shape }))
            .collect();
        let names: Vec<Value> =
            images.iter().map(|Image { library, .. }| json!({ "name": library.name, "fingerprint": library.fingerprint })).collect();
        let body = json!({
            "role": "candidate", "target": target.name(), "source": source, "file_name": MODEL_NEW,
            "init": session.loaded.init, "state": session.loaded.state, "regions": regions,
            "libraries": names, "form": form.name(), "threads": threads, "decoys": decoys,
        });
        if let Err(error) = worker.channel.request("setup", body, &fds, Duration::from_secs(60)) {
            return Ok(Step::Stop(dead_or(&worker, channel_fault(error))));
        }
        if let Err(failure) = prepare(&mut worker.channel, &variant.inputs, false) {
            return sort(failure.into(), Phase::Verifying).map(|fault| Step::Stop(dead_or(&worker, fault)));
        }
        attempt.verdict.progress.loaded = true;
        Ok(Step::Go(worker))
    }

    /// Fresh inputs and weights, several distributions, every shape; the class of the worst.
    fn verify(&mut self, worker: &mut Worker, attempt: &mut Attempt) -> Result<Step<Precision>, JudgeError> {
        let profile = self.options.profile;
        let (session, trusted) = self.at_work()?;
        let transforms = session.loaded.screen.transforms.clone();
        let variants = session.loaded.variants.len();
        let checks = match profile {
            Profile::Full => 5,
            Profile::Rl => 3,
        };
        let mut class = Precision::Fp32;
        let mut last = None;
        for index in 0..checks.max(transforms.len()).max(variants) {
            let variant = index % variants;
            if variants > 1 {
                let inputs = session.variant(variant).inputs.clone();
                if let Err(failure) = prepare(&mut worker.channel, &inputs, false) {
                    return sort(failure.into(), Phase::Verifying).map(|fault| Step::Stop(dead_or(worker, fault)));
                }
            }
            // The task's own distribution first, then each admissible transform in turn.
            let transform = if transforms.is_empty() { "plain" } else { &transforms[index % transforms.len()] };
            session.new_weights(trusted)?;
            let check = match session.verify_once(trusted, &mut worker.channel, variant, transform) {
                Ok(check) => check,
                Err(stopped) => {
                    attempt.verdict.progress.ran |= matches!(stopped, Stopped::Wrong(_));
                    return sort(stopped, Phase::Verifying).map(|fault| Step::Stop(dead_or(worker, fault)));
                }
            };
            note(&check, attempt);
            if !(check.passed && check.sample_ok && check.inputs_ok) {
                return Ok(Step::Stop(wrong(&check, Phase::Verifying)));
            }
            if check.class == Some(Precision::Tf32) {
                class = Precision::Tf32;
            }
            last = Some(check);
        }
        if let Some(check) = last {
            attempt.verdict.numerics = Some(Numerics {
                candidate_vs_fp64: number(check.candidate_error.as_ref()),
                eager_vs_fp64: number(check.eager_error.as_ref()),
            });
        }
        attempt.verdict.correct = true;
        for check in ["values", "outputs_stable", "inputs_intact"] {
            attempt.verdict.trust.checks.insert(check.to_owned(), TrustCheck::Held);
        }
        Ok(Step::Go(class))
    }

    fn time(&mut self, worker: &mut Worker, strict: &Baselines, attempt: &mut Attempt) -> Result<Step<Estimate>, JudgeError> {
        let (profile, target) = (self.options.profile, self.options.target);
        let (session, trusted) = self.at_work()?;
        let mut estimates = Vec::new();
        for index in 0..session.loaded.variants.len() {
            let inputs = session.variant(index).inputs.clone();
            let constant = strict.constant[index];
            let lines: Vec<f64> = std::iter::once(&strict.eager[index])
                .chain(strict.compile.iter().map(|compiled| &compiled[index]))
                .map(|baseline| 0.95 * baseline.time_us)
                .collect();
            let slow = session.variant(index).eager_us > 4.0 * timing::SINGLE_ONLY_US;
            let plan = candidate_plan(profile, slow);
            let gap = timing::honest_gap_us(&strict.eager[index]);
            let mut tries = 0;
            let estimate = loop {
                if let Err(failure) = prepare(&mut worker.channel, &inputs, false) {
                    return sort(failure.into(), Phase::Timing).map(|fault| Step::Stop(dead_or(worker, fault)));
                }
                let enough =
                    |raw: &Raw| profile == Profile::Rl && raw.bursts.len() >= 2 && timing::clear_of(raw, &constant, &lines);
                let raw = match session.measure(trusted, &mut worker.channel, "candidate", index, &plan, &enough) {
                    Ok(raw) => raw,
                    Err(stopped) => return sort(stopped, Phase::Timing).map(|fault| Step::Stop(dead_or(worker, fault))),
                };
                let estimate = timing::estimate(&raw, &constant, gap);
                attempt.raw.push(raw);
                tries += 1;
                if estimate.spread <= noise_limit(target) {
                    break estimate;
                }
                if tries == 3 {
                    return Err(JudgeError::Infrastructure {
                        code: "noisy_machine",
                        message: format!("the spread of single calls stayed at {:.0} % in three runs", 100.0 * estimate.spread),
                        hint: Some("stop other work on this machine and judge again".to_owned()),
                    });
                }
            };
            estimates.push(estimate);
        }
        attempt.verdict.trust.checks.insert("timed_outputs".to_owned(), TrustCheck::Held);
        match timing::combine(&estimates) {
            Some(estimate) => Ok(Step::Go(estimate)),
            None => Err(JudgeError::infrastructure("timing", "nothing was timed")),
        }
    }

    // ---- baselines ---------------------------------------------------------------------------------------------------

    fn baseline_file(&self, precision: Precision) -> Result<std::path::PathBuf, JudgeError> {
        let session = self.session.as_ref().ok_or_else(|| JudgeError::infrastructure("harness", "no task is loaded"))?;
        let device = match &self.gpu {
            Some(gpu) => format!("{} {} {}", gpu.name, gpu.uuid, gpu.driver),
            None => self.device_name.clone(),
        };
        let key = baseline::Key {
            task_hash: &session.task_hash,
            target: self.options.target,
            device: &device,
            torch: &self.options.python.torch.version,
            threads: self.allowance.threads,
            precision,
            mode: self.options.compile_mode.as_deref().unwrap_or("eager only"),
        };
        Ok(key.file(self.options.caches.baselines()))
    }

    fn kept_baselines(&self, precision: Precision) -> Result<Option<Baselines>, JudgeError> {
        Ok(baseline::load(&self.baseline_file(precision)?))
    }

    fn baselines(&mut self, task: &TaskSource, precision: Precision) -> Result<Baselines, JudgeError> {
        let file = self.baseline_file(precision)?;
        let mut process = match self.baseline.take() {
            Some(process) => process,
            None => self.launch_baseline()?,
        };
        process.greet()?;
        let (Some(session), Some(trusted)) = (&mut self.session, &mut self.trusted) else {
            return Err(JudgeError::infrastructure("harness", "no task is loaded"));
        };
        session.new_weights(trusted)?;
        let wanted = baseline::Wanted {
            source: &task.source,
            target: self.options.target,
            threads: self.allowance.threads,
            precision,
            compile: self.options.compile_mode.as_deref(),
        };
        let baselines = baseline::measure(&mut process, trusted, session, &wanted)?;
        baseline::save(&file, &baselines)?;
        drop(process);
        if self.options.target == Target::Cuda {
            // Its import runs beside the GPU's work; on the CPU target it would disturb what is timed next.
            self.baseline = Some(self.launch_baseline()?);
        }
        Ok(baselines)
    }

    // ---- the verdict -------------------------------------------------------------------------------------------------

    fn conclude(
        &mut self,
        candidate: &Estimate,
        class: Precision,
        strict: Baselines,
        matched: &Baselines,
        attempt: &mut Attempt,
    ) -> Step<()> {
        let output_bytes = self.session.as_ref().map_or(0, |session| session.variant(0).output_bytes);
        let floor = floor_us(self.options.target, output_bytes);
        if candidate.time_us < floor && output_bytes > 1 << 20 {
            attempt.verdict.trust.checks.insert("floor".to_owned(), TrustCheck::Failed);
            let reason = format!(
                "{:.1} us is less than writing the output can take on any machine ({floor:.1} us)",
                candidate.time_us
            );
            attempt.baselines = Some(strict);
            return Step::Stop(Fault::new(Status::Cheating, Some(Rule::BelowFloor), reason));
        }
        attempt.verdict.trust.checks.insert("floor".to_owned(), TrustCheck::Held);
        attempt.verdict.trust.deferred_work = candidate.deferred;
        if candidate.deferred {
            attempt.verdict.notes.push("work was batched or put off: the time of single calls counts".to_owned());
        }
        if let Some(failure) = &strict.compile_failure {
            attempt.verdict.notes.push(format!("torch.compile has no time for this task: {}", clip(failure, 1500)));
        }
        let of = |estimates: &[Estimate]| timing::combine(estimates).map_or(f64::NAN, |estimate| estimate.time_us);
        let (eager, compile) = (of(&strict.eager), strict.compile.as_deref().map(of));
        attempt.verdict.times_us = Some(Times {
            candidate: Number(candidate.time_us),
            eager: Number(eager),
            compile: compile.map(Number),
            spread: Number(candidate.spread),
            samples: candidate.samples,
            single: Number(candidate.single_us),
            burst: candidate.burst_us.map(Number),
            constant: Number(strict.constant.first().map_or(f64::NAN, |constant| constant.single_us)),
        });
        let ratio = |eager: f64, compile: Option<f64>| Speedup {
            eager: Number(eager / candidate.time_us),
            compile: compile.map(|compile| Number(compile / candidate.time_us)),
        };
        attempt.verdict.speedup = Some(ratio(eager, compile));
        let (eager, compile) = (of(&matched.eager), matched.compile.as_deref().map(of));
        attempt.verdict.matched_precision = Some(MatchedPrecision {
            mode: class,
            eager_us: Number(eager),
            compile_us: compile.map(Number),
            speedup: ratio(eager, compile),
        });
        attempt.baselines = Some(strict);
        Step::Go(())
    }

    fn environment(&self, clocks: &Value) -> BTreeMap<String, Value> {
        let hello = self.trusted.as_ref().map(|trusted| trusted.hello.clone()).unwrap_or_default();
        BTreeMap::from([
            ("device".to_owned(), json!(self.device_name)),
            ("gpu".to_owned(), json!(self.gpu)),
            ("clocks".to_owned(), clocks.clone()),
            ("python".to_owned(), json!(self.options.python.version)),
            ("torch".to_owned(), json!(self.options.python.torch.version)),
            ("cxx".to_owned(), json!(self.toolchain.cxx.version)),
            ("nvcc".to_owned(), json!(self.toolchain.nvcc.as_ref().map(|nvcc| nvcc.version.clone()))),
            ("threads".to_owned(), json!(self.allowance.threads)),
            ("warpsmith".to_owned(), json!(env!("CARGO_PKG_VERSION"))),
            ("trusted".to_owned(), hello),
        ])
    }
}

fn cuda_parts(options: &Options) -> Result<(Option<Gpu>, Option<Nvcc>), JudgeError> {
    if options.target == Target::Cpu {
        return Ok((None, None));
    }
    let gpu = warpsmith_machine::gpus().into_iter().find(|gpu| gpu.index == options.device);
    let gpu = gpu.ok_or_else(|| JudgeError::Config {
        code: "no_gpu",
        message: format!("there is no GPU {} on this machine", options.device),
        hint: Some("use `--target cpu`, or another `--device`; `warpsmith doctor` lists what was found".to_owned()),
    })?;
    let nvcc = warpsmith_machine::find_nvcc().ok_or_else(|| JudgeError::Infrastructure {
        code: "no_nvcc",
        message: "the CUDA compiler nvcc was not found".to_owned(),
        hint: Some("install the CUDA toolkit, or set CUDA_HOME".to_owned()),
    })?;
    Ok((Some(gpu), Some(nvcc)))
}

pub(crate) fn task_hash(task: &TaskSource) -> String {
    blake3::hash(task.source.as_bytes()).to_hex().to_string()
}

fn candidate_plan(profile: Profile, slow: bool) -> Plan {
    match (profile, slow) {
        (Profile::Full, false) => {
            Plan { singles: 40, bursts: [2, 4, 6, 8].repeat(3), budget: Duration::from_secs(20), checked: true }
        }
        (Profile::Full, true) => Plan { singles: 100, bursts: Vec::new(), budget: Duration::from_secs(20), checked: true },
        (Profile::Rl, false) => {
            Plan { singles: 24, bursts: [2, 4, 6, 8].repeat(2), budget: Duration::from_secs(4), checked: true }
        }
        (Profile::Rl, true) => Plan { singles: 24, bursts: Vec::new(), budget: Duration::from_secs(4), checked: true },
    }
}

/// Above this the machine is too restless for a time to mean anything.
fn noise_limit(target: Target) -> f64 {
    match target {
        Target::Cuda => 0.15,
        Target::Cpu => 0.30,
    }
}

/// Writing the output at twice what the fastest caches of each kind sustain: no honest kernel is quicker.
fn floor_us(target: Target, output_bytes: u64) -> f64 {
    let bytes_per_us = match target {
        Target::Cuda => 20.0e6,
        Target::Cpu => 2.0e6,
    };
    output_bytes as f64 / bytes_per_us
}

fn note(check: &Check, attempt: &mut Attempt) {
    let progress = &mut attempt.verdict.progress;
    progress.ran = true;
    progress.shape_ok = check.structure_ok && check.shape_ok && check.dtype_ok;
    progress.share_within_tolerance = Some(check.share_within_tolerance);
}

fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let fd = memfd_create("kernels", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    let fd = OwnedFd::from(file);
    fcntl_add_seals(&fd, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

fn named(effective: &sandbox::Effective) -> warpsmith_schema::Isolation {
    let words = |protection: &sandbox::Protection| match protection {
        sandbox::Protection::Held { by } => by.clone(),
        sandbox::Protection::Missing { why } => format!("missing: {why}"),
    };
    effective.iter().map(|(name, protection)| (name.to_owned(), words(protection))).collect()
}

/// A worker that fell silent because it was killed for its memory says so.
fn dead_or(worker: &Worker, fault: Fault) -> Fault {
    if fault.status == Status::Crashed && worker.out_of_memory() {
        return Fault::new(Status::Crashed, Some(Rule::MemoryLimit), "the process was killed at its memory limit");
    }
    fault
}

fn number(value: Option<&Value>) -> Number {
    value.and_then(|value| serde_json::from_value(value.clone()).ok()).unwrap_or(Number(f64::NAN))
}

/// The head and the tail of a long text.
fn clip(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let half = limit / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().rev().take(half).collect::<Vec<_>>().into_iter().rev().collect();
    format!("{head}\n[…]\n{tail}")
}

