//! Whether a run is still worth its electricity.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a number must not do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alarm {
    /// Stay far above the lowest it has come down to: a loss that falls apart.
    Rise,
    /// Stay near nothing, measured by the highest it has come up to: an entropy that is gone does not come back.
    Collapse,
    /// Jump far above what was usual: a policy that one or two updates have thrown far from where it was.
    Spike,
}

/// Stops a run that is getting worse instead of better. Part of a checkpoint, so that a resumed run is judged by all of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Guard {
    levels: BTreeMap<String, BTreeMap<Alarm, Level>>,
}

/// How a number has done.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Level {
    /// Over about the last ten steps, those with an alarm aside.
    recent: f64,
    lowest: f64,
    highest: f64,
    /// Steps in a row that gave the alarm.
    alarmed: u32,
}

/// How much of what was known one step leaves.
const MEMORY: f64 = 0.9;

impl Alarm {
    /// From this on a number is bad.
    fn bound(self, level: &Level) -> f64 {
        match self {
            Self::Rise => 3.0 * level.lowest + 0.5,
            Self::Collapse => 0.01 * level.highest,
            Self::Spike => (10.0 * level.recent).max(0.5),
        }
    }

    fn is_bad(self, value: f64, bound: f64) -> bool {
        match self {
            Self::Rise | Self::Spike => value > bound,
            Self::Collapse => value < bound,
        }
    }

    /// So many steps in a row, not one bad batch. A policy that is thrown far away twice has little left to lose.
    fn patience(self) -> u32 {
        match self {
            Self::Rise | Self::Collapse => 5,
            Self::Spike => 2,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Rise => "far above the lowest it had come down to: the limit is",
            Self::Collapse => "collapsed from what it had been: the limit is",
            Self::Spike => "far above what was usual: the limit is",
        }
    }
}

impl Guard {
    /// Takes in a number, and says why the run should stop, if it should.
    pub fn hear(&mut self, name: &'static str, alarm: Alarm, value: f64) -> Option<String> {
        if !value.is_finite() {
            return Some(format!("{name} is {value}"));
        }
        let first = Level {
            recent: value,
            lowest: value,
            highest: value,
            alarmed: 0,
        };
        let levels = self.levels.entry(name.to_owned()).or_default();
        let level = levels.entry(alarm).or_insert(first);
        let bound = alarm.bound(level);
        if alarm.is_bad(value, bound) {
            level.alarmed += 1;
        } else {
            level.alarmed = 0;
            level.recent = MEMORY * level.recent + (1.0 - MEMORY) * value;
            level.lowest = level.lowest.min(level.recent);
            level.highest = level.highest.max(level.recent);
        }
        let patience = alarm.patience();
        (level.alarmed >= patience).then(|| {
            let words = alarm.words();
            format!("{name} is {value:.4}, for {patience} steps {words} {bound:.4}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(alarm: Alarm, values: impl IntoIterator<Item = f64>) -> Option<usize> {
        let mut guard = Guard::default();
        let mut steps = values.into_iter().enumerate();
        steps.find_map(|(step, value)| guard.hear("loss", alarm, value).map(|_| step))
    }

    #[test]
    fn a_run_that_falls_apart_is_stopped_and_a_noisy_one_is_not() {
        let rise = |values: Vec<f64>| heard(Alarm::Rise, values);
        let falling: Vec<f64> = (0..40).map(|step| 2.0 / f64::from(step + 1)).collect();
        assert_eq!(rise(falling.clone()), None);
        let bad = |count: usize, then: &[f64]| [&falling, &vec![9.0; count][..], then].concat();
        assert_eq!(rise(bad(4, &[0.5])), None);
        assert_eq!(rise(bad(5, &[])), Some(44));
        let noisy = (0..200).map(|step| 1.0 + f64::from(step % 7).sin());
        assert_eq!(rise(noisy.collect()), None);
        assert_eq!(rise(vec![1.0, f64::NAN]), Some(1));
    }

    #[test]
    fn an_entropy_that_is_gone_stops_a_run_and_one_that_falls_does_not() {
        let falling = (0..60).map(|step| 0.8 * 0.95_f64.powi(step));
        assert_eq!(heard(Alarm::Collapse, falling.clone()), None);
        assert_eq!(
            heard(Alarm::Collapse, falling.clone().chain([0.001; 5])),
            Some(64)
        );
        let once = falling.chain([0.001, 0.001, 0.1, 0.001, 0.001]);
        assert_eq!(heard(Alarm::Collapse, once), None);
    }

    #[test]
    fn a_policy_thrown_far_away_twice_stops_a_run() {
        let calm = || (0..30).map(|step| 0.01 + 0.002 * f64::from(step % 5));
        assert_eq!(heard(Alarm::Spike, calm()), None);
        assert_eq!(heard(Alarm::Spike, calm().chain([1.5, 0.02, 1.5])), None);
        // The first spike is no part of what is usual: the second is one as well.
        assert_eq!(heard(Alarm::Spike, calm().chain([1.5, 1.2])), Some(31));
        // Ten times nearly nothing is still nearly nothing.
        assert_eq!(heard(Alarm::Spike, calm().chain([0.3; 5])), None);
    }
}
