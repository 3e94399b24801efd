//! A run that trains, as its `metrics.jsonl` tells it.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use serde_json::Value;
use warpsmith_store::{EventLog, StoreError};

pub(crate) const TRAINING: &str = "metrics.jsonl";
/// The remaining time is taken from the steps that ended lately.
const LATELY: usize = 10;

/// Numbers of training in the order in which they are asked for: is it learning, how far does the policy move, how quick is
/// it. Others follow by name.
pub(crate) const ASKED_FIRST: [(&str, &[&str]); 3] = [
    (
        "Is it learning?",
        &[
            "loss",
            "validation_loss",
            "reward",
            "pass_rate",
            "faster_rate",
            "validation_reward",
            "validation_pass_rate",
            "validation_faster_rate",
            "value_loss",
            "explained_variance",
        ],
    ),
    (
        "How far does the policy move?",
        &[
            "entropy",
            "sampled_entropy",
            "kl",
            "kl_step",
            "clip_fraction_low",
            "clip_fraction_high",
            "mismatch_mean",
            "grad_norm",
            "learning_rate",
        ],
    ),
    (
        "How fast is it, and what does it write?",
        &[
            "tokens_per_second",
            "tokens_per_second_generate",
            "seconds_collect",
            "seconds_learn",
            "judgements_per_minute",
            "length",
            "cut_share",
            "gpu_memory_gb",
        ],
    ),
];

/// A line of `metrics.jsonl`: a step and numbers by name.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingStep {
    pub step: u64,
    /// So many are planned, where the line says it.
    pub steps: Option<u64>,
    /// When it ended.
    pub at: Option<Timestamp>,
    pub values: BTreeMap<String, f64>,
}

impl TrainingStep {
    /// What has no step, and fields that are no numbers, are not ours to draw.
    fn of(line: &Value) -> Option<Self> {
        let values = line.as_object()?.iter();
        let values = values.filter(|(name, _)| !["step", "steps"].contains(&name.as_str()));
        Some(Self {
            step: line["step"].as_u64()?,
            steps: line["steps"].as_u64(),
            at: line["at"].as_str().and_then(|at| at.parse().ok()),
            values: values
                .filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)))
                .collect(),
        })
    }
}

/// The steps in a run's folder, in order; none where nothing was trained.
pub fn training_steps(folder: &Path) -> Result<Vec<TrainingStep>, StoreError> {
    let mut steps = Vec::new();
    EventLog::for_each_line(&folder.join(TRAINING), |line: Value| {
        steps.extend(TrainingStep::of(&line));
    })?;
    Ok(steps)
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainingProgress {
    pub step: u64,
    pub steps: Option<u64>,
    /// From the steps that ended lately; unknown before the second.
    pub remaining_s: Option<f64>,
}

impl TrainingProgress {
    /// `None` before the first line.
    pub fn of(steps: &[TrainingStep]) -> Option<Self> {
        let last = steps.last()?;
        let (step, planned) = (last.step, last.steps);
        let lately = &steps[steps.len().saturating_sub(LATELY + 1)..];
        let remaining_s = || {
            let first = lately.first()?;
            let made = step.checked_sub(first.step).filter(|made| *made > 0)?;
            let took = last.at?.duration_since(first.at?).as_secs_f64();
            Some(took / made as f64 * planned?.saturating_sub(step) as f64)
        };
        Some(Self {
            step,
            steps: planned,
            remaining_s: remaining_s(),
        })
    }

    pub fn is_done(&self) -> bool {
        self.steps.is_some_and(|steps| self.step >= steps)
    }
}

/// Each number over the steps that have it.
pub fn curves(steps: &[TrainingStep]) -> BTreeMap<&str, Vec<(f64, f64)>> {
    let mut curves: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for step in steps {
        for (name, value) in &step.values {
            curves
                .entry(name)
                .or_default()
                .push((step.step as f64, *value));
        }
    }
    curves
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn steps(lines: &[Value]) -> Vec<TrainingStep> {
        lines.iter().filter_map(TrainingStep::of).collect()
    }

    #[test]
    fn numbers_by_step() {
        let steps = steps(&[
            json!({ "step": 1, "steps": 2, "loss": 2.5, "note": "warm", "reward": null }),
            json!({ "loss": 9.0 }),
            json!({ "step": 2, "steps": 2, "loss": 2.0, "reward": -1 }),
        ]);
        let expected = [
            ("loss", vec![(1.0, 2.5), (2.0, 2.0)]),
            ("reward", vec![(2.0, -1.0)]),
        ];
        assert_eq!(curves(&steps), expected.into());
        assert!(TrainingProgress::of(&steps).unwrap().is_done());
    }

    #[test]
    fn remaining_time_comes_from_what_ended_lately() {
        // The first step took an hour, the others two seconds each.
        let line = |step: u64| {
            let at = Timestamp::from_second(if step == 0 { 0 } else { 3600 + 2 * step as i64 });
            json!({ "step": step, "steps": 40, "at": at.unwrap().to_string() })
        };
        let lines: Vec<Value> = (0..=20).map(line).collect();
        let at = |count: usize| TrainingProgress::of(&steps(&lines[..count]));
        assert_eq!(at(0), None);
        assert_eq!(at(1).unwrap().remaining_s, None);
        assert_eq!(at(21).unwrap().remaining_s, Some(40.0));
        // Lines of earlier versions do not say when.
        let old = [
            json!({ "step": 1, "loss": 1.0 }),
            json!({ "step": 2, "loss": 1.0 }),
        ];
        let old = TrainingProgress::of(&steps(&old)).unwrap();
        assert_eq!((old.remaining_s, old.is_done()), (None, false));
    }
}
