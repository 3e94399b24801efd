//! The rows of the benchmark, and how long each stage of a judgement takes.

use serde::Serialize;
use warpsmith_schema::StageSeconds;

/// One line: what, how much, and what was to be reached.
#[derive(Debug, Clone, Serialize)]
pub struct BenchRow {
    pub what: String,
    pub value: f64,
    pub unit: &'static str,
    pub goal: Option<BenchGoal>,
    pub note: String,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BenchGoal {
    AtMost(f64),
    AtLeast(f64),
}

/// How long a stage took, over all judgements that reached it.
#[derive(Debug, Clone, Serialize)]
pub struct StageLatency {
    pub name: &'static str,
    pub judgements: usize,
    pub p50_s: f64,
    pub p99_s: f64,
}

pub(super) fn stages(judgements: &[StageSeconds]) -> Vec<StageLatency> {
    type Part = fn(&StageSeconds) -> f64;
    let parts: [(&str, Part); 4] = [
        ("compile", |seconds| seconds.compile),
        ("verify", |seconds| seconds.verify),
        ("time", |seconds| seconds.time),
        ("total", |seconds| seconds.total),
    ];
    parts
        .iter()
        .map(|(name, part)| {
            let mut values: Vec<f64> = judgements.iter().map(part).filter(|s| *s > 0.0).collect();
            values.sort_by(f64::total_cmp);
            StageLatency {
                name,
                judgements: values.len(),
                p50_s: quantile(&values, 0.50),
                p99_s: quantile(&values, 0.99),
            }
        })
        .collect()
}

/// Of sorted values, the nearest; 0 of none.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let index = (share * last as f64).round() as usize;
    sorted.get(index).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=101).map(f64::from).collect();
        let found = [0.5, 0.99].map(|share| quantile(&values, share) as u32);
        assert_eq!((found, quantile(&[], 0.5) as u32), ([51, 100], 0));
    }
}
