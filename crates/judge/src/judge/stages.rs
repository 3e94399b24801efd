//! The stages a submission goes through before its time counts: build, load, verify.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use fs_err as fs;
use serde_json::{Value, json};
use warpsmith_schema::{
    Number, Numerics, Precision, Profile, Rule, Status, Submission, Task, TrustCheck,
};

use super::{JudgementState, Step, Supervisor, clip};
use crate::JudgeError;
use crate::candidate_failure::{
    CandidateFailure, Phase, attribute, channel_failure, failed_comparison, stale_weights,
};
use crate::imports;
use crate::sample::GuardFlag;
use crate::session::{MeasurementError, OutputPlacement, PLAIN, Session, prepare_inputs};
use crate::submission::{BuildUnit, Extension, MODEL_NEW, SubmissionForm, inline_units};
use crate::toolchain::{BuildResult, BuiltLibrary};
use crate::trusted::{Comparison, LoadedTask, TrustedProcess};
use crate::zygote::Worker;

/// A library whose very bytes were checked, in memory that nobody can change any more.
pub(super) struct LibraryImage {
    pub(super) library: BuiltLibrary,
    pub(super) fd: OwnedFd,
}

/// How long a submission may take to be imported and built.
const LOAD_LIMIT: Duration = Duration::from_secs(30);

fn record_progress(check: &Comparison, attempt: &mut JudgementState) {
    let progress = &mut attempt.verdict.progress;
    progress.ran = true;
    progress.shape_ok = check.structure_ok && check.shape_ok && check.dtype_ok;
    progress.share_within_tolerance = Some(check.share_within_tolerance);
    let draws = &mut attempt.verdict.trust.draws;
    if !draws.contains(&check.transform) {
        draws.push(check.transform.clone());
    }
}

/// The weights that a candidate is loaded with, by a seed of their own: they can be put back.
fn weights_at_load(session: &Session, trusted: &mut TrustedProcess) -> Result<(), JudgeError> {
    if session.loaded.weights_bytes > 0 {
        trusted.weights(session.seed, false)?;
    }
    Ok(())
}

pub(super) fn sealed(bytes: &[u8]) -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    let fd = memfd_create("kernels", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes)?;
    let fd = OwnedFd::from(file);
    fcntl_add_seals(
        &fd,
        SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )?;
    Ok(fd)
}

/// A worker that fell silent because it was killed for its memory says so.
pub(super) fn with_memory_limit(worker: &Worker, fault: CandidateFailure) -> CandidateFailure {
    if fault.status == Status::Crashed && worker.out_of_memory() {
        return CandidateFailure::new(
            Status::Crashed,
            Some(Rule::MemoryLimit),
            "the process was killed at its memory limit",
        );
    }
    fault
}

/// Whether a candidate that failed passes the task's own distribution with the weights it was loaded with, and not with others.
fn holds_only_with_weights_at_load(
    session: &mut Session,
    trusted: &mut TrustedProcess,
    worker: &mut Worker,
    variant: usize,
) -> bool {
    let mut holds = |at_load: bool| -> Option<bool> {
        if session.loaded.weights_bytes == 0 {
            return None;
        }
        if at_load {
            weights_at_load(session, trusted).ok()?;
        } else {
            session.new_weights(trusted).ok()?;
        }
        let place = (variant, OutputPlacement::Anywhere);
        let check = session.verify_once(trusted, &mut worker.runner(), place, PLAIN);
        check.ok().map(|check| check.holds())
    };
    // Whatever goes wrong here, the verdict stands: only its reason is sought.
    holds(true) == Some(true) && holds(false) == Some(false)
}

/// The transforms of the checks before timing: the task's own distribution first, then each admissible one in turn.
pub(crate) fn check_plan(profile: Profile, loaded: &LoadedTask) -> Vec<String> {
    let least = match profile {
        Profile::Full => 5,
        Profile::Rl | Profile::Verify => 3,
    };
    let transforms = &loaded.screen.checks;
    let count = least.max(transforms.len()).max(loaded.variants.len());
    let plain = [PLAIN.to_owned()];
    let of: &[String] = if transforms.is_empty() {
        &plain
    } else {
        transforms
    };
    of.iter().cycle().take(count).cloned().collect()
}

fn number(value: Option<&Value>) -> Number {
    value
        .and_then(|value| serde_json::from_value(value.clone()).ok())
        .unwrap_or(Number(f64::NAN))
}

impl Supervisor {
    /// Runs a single file once in a worker, to learn which sources it wants built.
    pub(super) fn extract(&mut self, source: &str) -> Result<Step<Vec<BuildUnit>>, JudgeError> {
        let (session, _) = self.session_and_trusted()?;
        let init = session.loaded.init.clone();
        let target = self.config.target;
        let mut worker = self.fork()?;
        self.worker_output = Some(worker.output.clone());
        let body = json!({ "source": source, "file_name": MODEL_NEW, "init": init, "threads": self.worker_limits.threads });
        let reply = match worker.request("extract", body, Duration::from_secs(30)) {
            Ok(reply) => reply,
            Err(error) => return Ok(Step::Stop(channel_failure(error))),
        };
        let form = |text: String| {
            Step::Stop(CandidateFailure::new(
                Status::Rejected,
                Some(Rule::Form),
                text,
            ))
        };
        Ok(
            match serde_json::from_value::<Vec<Extension>>(reply["extensions"].clone()) {
                Ok(extensions) => match inline_units(extensions, target) {
                    Ok(units) => Step::Go(units),
                    Err(text) => form(text),
                },
                Err(error) => form(format!("the extensions cannot be read: {error}")),
            },
        )
    }

    pub(super) fn build(
        &self,
        submission: &Submission,
        units: &[BuildUnit],
        attempt: &mut JudgementState,
    ) -> Result<BuildResult, JudgeError> {
        let begun = Instant::now();
        let built = self.toolchain.build(submission, units);
        attempt.verdict.seconds.compile = begun.elapsed().as_secs_f64();
        built
    }

    /// Takes the build, and checks from outside what the libraries import.
    pub(super) fn accept(
        built: BuildResult,
        attempt: &mut JudgementState,
    ) -> Result<Step<Vec<LibraryImage>>, JudgeError> {
        let (libraries, log) = match built {
            BuildResult::Ready { libraries, log } => (libraries, log),
            BuildResult::Failed { log } => {
                let reason = clip(&log, 4000);
                attempt.compile_log = log;
                return Ok(Step::Stop(CandidateFailure::new(
                    Status::CompileFailed,
                    None,
                    reason,
                )));
            }
        };
        attempt.compile_log = log;
        attempt.verdict.compiled = true;
        attempt.verdict.progress.compiled = true;
        let mut images = Vec::new();
        for library in libraries {
            let bytes = fs::read(&library.path).map_err(JudgeError::io("read a built library"))?;
            match imports::first_forbidden_import(&bytes) {
                Ok(None) => {
                    let fd = sealed(&bytes).map_err(JudgeError::io("seal a built library"))?;
                    images.push(LibraryImage { library, fd });
                }
                Ok(Some(reason)) => {
                    let reason = format!("the built library may not be run: {reason}");
                    return Ok(Step::Stop(CandidateFailure::new(
                        Status::Rejected,
                        Some(Rule::ForbiddenImport),
                        reason,
                    )));
                }
                Err(reason) => {
                    return Ok(Step::Stop(CandidateFailure::new(
                        Status::Rejected,
                        Some(Rule::Form),
                        reason,
                    )));
                }
            }
        }
        Ok(Step::Go(images))
    }

    pub(super) fn check_trust(&self, task: &Task, attempt: &mut JudgementState) {
        let trust = &mut attempt.verdict.trust;
        if let Some(session) = &self.session {
            trust.degenerate_inputs = session.loaded.screen.degenerate_inputs;
            trust.excluded_share = session.loaded.excluded_share;
            trust.fp64 = Some(session.loaded.fp64.clone());
            trust.moved.clone_from(&session.loaded.moved);
        }
        trust.kill_rate = self.known_kill_rate(task).and_then(|known| known.rate());
        for check in [
            "imports",
            "own_code",
            "values",
            "outputs_stable",
            "inputs_intact",
            "timed_outputs",
            "floor",
        ] {
            trust
                .checks
                .insert(check.to_owned(), TrustCheck::NotReached);
        }
        trust.checks.insert("imports".to_owned(), TrustCheck::Held);
    }

    /// The worker that stands by, the weights it is loaded with in place, and the flag that arms its guards.
    pub(super) fn take_worker(&mut self) -> Result<(Worker, GuardFlag), JudgeError> {
        self.stand_by()?;
        let worker = self
            .standby
            .take()
            .ok_or_else(|| JudgeError::infrastructure("worker", "no worker stands by"))?;
        self.worker_output = Some(worker.output.clone());
        let (session, trusted) = self.session_and_trusted()?;
        weights_at_load(session, trusted)?;
        let flag =
            GuardFlag::new().map_err(JudgeError::io("make the flag that arms the guards"))?;
        Ok((worker, flag))
    }

    pub(super) fn load_candidate(
        &mut self,
        source: &str,
        form: SubmissionForm,
        images: &[LibraryImage],
        attempt: &mut JudgementState,
    ) -> Result<Step<Worker>, JudgeError> {
        let (mut worker, flag) = self.take_worker()?;
        let (target, rules) = (self.config.target, self.config.rules);
        let (session, _) = self.session_and_trusted()?;
        let mut fds = vec![flag.as_fd()];
        fds.extend(images.iter().map(|image| image.fd.as_fd()));
        let variant = session.variant(0);
        let decoys: Vec<Value> = crate::value::tensors(&variant.outputs)
            .iter()
            .map(|place| json!({ "dtype": place.dtype, "shape": place.shape }))
            .collect();
        let names: Vec<Value> =
            images.iter().map(|LibraryImage { library, .. }| json!({ "name": library.name, "fingerprint": library.fingerprint, "with_status": library.with_status })).collect();
        let body = json!({
            "target": target.name(), "source": source, "file_name": MODEL_NEW, "init": session.loaded.init, "state": session.loaded.state,
            "libraries": names, "form": form.name(), "decoys": decoys, "kept_bytes": session.kept_bytes,
            "ptx_version": images.first().and_then(|image| image.library.name.parse::<u32>().ok()),
        });
        let doing = "look at a worker's memory";
        worker.note_code().map_err(JudgeError::io(doing))?;
        if let Err(error) = worker.channel.request("candidate", body, &fds, LOAD_LIMIT) {
            return Ok(Step::Stop(with_memory_limit(
                &worker,
                channel_failure(error),
            )));
        }
        if let Err(failure) = prepare_inputs(&mut worker.channel, &variant.inputs, false) {
            return attribute(failure.into(), Phase::Verifying)
                .map(|fault| Step::Stop(with_memory_limit(&worker, fault)));
        }
        // From here on PyTorch computes nothing in this worker, or is counted, whatever its own code did to itself.
        flag.arm(rules);
        // Of one that has died since, the first call tells.
        let _ = worker.note_loaded_code();
        attempt.verdict.progress.loaded = true;
        Ok(Step::Go(worker))
    }

    /// Fresh inputs and weights, several distributions, every shape; the class of the worst.
    pub(super) fn verify(
        &mut self,
        worker: &mut Worker,
        attempt: &mut JudgementState,
    ) -> Result<Step<Precision>, JudgeError> {
        let profile = self.config.profile;
        let (session, trusted) = self.session_and_trusted()?;
        let variants = session.loaded.variants.len();
        let mut class = Precision::Fp32;
        let mut plain = None;
        for (index, transform) in check_plan(profile, &session.loaded).into_iter().enumerate() {
            let variant = index % variants;
            if variants > 1 {
                let inputs = session.variant(variant).inputs.clone();
                if let Err(failure) = prepare_inputs(&mut worker.channel, &inputs, false) {
                    return attribute(failure.into(), Phase::Verifying)
                        .map(|fault| Step::Stop(with_memory_limit(worker, fault)));
                }
            }
            // The first check is with the weights it was loaded with: what is right there and wrong later is stale.
            if index > 0 {
                session.new_weights(trusted)?;
            }
            let placement = if index < variants {
                OutputPlacement::Anywhere
            } else {
                OutputPlacement::Overwritten
            };
            let place = (variant, placement);
            let check = match session.verify_once(trusted, &mut worker.runner(), place, &transform)
            {
                Ok(check) => check,
                Err(stopped) => {
                    attempt.verdict.progress.ran |=
                        matches!(stopped, MeasurementError::Comparison(_));
                    return attribute(stopped, Phase::Verifying)
                        .map(|fault| Step::Stop(with_memory_limit(worker, fault)));
                }
            };
            record_progress(&check, attempt);
            if !check.holds() {
                let fault = failed_comparison(&check, Phase::Verifying);
                let stale = index > 0
                    && fault.status == Status::Mismatch
                    && holds_only_with_weights_at_load(session, trusted, worker, variant);
                return Ok(Step::Stop(if stale { stale_weights(fault) } else { fault }));
            }
            if check.class == Some(Precision::Tf32) {
                class = Precision::Tf32;
            }
            if transform == PLAIN {
                plain = Some(check);
            }
        }
        if let Some(check) = plain {
            attempt.verdict.numerics = Some(Numerics {
                candidate_vs_fp64: number(check.candidate_error.as_ref()),
                eager_vs_fp64: number(check.eager_error.as_ref()),
            });
        }
        attempt.verdict.correct = true;
        for check in ["values", "outputs_stable", "inputs_intact"] {
            attempt
                .verdict
                .trust
                .checks
                .insert(check.to_owned(), TrustCheck::Held);
        }
        Ok(Step::Go(class))
    }
}
