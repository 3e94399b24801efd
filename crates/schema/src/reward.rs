//! Reward arithmetic: pure functions of a verdict. Cheating earns the lowest value of every scale.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{AttemptProgress, Number, Profile, Status, Verdict};

/// Every reward of one verdict. A trainer chooses one of them without judging again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Reward {
    /// -1 wrong, 1 correct, 2 also 5 % faster than eager, 3 also than `torch.compile`.
    pub robust: f64,
    /// Speed-up over `torch.compile` (eager where that is unknown); 0 when not correct.
    pub raw: Number,
    /// `alpha [compiled] + beta [correct] + gamma min(speed-up over eager, cap) [correct]`.
    pub composite: Number,
    /// As `robust`, with -1 graded upward to -0.2 by how far a failed attempt got.
    pub ladder: f64,
}

/// Weights of the composite reward.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompositeWeights {
    pub compiled: f64,
    pub correct: f64,
    pub speed: f64,
    pub cap: f64,
}

impl Default for CompositeWeights {
    fn default() -> Self {
        Self {
            compiled: 0.5,
            correct: 1.0,
            speed: 1.5,
            cap: 3.0,
        }
    }
}

/// Whether `time` is below `baseline` by more than 5 %, which noise does not explain.
pub fn is_faster(time: f64, baseline: f64) -> bool {
    time < 0.95 * baseline
}

/// The milestone reward of a correct kernel, from times in its own precision class.
pub fn robust_reward(candidate_us: f64, eager_us: f64, compile_us: Option<f64>) -> f64 {
    let beats_eager = is_faster(candidate_us, eager_us);
    let beats_compile = compile_us.is_some_and(|compile| is_faster(candidate_us, compile));
    match (beats_eager, beats_compile) {
        (true, true) => 3.0,
        (true, false) => 2.0,
        (false, _) => 1.0,
    }
}

/// Speed-up over `torch.compile`, or over eager where compile is unknown.
pub fn raw_reward(candidate_us: f64, eager_us: f64, compile_us: Option<f64>) -> f64 {
    compile_us.unwrap_or(eager_us) / candidate_us
}

/// The weighted sum of compiled, correct and capped speed-up over eager.
pub fn composite_reward(weights: &CompositeWeights, compiled: bool, speedup: Option<f64>) -> f64 {
    let compiled = if compiled { weights.compiled } else { 0.0 };
    match speedup {
        Some(speedup) => compiled + weights.correct + weights.speed * speedup.min(weights.cap),
        None => compiled,
    }
}

/// The graded reward of an attempt that failed without cheating: each rung it reached adds to -1, up to -0.2.
pub fn ladder_reward(progress: &AttemptProgress) -> f64 {
    let rungs = [
        (progress.parsed, 0.1),
        (progress.compiled, 0.2),
        (progress.loaded, 0.1),
        (progress.ran, 0.1),
        (progress.shape_ok, 0.1),
    ];
    // A rung counts only if every one below it was reached.
    let climbed: f64 = rungs
        .iter()
        .take_while(|(reached, _)| *reached)
        .map(|(_, worth)| worth)
        .sum();
    let share = match progress.share_within_tolerance {
        Some(share) if progress.shape_ok && share.is_finite() => 0.2 * share.clamp(0.0, 1.0),
        _ => 0.0,
    };
    (-1.0 + climbed + share).min(-0.2)
}

impl Reward {
    /// What cheating earns.
    pub fn lowest() -> Self {
        Self {
            robust: -1.0,
            raw: Number(0.0),
            composite: Number(0.0),
            ladder: -1.0,
        }
    }

    /// The rewards of a verdict; the baselines are those of the candidate's own precision class.
    pub fn of(verdict: &Verdict) -> Self {
        match verdict.status {
            Status::Cheating | Status::Rejected => Self::lowest(),
            Status::Passed => Self::of_passed(verdict).unwrap_or_else(Self::lowest),
            _ => Self {
                composite: Number(composite_reward(
                    &CompositeWeights::default(),
                    verdict.compiled,
                    None,
                )),
                ladder: ladder_reward(&verdict.progress),
                ..Self::lowest()
            },
        }
    }

    fn of_passed(verdict: &Verdict) -> Option<Self> {
        let (candidate, eager, compile) = if verdict.profile == Profile::Verify {
            // Nothing is known of its time: it earns what one earns that is as fast as eager.
            (1.0, 1.0, None)
        } else {
            let matched = verdict.matched_precision?;
            let compile = matched.compile_us.map(|time| time.0);
            let candidate = verdict.times_us.as_ref()?.candidate.0;
            (candidate, matched.eager_us.0, compile)
        };
        if !(candidate.is_finite() && candidate > 0.0 && eager.is_finite()) {
            return None;
        }
        let robust = robust_reward(candidate, eager, compile);
        Some(Self {
            robust,
            raw: Number(raw_reward(candidate, eager, compile)),
            composite: Number(composite_reward(
                &CompositeWeights::default(),
                true,
                Some(eager / candidate),
            )),
            ladder: robust,
        })
    }
}
