use serde::Serialize;

use super::bootstrap::MeanBootstrap;
use super::episode::by_task;
use super::{EpisodeMetrics, Interval, mean};

/// The chance that of `k` samples at least one is correct.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PassAtK {
    pub k: u32,
    pub value: f64,
    /// Null where there are fewer than two tasks.
    pub interval: Option<Interval>,
}

/// Without bias, from `correct` of `samples`: 1 - C(samples - correct, k) / C(samples, k).
pub fn pass_at_k(samples: u32, correct: u32, k: u32) -> f64 {
    // The quotient of the binomials, factor by factor: neither of them would fit.
    let none: f64 = (samples - correct + 1..=samples)
        .map(|i| (1.0 - f64::from(k) / f64::from(i)).max(0.0))
        .product();
    1.0 - none
}

/// The counts for which a run's tasks all have enough samples: 1, 2, 4 and so on up to the fewest that a task has.
pub(super) fn counts(fewest: u32) -> Vec<u32> {
    let mut counts: Vec<u32> = (0..32)
        .map(|power| 1 << power)
        .take_while(|k| *k < fewest)
        .collect();
    counts.extend((fewest > 0).then_some(fewest));
    counts
}

/// Samples of one task, and how many of them are correct.
pub(super) fn correct_of(episodes: &[EpisodeMetrics<'_>]) -> (u32, u32) {
    let correct = episodes.iter().filter(|one| one.correct()).count();
    (episodes.len() as u32, correct as u32)
}

impl PassAtK {
    /// The mean over tasks: all values are of the same tasks.
    pub(super) fn of(episodes: &[EpisodeMetrics<'_>], seed: u64) -> Vec<Self> {
        let tasks: Vec<(u32, u32)> = by_task(episodes)
            .iter()
            .map(|of_one| correct_of(of_one))
            .collect();
        let fewest = tasks.iter().map(|(samples, _)| *samples).min().unwrap_or(0);
        let at = |k: u32| {
            let values: Vec<f64> = tasks
                .iter()
                .map(|(samples, correct)| pass_at_k(*samples, *correct, k))
                .collect();
            Some(Self {
                k,
                value: mean(&values)?,
                interval: MeanBootstrap::of(&values, seed).map(|found| found.interval),
            })
        };
        counts(fewest).into_iter().filter_map(at).collect()
    }
}
