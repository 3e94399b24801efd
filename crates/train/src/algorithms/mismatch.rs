//! Whether the model that sampled and the model that learns are the same.
//!
//! They have the same weights, but not the same arithmetic: other kernels, other precision, quantised weights. A token that
//! the sampler drew and the learner thinks next to impossible has a ratio that is nothing but noise, and enough of those end
//! a run.

use serde::Serialize;

/// `min(p_learner / p_sampler, cap)` for each token: what makes up for the difference, without letting one token decide.
pub fn truncated_importance(learner: &[f32], sampler: &[f32], cap: f32) -> Vec<f32> {
    assert_eq!(learner.len(), sampler.len());
    let pairs = learner.iter().zip(sampler);
    pairs
        .map(|(own, other)| (own - other).exp().min(cap))
        .collect()
}

/// How different sampler and learner are, over the tokens of a mask.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Mismatch {
    /// Mean difference of log-probabilities, whatever its sign.
    pub mean_difference: f64,
    /// `|ratio − 1|` that 99.9 % of tokens do not exceed.
    pub usual_deviation: f64,
    pub largest_deviation: f64,
    /// Share of tokens whose ratio is above the cap.
    pub truncated: f64,
}

impl Mismatch {
    /// Where a run is healthy.
    pub const MEAN_DIFFERENCE_LIMIT: f64 = 0.01;
    pub const USUAL_DEVIATION_LIMIT: f64 = 0.2;

    /// `None` where nothing is in the mask.
    pub fn of(learner: &[f32], sampler: &[f32], mask: &[bool], cap: f32) -> Option<Self> {
        assert_eq!(learner.len(), mask.len());
        assert_eq!(sampler.len(), mask.len());
        let pairs = learner.iter().zip(sampler).zip(mask);
        let differences: Vec<f64> = pairs
            .filter(|(_, said)| **said)
            .map(|((own, other), _)| f64::from(*own) - f64::from(*other))
            .collect();
        if differences.is_empty() {
            return None;
        }
        let count = differences.len();
        let mut deviations: Vec<f64> = differences.iter().map(|one| one.exp_m1().abs()).collect();
        deviations.sort_by(f64::total_cmp);
        let usual = (0.999 * count as f64).ceil() as usize;
        let above = differences.iter().filter(|one| one.exp() > f64::from(cap));
        Some(Self {
            mean_difference: differences.iter().map(|one| one.abs()).sum::<f64>() / count as f64,
            usual_deviation: deviations[usual.clamp(1, count) - 1],
            largest_deviation: deviations[count - 1],
            truncated: above.count() as f64 / count as f64,
        })
    }

    pub fn is_healthy(&self) -> bool {
        self.mean_difference <= Self::MEAN_DIFFERENCE_LIMIT
            && self.usual_deviation <= Self::USUAL_DEVIATION_LIMIT
    }
}
