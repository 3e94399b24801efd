//! From times to a verdict.

use warpsmith_sandbox as sandbox;
use warpsmith_schema::{
    MatchedPrecision, Number, Precision, Rule, Speedup, Status, Target, Times, TrustCheck, Verdict,
};

use super::{JudgementState, Step, Supervisor, clip};
use crate::baseline::Baselines;
use crate::candidate_failure::CandidateFailure;
use crate::timing::{self, TimeEstimate};

/// Smaller outputs are not held against the floor: their times are all launch.
const FLOOR_FROM_BYTES: f64 = 1_048_576.0;

/// Writing the output at twice what the fastest caches of each kind sustain: no honest kernel is quicker.
fn floor_us(target: Target, output_bytes: f64) -> f64 {
    let bytes_per_us = match target {
        Target::Cuda => 20.0e6,
        Target::Cpu => 2.0e6,
    };
    output_bytes / bytes_per_us
}

/// The same, or nothing for a small output.
pub(super) fn output_floor_us(target: Target, output_bytes: f64) -> f64 {
    if output_bytes > FLOOR_FROM_BYTES {
        floor_us(target, output_bytes)
    } else {
        0.0
    }
}

impl Supervisor {
    pub(super) fn conclude(
        &mut self,
        candidate: &TimeEstimate,
        class: Precision,
        strict: Baselines,
        matched: &Baselines,
        attempt: &mut JudgementState,
    ) -> Step<()> {
        let output_bytes = self.session.as_ref().map_or(0.0, |session| {
            // As their times are: by the geometric mean over the shapes.
            let logs = session.loaded.variants.iter();
            let logs = logs.map(|variant| (variant.output_bytes.max(1) as f64).ln());
            (logs.sum::<f64>() / session.loaded.variants.len() as f64).exp()
        });
        let floor = output_floor_us(self.config.target, output_bytes);
        if candidate.time_us < floor {
            attempt
                .verdict
                .trust
                .checks
                .insert("floor".to_owned(), TrustCheck::Failed);
            let reason = format!(
                "{:.1} us is less than writing the output can take on any machine ({floor:.1} us)",
                candidate.time_us
            );
            attempt.baselines = Some(strict);
            return Step::Stop(CandidateFailure::new(
                Status::Cheating,
                Some(Rule::BelowFloor),
                reason,
            ));
        }
        attempt
            .verdict
            .trust
            .checks
            .insert("floor".to_owned(), TrustCheck::Held);
        attempt.verdict.trust.deferred_work = candidate.deferred;
        if candidate.deferred {
            attempt.verdict.notes.push(
                "work was batched or put off: what a burst of calls does once is added to each"
                    .to_owned(),
            );
        }
        if let Some(failure) = &strict.compile_failure {
            attempt.verdict.notes.push(format!(
                "torch.compile has no time for this task: {}",
                clip(failure, 1500)
            ));
        }
        let of = |estimates: &[TimeEstimate]| {
            timing::combine(estimates).map_or(f64::NAN, |estimate| estimate.time_us)
        };
        let (eager, compile) = (of(&strict.eager), strict.compile.as_deref().map(of));
        attempt.verdict.times_us = Some(Times {
            candidate: Number(candidate.time_us),
            eager: Number(eager),
            compile: compile.map(Number),
            spread: Number(candidate.spread),
            samples: candidate.samples,
            single: Number(candidate.single_us),
            burst: candidate.burst_us.map(Number),
            constant: Number(
                strict
                    .constant
                    .first()
                    .map_or(f64::NAN, |constant| constant.single_us),
            ),
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
}

/// Protections as a verdict names them.
pub(super) fn isolation_report(
    effective: &sandbox::Effective,
) -> warpsmith_schema::IsolationReport {
    let words = |protection: &sandbox::Protection| match protection {
        sandbox::Protection::Held { by } => by.clone(),
        sandbox::Protection::Missing { why } => format!("missing: {why}"),
    };
    effective
        .iter()
        .map(|(name, protection)| (name.to_owned(), words(protection)))
        .collect()
}

/// Marks the check that stopped a submission.
pub(super) fn mark_failed_check(verdict: &mut Verdict) {
    let check = match (verdict.status, verdict.rule) {
        (Status::Cheating, Some(Rule::ForbiddenImport | Rule::ForbiddenOperator)) => "own_code",
        (_, Some(Rule::ForbiddenImport)) => "imports",
        (_, Some(Rule::OutputChanged)) => "outputs_stable",
        (_, Some(Rule::InputChanged)) => "inputs_intact",
        (_, Some(Rule::WrongWhenTimed)) => "timed_outputs",
        (_, Some(Rule::BelowFloor)) => "floor",
        (Status::Mismatch, _) => "values",
        _ => return,
    };
    verdict
        .trust
        .checks
        .insert(check.to_owned(), warpsmith_schema::TrustCheck::Failed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fastest caches sustain about 10 TB/s on a GPU and 1 TB/s on a CPU; twice that is the floor.
    #[test]
    fn the_floor_is_below_any_honest_kernel_and_above_nothing() {
        let gigabyte = f64::from(1 << 30);
        assert!((50.0..60.0).contains(&floor_us(Target::Cuda, gigabyte)));
        assert!((500.0..600.0).contains(&floor_us(Target::Cpu, gigabyte)));
    }
}
