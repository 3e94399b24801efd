//! The table, in Markdown.

use warpsmith_judge::benchmark::{BenchGoal, BenchRow, StageLatency};

/// `reached`, or by how much it was missed.
fn words(goal: BenchGoal, value: f64) -> String {
    let (goal, reached, off) = match goal {
        BenchGoal::AtMost(goal) => (format!("<= {goal}"), value <= goal, value / goal - 1.0),
        BenchGoal::AtLeast(goal) => (format!(">= {goal}"), value >= goal, 1.0 - value / goal),
    };
    if reached {
        format!("{goal} | reached")
    } else {
        format!("{goal} | missed by {:.0} %", off * 100.0)
    }
}

pub(super) fn markdown(title: &str, rows: &[BenchRow], stages: &[StageLatency]) -> Vec<String> {
    let mut lines = vec![
        title.to_owned(),
        String::new(),
        "| what | measured | goal | | note |".to_owned(),
        "|---|---|---|---|---|".to_owned(),
    ];
    for row in rows {
        let goal = row
            .goal
            .map_or_else(|| "- | -".to_owned(), |goal| words(goal, row.value));
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
        assert_eq!(words(BenchGoal::AtMost(8.0), 6.0), "<= 8 | reached");
        assert_eq!(words(BenchGoal::AtMost(8.0), 10.0), "<= 8 | missed by 25 %");
        assert_eq!(
            words(BenchGoal::AtLeast(30.0), 24.0),
            ">= 30 | missed by 20 %"
        );
    }
}
