use serde::Serialize;

use super::EpisodeMetrics;
use super::episode::by_task;

/// The chance that of `k` samples at least one is correct.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PassAtK {
    pub k: u32,
    pub value: f64,
}

/// Without bias, from `correct` of `samples`: 1 - C(samples - correct, k) / C(samples, k).
pub fn pass_at_k(samples: u32, correct: u32, k: u32) -> f64 {
    // The quotient of the binomials, factor by factor: neither of them would fit.
    let none: f64 = (samples - correct + 1..=samples)
        .map(|i| (1.0 - f64::from(k) / f64::from(i)).max(0.0))
        .product();
    1.0 - none
}

impl PassAtK {
    /// The mean over tasks, for 1, 2, 4 and so on up to the fewest samples that a task has: all values are of the same tasks.
    pub(super) fn of(episodes: &[EpisodeMetrics<'_>]) -> Vec<Self> {
        let tasks: Vec<(u32, u32)> = by_task(episodes)
            .iter()
            .map(|of_one| {
                let correct = of_one.iter().filter(|one| one.correct()).count();
                (of_one.len() as u32, correct as u32)
            })
            .collect();
        let fewest = tasks.iter().map(|(samples, _)| *samples).min().unwrap_or(0);
        let mut counts: Vec<u32> = (0..32)
            .map(|power| 1 << power)
            .take_while(|k| *k < fewest)
            .collect();
        counts.extend((fewest > 0).then_some(fewest));
        counts
            .into_iter()
            .map(|k| {
                let values = tasks
                    .iter()
                    .map(|(samples, correct)| pass_at_k(*samples, *correct, k));
                Self {
                    k,
                    value: values.sum::<f64>() / tasks.len() as f64,
                }
            })
            .collect()
    }
}
