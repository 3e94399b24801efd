use std::collections::BTreeMap;

use serde_json::Value;

/// A line of `metrics.jsonl`: a step and numbers by name.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainingStep {
    pub step: u64,
    pub values: BTreeMap<String, f64>,
}

impl TrainingStep {
    /// What has no step, and fields that are no numbers, are not ours to draw.
    pub(super) fn of(line: &Value) -> Option<Self> {
        let values = line.as_object()?.iter().filter(|(name, _)| *name != "step");
        Some(Self {
            step: line["step"].as_u64()?,
            values: values
                .filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)))
                .collect(),
        })
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

    #[test]
    fn numbers_by_step() {
        let lines = [
            json!({ "step": 1, "loss": 2.5, "note": "warm", "reward": null }),
            json!({ "loss": 9.0 }),
            json!({ "step": 2, "loss": 2.0, "reward": -1 }),
        ];
        let steps: Vec<TrainingStep> = lines.iter().filter_map(TrainingStep::of).collect();
        let expected = [
            ("loss", vec![(1.0, 2.5), (2.0, 2.0)]),
            ("reward", vec![(2.0, -1.0)]),
        ];
        assert_eq!(curves(&steps), expected.into());
    }
}
