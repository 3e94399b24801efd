//! What a run came to, in numbers: pure functions of its trajectories. `docs/reference/metrics.md` defines each of them.
//!
//! The unit is the episode, one trajectory of a task and a sample; every episode counts once. Those that were interrupted or
//! whose policy could not be asked say nothing about the policy: they are counted apart and in nothing else.

mod bootstrap;
mod cheating;
mod comparison;
mod cost;
mod curve;
mod episode;
mod family;
mod group;
mod paired;
mod pass_at_k;
mod speed;
mod statistics;
mod summary;
#[cfg(test)]
mod tests;

use serde::Serialize;
use warpsmith_schema::{CountedAttempt, Trajectory};

pub use bootstrap::{Interval, Intervals, MEAN_RESAMPLES, MeanBootstrap, RESAMPLES};
pub use cheating::Cheating;
pub use comparison::{Change, Comparison, TaskChange, compare};
pub use cost::{Budget, Cost};
pub use curve::{Curve, FastP, fast_p};
pub use episode::{EpisodeMetrics, EpisodeOutcome, best_of_samples, by_task, episodes};
pub use family::TaskFamily;
pub use group::{Group, by_family, by_level, by_name};
pub use paired::PairedDifference;
pub use pass_at_k::{PassAtK, pass_at_k};
pub use speed::{Against, Baseline, Baselines, Measured, PrecisionClass, Speed, Way};
pub use statistics::{geomean, mean, median};
pub use summary::{Share, Summary};

/// How a run is to be counted.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counting {
    pub counted: CountedAttempt,
    /// Of the resampling behind the intervals.
    pub seed: u64,
}

/// Everything that is said about one run.
#[derive(Debug, Clone, Serialize)]
pub struct ReportMetrics {
    /// Which attempt of an episode all numbers are of, but those under `attempts`.
    pub counted: CountedAttempt,
    /// Episodes that were left out: interrupted, or the policy failed.
    pub unfinished: usize,
    pub overall: Summary,
    pub intervals: Intervals,
    pub attempts: BestAndFinal,
    /// Of every task the best sample only; null where there was one of each.
    pub best_of_samples: Option<Summary>,
    pub pass_at_k: Vec<PassAtK>,
    pub fast_p: FastP,
    pub by_level: Vec<Group>,
    pub by_family: Vec<Group>,
    pub cheating: Cheating,
    pub cost: Cost,
    pub seconds: Budget,
}

/// The same episodes by their best attempt and by their last.
#[derive(Debug, Clone, Serialize)]
pub struct BestAndFinal {
    pub best: Summary,
    #[serde(rename = "final")]
    pub last: Summary,
}

impl ReportMetrics {
    pub fn of(trajectories: &[Trajectory], counting: Counting) -> Self {
        let best = episodes(trajectories, CountedAttempt::Best);
        let last = episodes(trajectories, CountedAttempt::Final);
        let all = match counting.counted {
            CountedAttempt::Best => &best,
            CountedAttempt::Final => &last,
        };
        let of_samples = best_of_samples(all);
        Self {
            counted: counting.counted,
            unfinished: trajectories.len() - all.len(),
            overall: Summary::of(all),
            intervals: Intervals::of(all, counting.seed),
            attempts: BestAndFinal {
                best: Summary::of(&best),
                last: Summary::of(&last),
            },
            best_of_samples: (of_samples.len() < all.len()).then(|| Summary::of(&of_samples)),
            pass_at_k: PassAtK::of(all, counting.seed),
            fast_p: FastP::of(all),
            by_level: by_level(all),
            by_family: by_family(all),
            cheating: Cheating::of(all),
            cost: Cost::of(all),
            seconds: Budget::of(all),
        }
    }
}
