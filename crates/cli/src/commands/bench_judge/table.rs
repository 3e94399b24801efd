//! The table, in Markdown.

use serde::Serialize;
use warpsmith_schema::StageSeconds;

/// One line: what, how much, and what was to be reached.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) value: f64,
    pub(crate) unit: &'static str,
    pub(crate) goal: Option<Goal>,
    pub(crate) note: String,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

/// How long a stage took, over all judgements that reached it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Stage {
    name: &'static str,
    judgements: usize,
    p50_s: f64,
    p99_s: f64,
}

impl Goal {
    /// `reached`, or by how much it was missed.
    fn words(self, value: f64) -> String {
        let (goal, reached, off) = match self {
            Self::AtMost(goal) => (format!("<= {goal}"), value <= goal, value / goal - 1.0),
            Self::AtLeast(goal) => (format!(">= {goal}"), value >= goal, 1.0 - value / goal),
        };
        if reached {
            format!("{goal} | reached")
        } else {
            format!("{goal} | missed by {:.0} %", off * 100.0)
        }
    }
}

pub(crate) fn stages(judgements: &[StageSeconds]) -> Vec<Stage> {
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
            Stage {
                name,
                judgements: values.len(),
                p50_s: quantile(&values, 0.50),
                p99_s: quantile(&values, 0.99),
            }
        })
        .collect()
}

/// Of sorted values, the nearest; 0 of none.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let index = (share * last as f64).round() as usize;
    sorted.get(index).copied().unwrap_or(0.0)
}

pub(crate) fn markdown(title: &str, rows: &[Row], stages: &[Stage]) -> Vec<String> {
    let mut lines = vec![
        title.to_owned(),
        String::new(),
        "| what | measured | goal | | note |".to_owned(),
        "|---|---|---|---|---|".to_owned(),
    ];
    for row in rows {
        let goal = row
            .goal
            .map_or_else(|| "- | -".to_owned(), |goal| goal.words(row.value));
        lines.push(format!(
            "| {} | {:.1} {} | {goal} | {} |",
            row.what, row.value, row.unit, row.note
        ));
    }
    lines.extend([
        String::new(),
        "| stage | judgements | p50 | p99 |".to_owned(),
        "|---|---|---|---|".to_owned(),
    ]);
    for stage in stages {
        lines.push(format!(
            "| {} | {} | {:.2} s | {:.2} s |",
            stage.name, stage.judgements, stage.p50_s, stage.p99_s
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_says_by_how_much_it_was_missed() {
        assert_eq!(Goal::AtMost(8.0).words(6.0), "<= 8 | reached");
        assert_eq!(Goal::AtMost(8.0).words(10.0), "<= 8 | missed by 25 %");
        assert_eq!(Goal::AtLeast(30.0).words(24.0), ">= 30 | missed by 20 %");
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=101).map(f64::from).collect();
        let found = [0.5, 0.99].map(|share| quantile(&values, share) as u32);
        assert_eq!((found, quantile(&[], 0.5) as u32), ([51, 100], 0));
    }
}
