//! The stages a submission goes through: build, load, verify, time.

use std::io::Write;
use std::os::fd::AsFd;

use super::{Attempt, Judge, Step, clip};
use crate::JudgeError;
use crate::baseline::Baselines;
use crate::imports;
use crate::looks::Observer;
use crate::outcome::Fault;
use crate::outcome::Phase;
use crate::outcome::channel_fault;
use crate::outcome::sort;
use crate::outcome::wrong;
use crate::sample::Flag;
use crate::session::{Enough, PLAIN, Plan, Stopped, prepare};
use crate::submission::Extension;
use crate::submission::Form;
use crate::submission::MODEL_NEW;
use crate::submission::Unit;
use crate::submission::inline_units;
use crate::timing;
use crate::timing::Constant;
use crate::timing::Estimate;
use crate::timing::Raw;
use crate::toolchain::Built;
use crate::toolchain::Library;
use crate::trusted::Check;
use crate::zygote::Worker;
use fs_err as fs;
use serde_json::Value;
use serde_json::json;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;
use std::time::Instant;
use warpsmith_schema::Number;
use warpsmith_schema::Numerics;
use warpsmith_schema::Precision;
use warpsmith_schema::Profile;
use warpsmith_schema::Rule;
use warpsmith_schema::Status;
use warpsmith_schema::Submission;
use warpsmith_schema::Target;
use warpsmith_schema::TrustCheck;

/// A library whose very bytes were checked, in memory that nobody can change any more.
pub(super) struct Image {
    library: Library,
    fd: OwnedFd,
}

/// How long a submission may take to be imported and built.
const LOAD_LIMIT: Duration = Duration::from_secs(30);

fn candidate_plan(profile: Profile, bursts: Vec<u32>, looked: usize) -> Plan {
    let (singles, budget) = match profile {
        Profile::Full if bursts.is_empty() => (100, 20),
        Profile::Full => (40, 20),
        Profile::Rl => (24, 4),
    };
    Plan {
        singles,
        bursts,
        bursts_among: match profile {
            Profile::Full => usize::MAX,
            // Timing cannot end before them.
            Profile::Rl => 8,
        },
        budget: Duration::from_secs(budget),
        checked: true,
        dealt: false,
        looked,
    }
}

/// Single calls of a candidate whose bursts are quicker than they allow.
fn second_look() -> Plan {
    Plan {
        singles: 40,
        bursts: Vec::new(),
        bursts_among: 0,
        budget: Duration::from_secs(4),
        checked: true,
        dealt: true,
        looked: 0,
    }
}

/// Fewer say nothing.
const ENOUGH_LOOKS: usize = 10;

/// Above this the machine is too restless for a time to mean anything.
fn noise_limit(target: Target) -> f64 {
    match target {
        Target::Cuda => 0.15,
        Target::Cpu => 0.30,
    }
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
    fcntl_add_seals(
        &fd,
        SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )?;
    Ok(fd)
}

/// A worker that fell silent because it was killed for its memory says so.
fn dead_or(worker: &Worker, fault: Fault) -> Fault {
    if fault.status == Status::Crashed && worker.out_of_memory() {
        return Fault::new(
            Status::Crashed,
            Some(Rule::MemoryLimit),
            "the process was killed at its memory limit",
        );
    }
    fault
}

fn number(value: Option<&Value>) -> Number {
    value
        .and_then(|value| serde_json::from_value(value.clone()).ok())
        .unwrap_or(Number(f64::NAN))
}

impl Judge {
    /// Runs a single file once in a worker, to learn which sources it wants built.
    pub(super) fn extract(&mut self, source: &str) -> Result<Step<Vec<Unit>>, JudgeError> {
        let (session, _) = self.at_work()?;
        let init = session.loaded.init.clone();
        let target = self.options.target;
        let mut worker = self.fork()?;
        self.printed = Some(worker.printed.clone());
        let body = json!({ "source": source, "file_name": MODEL_NEW, "init": init, "threads": self.allowance.threads });
        let reply = match worker.request("extract", body, Duration::from_secs(30)) {
            Ok(reply) => reply,
            Err(error) => return Ok(Step::Stop(channel_fault(error))),
        };
        let form = |text: String| Step::Stop(Fault::new(Status::Rejected, Some(Rule::Form), text));
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
        units: &[Unit],
        attempt: &mut Attempt,
    ) -> Result<Built, JudgeError> {
        let begun = Instant::now();
        let built = self.toolchain.build(submission, units);
        attempt.verdict.seconds.compile = begun.elapsed().as_secs_f64();
        built
    }

    /// Takes the build, and checks from outside what the libraries import.
    pub(super) fn accept(
        built: Built,
        attempt: &mut Attempt,
    ) -> Result<Step<Vec<Image>>, JudgeError> {
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
                    return Ok(Step::Stop(Fault::new(
                        Status::Rejected,
                        Some(Rule::ForbiddenImport),
                        reason,
                    )));
                }
                Err(reason) => {
                    return Ok(Step::Stop(Fault::new(
                        Status::Rejected,
                        Some(Rule::Form),
                        reason,
                    )));
                }
            }
        }
        Ok(Step::Go(images))
    }

    pub(super) fn check_trust(&self, attempt: &mut Attempt) {
        let trust = &mut attempt.verdict.trust;
        if let Some(session) = &self.session {
            trust.degenerate_inputs = session.loaded.screen.degenerate_inputs;
            trust.excluded_share = session.loaded.excluded_share;
            trust.fp64 = Some(session.loaded.fp64.clone());
        }
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

    pub(super) fn load_candidate(
        &mut self,
        source: &str,
        form: Form,
        images: &[Image],
        attempt: &mut Attempt,
    ) -> Result<Step<Worker>, JudgeError> {
        self.stand_by()?;
        let mut worker = self
            .standby
            .take()
            .ok_or_else(|| JudgeError::infrastructure("worker", "no worker stands by"))?;
        self.printed = Some(worker.printed.clone());
        let target = self.options.target;
        let (session, _) = self.at_work()?;
        let flag = Flag::new().map_err(JudgeError::io("make the flag that arms the guards"))?;
        let mut fds = vec![flag.as_fd()];
        fds.extend(images.iter().map(|image| image.fd.as_fd()));
        let variant = session.variant(0);
        let decoys: Vec<Value> = crate::value::tensors(&variant.outputs)
            .iter()
            .map(|place| json!({ "dtype": place.dtype, "shape": place.shape }))
            .collect();
        let names: Vec<Value> =
            images.iter().map(|Image { library, .. }| json!({ "name": library.name, "fingerprint": library.fingerprint, "with_status": library.with_status })).collect();
        let body = json!({
            "target": target.name(), "source": source, "file_name": MODEL_NEW, "init": session.loaded.init, "state": session.loaded.state,
            "libraries": names, "form": form.name(), "decoys": decoys,
        });
        if let Err(error) = worker.channel.request("candidate", body, &fds, LOAD_LIMIT) {
            return Ok(Step::Stop(dead_or(&worker, channel_fault(error))));
        }
        if let Err(failure) = prepare(&mut worker.channel, &variant.inputs, false) {
            return sort(failure.into(), Phase::Verifying)
                .map(|fault| Step::Stop(dead_or(&worker, fault)));
        }
        // From here on PyTorch computes nothing in this worker, whatever its own code did to itself.
        flag.raise();
        attempt.verdict.progress.loaded = true;
        Ok(Step::Go(worker))
    }

    /// Fresh inputs and weights, several distributions, every shape; the class of the worst.
    pub(super) fn verify(
        &mut self,
        worker: &mut Worker,
        attempt: &mut Attempt,
    ) -> Result<Step<Precision>, JudgeError> {
        let profile = self.options.profile;
        let (session, trusted) = self.at_work()?;
        let transforms = session.loaded.screen.transforms.clone();
        let variants = session.loaded.variants.len();
        let checks = match profile {
            Profile::Full => 5,
            Profile::Rl => 3,
        };
        let mut class = Precision::Fp32;
        let mut plain = None;
        for index in 0..checks.max(transforms.len()).max(variants) {
            let variant = index % variants;
            if variants > 1 {
                let inputs = session.variant(variant).inputs.clone();
                if let Err(failure) = prepare(&mut worker.channel, &inputs, false) {
                    return sort(failure.into(), Phase::Verifying)
                        .map(|fault| Step::Stop(dead_or(worker, fault)));
                }
            }
            // The task's own distribution first, then each admissible transform in turn.
            let transform = if transforms.is_empty() {
                PLAIN
            } else {
                &transforms[index % transforms.len()]
            };
            session.new_weights(trusted)?;
            let check = match session.verify_once(trusted, &mut worker.runner(), variant, transform)
            {
                Ok(check) => check,
                Err(stopped) => {
                    attempt.verdict.progress.ran |= matches!(stopped, Stopped::Wrong(_));
                    return sort(stopped, Phase::Verifying)
                        .map(|fault| Step::Stop(dead_or(worker, fault)));
                }
            };
            note(&check, attempt);
            if !check.holds() {
                return Ok(Step::Stop(wrong(&check, Phase::Verifying)));
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

    pub(super) fn time(
        &mut self,
        worker: &mut Worker,
        images: &[Image],
        baselines: (&Baselines, bool),
        attempt: &mut Attempt,
    ) -> Result<Step<Estimate>, JudgeError> {
        let own = images
            .iter()
            .map(|image| Ok(rustix::fs::fstat(&image.fd)?.st_ino))
            .collect::<io::Result<Vec<u64>>>()
            .map_err(JudgeError::io("look at a built library"))?;
        // What it has read is kept for the next candidate.
        let mut observer = std::mem::take(&mut self.observer);
        let timed = self.time_observed(worker, (&mut observer, &own), baselines, attempt);
        self.observer = observer;
        timed
    }

    fn time_observed(
        &mut self,
        worker: &mut Worker,
        (observer, own): (&mut Observer, &[u64]),
        (strict, fresh): (&Baselines, bool),
        attempt: &mut Attempt,
    ) -> Result<Step<Estimate>, JudgeError> {
        let (profile, target) = (self.options.profile, self.options.target);
        let kept_in = self.baseline_file(Precision::Fp32)?;
        let (session, trusted) = self.at_work()?;
        let mut estimates = Vec::new();
        for index in 0..session.loaded.variants.len() {
            let inputs = session.variant(index).inputs.clone();
            let constant = strict.constant[index];
            let lines: Vec<f64> = std::iter::once(&strict.eager[index])
                .chain(strict.compile.iter().map(|compiled| &compiled[index]))
                .map(|baseline| 0.95 * baseline.time_us)
                .collect();
            let bursts = session.bursts(index, profile);
            let plan = candidate_plan(profile, bursts, session.looked(index, profile));
            let gap = timing::honest_gap_us(&strict.eager[index]);
            let mut tries = 0;
            let estimate = loop {
                if let Err(failure) = prepare(&mut worker.channel, &inputs, false) {
                    return sort(failure.into(), Phase::Timing)
                        .map(|fault| Step::Stop(dead_or(worker, fault)));
                }
                let least = session.least_calls();
                let enough = |raw: &Raw| {
                    profile == Profile::Rl
                        && raw.calls() >= least
                        && raw.bursts.len() >= plan.bursts.len().min(2)
                        && timing::clear_of(raw, &constant, &lines)
                };
                let mut look = |plan: &Plan, enough: Enough<'_>| {
                    let runner = &mut worker.runner();
                    session.measure(trusted, runner, "candidate", index, plan, enough)
                };
                let measured = look(&plan, &enough).and_then(|mut raw| {
                    // Before work counts as put off: single calls on other cores may tell another story.
                    if raw.warm && timing::estimate(&raw, &constant, gap).deferred {
                        raw.singles
                            .extend(look(&second_look(), &|_| false)?.singles);
                    }
                    Ok(raw)
                });
                let raw = match measured {
                    Ok(raw) => raw,
                    Err(stopped) => {
                        return sort(stopped, Phase::Timing)
                            .map(|fault| Step::Stop(dead_or(worker, fault)));
                    }
                };
                let mut constant = constant;
                if let (Some(addresses), Some(pid)) = (worker.seen(), worker.host_pid()) {
                    let seen = observer.see(pid, &addresses, own);
                    let seen = seen.map_err(JudgeError::io("look at what a worker runs"))?;
                    if let Some(fault) = seen.objection() {
                        return Ok(Step::Stop(fault));
                    }
                    if seen.looks >= ENOUGH_LOOKS {
                        let checks = &mut attempt.verdict.trust.checks;
                        checks.insert("own_code".to_owned(), TrustCheck::Held);
                    }
                    if seen.without_python(raw.looked, constant.slope_us) {
                        attempt.verdict.notes.push(
                            "calls were answered by a way of the candidate's own: nothing is taken off their time"
                                .to_owned(),
                        );
                        constant = Constant::NOTHING;
                    }
                }
                let estimate = timing::estimate(&raw, &constant, gap);
                let contradicts = timing::contradicts(&raw, &constant);
                if contradicts && fresh && target == Target::Cuda {
                    let reason = "single calls were answered sooner than a call with nothing in it: not by the judge's own way";
                    return Ok(Step::Stop(Fault::new(
                        Status::Cheating,
                        Some(Rule::BelowFloor),
                        reason,
                    )));
                }
                if contradicts && fresh {
                    // On shared cores it may be the load that changed; no verdict at all would be an author's to choose.
                    attempt.verdict.notes.push(
                        "calls were answered sooner than a call with nothing in it: answered by a way of its own, or on a \
                         machine whose load changes"
                            .to_owned(),
                    );
                }
                if contradicts && !fresh {
                    // Kept from a busier hour: measured anew in the next try.
                    fs::remove_file(&kept_in).map_err(JudgeError::io("drop a stale baseline"))?;
                    return Err(JudgeError::Infrastructure {
                        code: "stale_baseline",
                        message: "a call with nothing in it was slower than the candidate: the load of this machine changes".to_owned(),
                        hint: Some("stop other work on this machine and judge again".to_owned()),
                    });
                }
                let pessimistic = timing::pessimistic(&raw, &constant);
                attempt.raw.push(raw);
                tries += 1;
                if estimate.spread <= noise_limit(target) {
                    break estimate;
                }
                if tries == 3 && estimate.spread > 2.0 * strict.eager[index].spread.max(0.15) {
                    // The baseline was calm: the unrest is the candidate's own, and it pays for it.
                    attempt.verdict.notes.push(
                        "the candidate's calls differ widely among themselves: a slow one counts"
                            .to_owned(),
                    );
                    break pessimistic;
                }
                if tries == 3 {
                    return Err(JudgeError::Infrastructure {
                        code: "noisy_machine",
                        message: format!(
                            "the spread of timed calls stayed at {:.0} % in three runs",
                            100.0 * estimate.spread
                        ),
                        hint: Some("stop other work on this machine and judge again".to_owned()),
                    });
                }
            };
            estimates.push(estimate);
            // Correct also afterwards, on every distribution: what was timed is still the same code, in the same state.
            for transform in session.loaded.screen.transforms.clone() {
                session.new_weights(trusted)?;
                match session.verify_once(trusted, &mut worker.runner(), index, &transform) {
                    Ok(check) if check.holds() => {}
                    Ok(check) => return Ok(Step::Stop(wrong(&check, Phase::Timing))),
                    Err(stopped) => {
                        return sort(stopped, Phase::Timing)
                            .map(|fault| Step::Stop(dead_or(worker, fault)));
                    }
                }
            }
        }
        attempt
            .verdict
            .trust
            .checks
            .insert("timed_outputs".to_owned(), TrustCheck::Held);
        match timing::combine(&estimates) {
            Some(estimate) => Ok(Step::Go(estimate)),
            None => Err(JudgeError::infrastructure("timing", "nothing was timed")),
        }
    }
}
