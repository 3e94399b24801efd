//! Runs task by task, against the first of them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::paired::{PairedDifference, paired};
use super::{EpisodeMetrics, best_of_samples, geomean};

/// Times that differ by less are the same.
const NOISE: f64 = 0.05;

/// How a task fared in another run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Change {
    /// Correct now, and not in the first run.
    Gained,
    Lost,
    /// By how many times, more than 5 %.
    Quicker {
        times: f64,
    },
    Slower {
        times: f64,
    },
    /// Both correct and within 5 %, or one of them was not timed.
    Same,
    /// Neither is correct.
    Neither,
    /// Both correct on different devices: times say nothing.
    OtherDevice,
    /// Another task under the same name.
    OtherTask,
    /// It is in one of the runs only.
    Missing,
}

/// One task in another run than the first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TaskChange {
    pub task: String,
    pub change: Change,
}

/// Another run beside the first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Tasks that are in both.
    pub shared: usize,
    pub gained: usize,
    pub lost: usize,
    pub quicker: usize,
    pub slower: usize,
    /// Geometric mean of how many times as quick, over tasks that both solved on the same device.
    pub times_as_quick: Option<f64>,
    /// Shares over all samples of the shared tasks, with a paired test.
    pub differences: Vec<PairedDifference>,
    pub tasks: Vec<TaskChange>,
}

/// Compares tasks by their best samples, and shares by all samples. `seed` is that of the resampling.
pub fn compare(
    first: &[EpisodeMetrics<'_>],
    other: &[EpisodeMetrics<'_>],
    seed: u64,
) -> Comparison {
    let differences = paired(first, other, seed);
    let (first, other) = (best_of_samples(first), best_of_samples(other));
    let by_task = |episodes: &[EpisodeMetrics<'_>]| -> BTreeMap<String, usize> {
        let tasks = episodes.iter().map(|one| one.task().to_owned());
        tasks.zip(0..).collect()
    };
    let (places, others) = (by_task(&first), by_task(&other));
    let mut ratios = Vec::new();
    let mut tasks: Vec<TaskChange> = Vec::new();
    for before in &first {
        let now = others.get(before.task()).map(|place| &other[*place]);
        let change = now.map_or(Change::Missing, |now| change(before, now));
        if let Some(ratio) = now.and_then(|now| ratio(before, now)) {
            ratios.push(ratio);
        }
        tasks.push(TaskChange {
            task: before.task().to_owned(),
            change,
        });
    }
    for only in other.iter().filter(|one| !places.contains_key(one.task())) {
        tasks.push(TaskChange {
            task: only.task().to_owned(),
            change: Change::Missing,
        });
    }
    let count = |holds: fn(&Change) -> bool| tasks.iter().filter(|one| holds(&one.change)).count();
    Comparison {
        shared: count(|change| !matches!(change, Change::Missing | Change::OtherTask)),
        gained: count(|change| matches!(change, Change::Gained)),
        lost: count(|change| matches!(change, Change::Lost)),
        quicker: count(|change| matches!(change, Change::Quicker { .. })),
        slower: count(|change| matches!(change, Change::Slower { .. })),
        times_as_quick: geomean(&ratios),
        differences,
        tasks,
    }
}

fn change(before: &EpisodeMetrics<'_>, now: &EpisodeMetrics<'_>) -> Change {
    if before.trajectory.task.source != now.trajectory.task.source {
        return Change::OtherTask;
    }
    match (before.correct(), now.correct(), ratio(before, now)) {
        (false, false, _) => Change::Neither,
        (false, true, _) => Change::Gained,
        (true, false, _) => Change::Lost,
        (true, true, None) if before.measured().is_none() || now.measured().is_none() => {
            Change::Same
        }
        (true, true, None) => Change::OtherDevice,
        (true, true, Some(times)) if times > 1.0 + NOISE => Change::Quicker { times },
        (true, true, Some(times)) if times < 1.0 / (1.0 + NOISE) => {
            Change::Slower { times: 1.0 / times }
        }
        (true, true, Some(_)) => Change::Same,
    }
}

/// How many times as quick, where both are correct and the times can be compared.
fn ratio(before: &EpisodeMetrics<'_>, now: &EpisodeMetrics<'_>) -> Option<f64> {
    let device =
        |one: &EpisodeMetrics<'_>| one.attempt.map(|attempt| attempt.verdict.device.clone());
    let comparable = before.trajectory.task.source == now.trajectory.task.source
        && device(before) == device(now);
    let (before, now) = (before.measured()?, now.measured()?);
    comparable.then_some(before.runtime_us / now.runtime_us)
}
