//! Shares of two runs over the tasks that both have, and whether they differ by more than chance. Tasks are drawn anew in
//! pairs: what makes a task hard is the same in both runs, and cancels.

use std::collections::BTreeMap;

use serde::Serialize;
use warpsmith_schema::is_faster;

use super::bootstrap::MeanBootstrap;
use super::episode::by_task;
use super::pass_at_k::{correct_of, counts, pass_at_k};
use super::{Baseline, EpisodeMetrics, Speed, mean};

/// A share in the first run and in another, as means over shared tasks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PairedDifference {
    /// `compiled`, `correct`, `faster_than_eager`, `faster_than_compile`, or `pass@k`.
    pub metric: String,
    pub first: f64,
    pub other: f64,
    /// Of the other minus the first.
    pub difference: f64,
    /// Null where there are fewer than two tasks.
    pub bootstrap: Option<MeanBootstrap>,
}

/// Episodes of one task in both runs.
type Pair<'e, 'a> = (&'e [EpisodeMetrics<'a>], &'e [EpisodeMetrics<'a>]);

pub(super) fn paired(
    first: &[EpisodeMetrics<'_>],
    other: &[EpisodeMetrics<'_>],
    seed: u64,
) -> Vec<PairedDifference> {
    let (first, other) = (by_task(first), by_task(other));
    let places: BTreeMap<(&str, &str), usize> = (other.iter().enumerate())
        .filter_map(|(place, of_one)| Some((named(of_one)?, place)))
        .collect();
    let pairs: Vec<Pair<'_, '_>> = (first.iter())
        .filter_map(|before| {
            let place = places.get(&named(before)?)?;
            Some((before.as_slice(), other[*place].as_slice()))
        })
        .collect();
    let mut found = Vec::new();
    let mut add = |metric: &str, of: &dyn Fn(&[EpisodeMetrics<'_>]) -> f64| {
        found.extend(difference(metric, &pairs, of, seed));
    };
    add("compiled", &|one| share(one, EpisodeMetrics::compiled));
    add("correct", &|one| share(one, EpisodeMetrics::correct));
    for (metric, baseline) in [
        ("faster_than_eager", Baseline::EAGER),
        ("faster_than_compile", Baseline::COMPILE),
    ] {
        // What one of them never measured says nothing of the other.
        if measured(&pairs, baseline) {
            add(metric, &|one| share(one, |one| faster(one, baseline)));
        }
    }
    let samples = pairs
        .iter()
        .flat_map(|(one, other)| [one.len(), other.len()]);
    let fewest = samples.min().unwrap_or(0) as u32;
    // Of one sample it is the correct share.
    for k in counts(fewest).into_iter().filter(|k| *k > 1) {
        add(&format!("pass@{k}"), &|one| {
            let (samples, correct) = correct_of(one);
            pass_at_k(samples, correct, k)
        });
    }
    found
}

/// A task by its id and its source: another under the same name is another.
fn named<'e>(of_one: &'e [EpisodeMetrics<'_>]) -> Option<(&'e str, &'e str)> {
    let task = &of_one.first()?.trajectory.task;
    Some((task.id.as_str(), task.source.as_str()))
}

/// Of one task's episodes, of which there is at least one.
fn share<'a>(episodes: &[EpisodeMetrics<'a>], holds: impl Fn(&EpisodeMetrics<'a>) -> bool) -> f64 {
    let count = episodes.iter().filter(|one| holds(one)).count();
    count as f64 / episodes.len().max(1) as f64
}

/// Correct and below the baseline's time by 5 %.
fn faster(episode: &EpisodeMetrics<'_>, baseline: Baseline) -> bool {
    episode.measured().is_some_and(|measured| {
        let of = measured.baseline_us(baseline);
        of.is_some_and(|of| is_faster(measured.runtime_us, of))
    })
}

/// Whether both runs have this baseline.
fn measured(pairs: &[Pair<'_, '_>], baseline: Baseline) -> bool {
    let of = |episodes: Vec<EpisodeMetrics<'_>>| Speed::of(&episodes, baseline).is_some();
    of(pairs
        .iter()
        .flat_map(|(first, _)| *first)
        .copied()
        .collect())
        && of(pairs
            .iter()
            .flat_map(|(_, other)| *other)
            .copied()
            .collect())
}

/// `None` where no task is shared.
fn difference(
    metric: &str,
    pairs: &[Pair<'_, '_>],
    of: &dyn Fn(&[EpisodeMetrics<'_>]) -> f64,
    seed: u64,
) -> Option<PairedDifference> {
    let shares: Vec<(f64, f64)> = pairs
        .iter()
        .map(|(first, other)| (of(first), of(other)))
        .collect();
    let column = |value: fn(&(f64, f64)) -> f64| shares.iter().map(value).collect::<Vec<f64>>();
    let differences = column(|(first, other)| other - first);
    Some(PairedDifference {
        metric: metric.to_owned(),
        first: mean(&column(|(first, _)| *first))?,
        other: mean(&column(|(_, other)| *other))?,
        difference: mean(&differences)?,
        bootstrap: MeanBootstrap::of(&differences, seed),
    })
}
