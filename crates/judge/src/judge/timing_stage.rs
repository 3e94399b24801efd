//! The last stage: a candidate is timed, looked at meanwhile, and verified once more.

use std::io;
use std::time::Duration;

use fs_err as fs;
use warpsmith_schema::{Precision, Profile, Rule, Rules, Status, Target, TrustCheck};

use super::replaced::{Replacement, nothing_replaced};
use super::stages::{LibraryImage, with_memory_limit};
use super::{JudgementState, Step, Supervisor};
use crate::JudgeError;
use crate::baseline::Baselines;
use crate::candidate_failure::{
    CandidateFailure, Phase, attribute, channel_failure, failed_comparison,
};
use crate::channel::ChannelError;
use crate::sampled_code::CodeClassifier;
use crate::session::{
    MeasurementPlan, OutputHandling, OutputPlacement, StopCondition, prepare_inputs,
};
use crate::timing::{self, CallOverhead, HonestGaps, TimeEstimate, TimingSamples};
use crate::zygote::Worker;

fn candidate_plan(
    profile: Profile,
    bursts: Vec<u32>,
    gated: bool,
    looked: usize,
) -> MeasurementPlan {
    let (singles, gated_calls, budget) = match profile {
        Profile::Full if bursts.is_empty() => (100, 0, 20),
        Profile::Full => (40, 16, 20),
        Profile::Rl | Profile::Verify => (24, 8, 4),
    };
    MeasurementPlan {
        single_calls: singles,
        bursts,
        gated_calls: if gated { gated_calls } else { 0 },
        bursts_among: match profile {
            Profile::Full => usize::MAX,
            // Timing cannot end before them.
            Profile::Rl | Profile::Verify => 8,
        },
        budget: Duration::from_secs(budget),
        outputs: OutputHandling::Compared,
        rotate_cores: false,
        sampled_intervals: looked,
    }
}

/// Once more for a candidate whose bursts are quicker than its single or its first calls allow.
fn recheck_plan(bursts: Vec<u32>, gated: bool) -> MeasurementPlan {
    MeasurementPlan {
        single_calls: 40,
        bursts,
        gated_calls: if gated { 16 } else { 0 },
        bursts_among: 8,
        budget: Duration::from_secs(4),
        outputs: OutputHandling::Compared,
        rotate_cores: true,
        sampled_intervals: 0,
    }
}

/// Fewer say nothing.
const MIN_PC_SAMPLES: usize = 10;

/// Above this the machine is too noisy for a time to mean anything.
fn noise_limit(target: Target) -> f64 {
    match target {
        Target::Cuda => 0.15,
        Target::Cpu => 0.30,
    }
}

impl Supervisor {
    pub(super) fn time(
        &mut self,
        worker: &mut Worker,
        images: &[LibraryImage],
        baselines: (&Baselines, bool),
        attempt: &mut JudgementState,
    ) -> Result<Step<TimeEstimate>, JudgeError> {
        let own = images
            .iter()
            .map(|image| Ok(rustix::fs::fstat(&image.fd)?.st_ino))
            .collect::<io::Result<Vec<u64>>>()
            .map_err(JudgeError::io("look at a built library"))?;
        // What it has read is kept for the next candidate.
        let mut observer = std::mem::take(&mut self.code_classifier);
        let timed = self.time_observed(worker, (&mut observer, &own), baselines, attempt);
        self.code_classifier = observer;
        timed
    }

    fn time_observed(
        &mut self,
        worker: &mut Worker,
        (observer, own): (&mut CodeClassifier, &[u64]),
        (strict, fresh): (&Baselines, bool),
        attempt: &mut JudgementState,
    ) -> Result<Step<TimeEstimate>, JudgeError> {
        let (profile, target) = (self.config.profile, self.config.target);
        let rules = self.config.rules;
        let kept_in = self.baseline_file(Precision::Fp32)?;
        let (session, trusted) = self.session_and_trusted()?;
        session.begin_timing();
        let mut estimates = Vec::new();
        for index in 0..session.loaded.variants.len() {
            let inputs = session.variant(index).inputs.clone();
            let constant = strict.constant[index];
            let lines: Vec<f64> = std::iter::once(&strict.eager[index])
                .chain(strict.compile.iter().map(|compiled| &compiled[index]))
                .map(|baseline| 0.95 * baseline.time_us)
                .collect();
            let bursts = session.bursts(index, profile);
            let gated = session.is_gated(index) && constant.gated_us.is_some();
            let looked = session.sampled_intervals(index, profile);
            let plan = candidate_plan(profile, bursts, gated, looked);
            let (eager, raw_eager) = (&strict.eager[index], &strict.raw_eager[index]);
            let honest = HonestGaps {
                single_us: timing::honest_gap_us(raw_eager, &constant, eager),
                once_us: timing::honest_once_us(raw_eager, &constant, eager),
                gated_us: timing::honest_gate_gap_us(raw_eager, &constant, eager),
            };
            let mut tries = 0;
            let estimate = loop {
                if let Err(failure) = prepare_inputs(&mut worker.channel, &inputs, false) {
                    return attribute(failure.into(), Phase::Timing)
                        .map(|fault| Step::Stop(with_memory_limit(worker, fault)));
                }
                let least = session.least_calls();
                let least_bursts = match target {
                    // Long ones and short ones.
                    Target::Cuda => plan.bursts.len(),
                    Target::Cpu => plan.bursts.len().min(2),
                };
                let enough = |raw: &TimingSamples| {
                    profile == Profile::Rl
                        && raw.calls() >= least
                        && raw.bursts.len() >= least_bursts
                        && raw.gated.len() >= plan.gated_calls
                        && timing::is_clear_of(raw, &constant, &lines)
                };
                let mut look = |plan: &MeasurementPlan, enough: StopCondition<'_>| {
                    let runner = &mut worker.runner();
                    session.measure(trusted, runner, "candidate", index, plan, enough)
                };
                let measured = look(&plan, &enough).and_then(|mut raw| {
                    // Before work counts as put off: single calls on other cores may tell another story.
                    if timing::estimate(&raw, &constant, honest).deferred {
                        let bursts = plan.bursts.clone();
                        raw.extend(look(&recheck_plan(bursts, gated), &|_| false)?);
                    }
                    Ok(raw)
                });
                let raw = match measured {
                    Ok(raw) => raw,
                    Err(stopped) => {
                        return attribute(stopped, Phase::Timing)
                            .map(|fault| Step::Stop(with_memory_limit(worker, fault)));
                    }
                };
                let mut constant = constant;
                if let (Some(addresses), Some(pid)) = (worker.take_pc_samples(), worker.host_pid())
                {
                    let seen = observer.classify(pid, &worker.code, &addresses, own);
                    let seen = match seen {
                        // It was let run again after the last call, and ended.
                        Err(_) if worker.host_pid().is_none() => {
                            return Ok(Step::Stop(with_memory_limit(
                                worker,
                                channel_failure(ChannelError::Closed),
                            )));
                        }
                        other => other.map_err(JudgeError::io("look at what a worker runs"))?,
                    };
                    if let Some(fault) = seen.violation(rules) {
                        return Ok(Step::Stop(fault));
                    }
                    if attempt.replacement == Some(Replacement::Exchanged) && seen.only_torch() {
                        let reason = "operators of the reference were exchanged for others, and the process was never seen in code of its own";
                        return Ok(Step::Stop(nothing_replaced(reason)));
                    }
                    if seen.samples >= MIN_PC_SAMPLES && rules == Rules::Own {
                        let checks = &mut attempt.verdict.trust.checks;
                        checks.insert("own_code".to_owned(), TrustCheck::Held);
                    }
                    if seen.without_python(raw.sampled_calls, constant.per_call_us) {
                        attempt.verdict.notes.push(
                            "calls were answered by a way of the candidate's own: nothing is taken off their time"
                                .to_owned(),
                        );
                        constant = CallOverhead::ZERO;
                    }
                }
                let contradicts = timing::contradicts(&raw, &constant);
                if contradicts && fresh && target == Target::Cuda {
                    let reason = "single calls were answered sooner than a call with nothing in it: not by the judge's own way";
                    return Ok(Step::Stop(CandidateFailure::new(
                        Status::Cheating,
                        Some(Rule::BelowFloor),
                        reason,
                    )));
                }
                if contradicts && fresh {
                    // On shared cores it may be the load that changed; no verdict at all would be an author's to choose.
                    // Either way the constant is not theirs.
                    attempt.verdict.notes.push(
                        "calls were answered sooner than a call with nothing in it, by a way of its own or on a machine \
                         whose load changes: nothing is taken off their time"
                            .to_owned(),
                    );
                    constant = CallOverhead::ZERO;
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
                let estimate = timing::estimate(&raw, &constant, honest);
                let pessimistic = timing::pessimistic(&raw, &constant);
                let crowded_by = raw.crowded_by;
                attempt.raw.push(raw);
                tries += 1;
                if estimate.spread <= noise_limit(target) && crowded_by.is_none() {
                    break estimate;
                }
                if let Some(cores) = crowded_by.filter(|_| tries == 3) {
                    return Err(JudgeError::crowded("the candidate", cores));
                }
                if tries == 3 && estimate.spread > 2.0 * strict.eager[index].spread.max(0.15) {
                    // The baseline was quiet: the noise is the candidate's own, and it pays for it.
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
                let place = (index, OutputPlacement::Overwritten);
                match session.verify_once(trusted, &mut worker.runner(), place, &transform) {
                    Ok(check) if check.holds() => {}
                    Ok(check) => return Ok(Step::Stop(failed_comparison(&check, Phase::Timing))),
                    Err(stopped) => {
                        return attribute(stopped, Phase::Timing)
                            .map(|fault| Step::Stop(with_memory_limit(worker, fault)));
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
