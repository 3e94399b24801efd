use std::collections::BTreeSet;

use super::{Cell, Table, fraction, head, names, row};
use crate::RunReport;
use crate::metrics::{Interval, ReportMetrics, Share, Way};
use crate::page::{duration, percent, runtime, times};

/// One row for each number, one column for each run.
pub(super) fn summary(runs: &[RunReport<'_>]) -> Table {
    let columns: Vec<Vec<(String, Cell)>> = runs.iter().map(|run| numbers(&run.metrics)).collect();
    // The names are the same for all.
    let names_of_rows = columns.first().into_iter().flatten().map(|(name, _)| name);
    let rows = names_of_rows.enumerate().map(|(number, name)| {
        row(
            name.as_str(),
            columns.iter().map(|column| column[number].1.clone()),
        )
    });
    Table {
        title: "Overall".to_owned(),
        head: head("number", names(runs)),
        rows: rows.chain(pass_at_k(runs)).collect(),
    }
}

/// The numbers of one run, in the order in which they are read.
fn numbers(of: &ReportMetrics) -> Vec<(String, Cell)> {
    let all = &of.overall;
    let mut found: Vec<(String, Cell)> = Vec::new();
    let mut add = |name: String, cell: Cell| found.push((name, cell));
    add("tasks".into(), all.tasks.to_string().into());
    add("episodes".into(), all.episodes.to_string().into());
    add(
        "compiled".into(),
        ranged(all.compiled.value(), of.intervals.compiled, percent),
    );
    add(
        "correct".into(),
        ranged(all.correct.value(), of.intervals.correct, percent),
    );
    let ways = [(Way::Eager, "eager"), (Way::Compile, "compile")];
    for (way, name) in ways {
        let speed = all.strict.over(way);
        let clearly = speed.and_then(|speed| speed.clearly_faster.value());
        let at_all = speed.and_then(|speed| speed.faster.value());
        let known = |cell: Cell| {
            // What passed and was not timed beside that is not none of it.
            if speed.is_none() && all.correct.count > 0 {
                "not measured".into()
            } else {
                cell
            }
        };
        add(
            format!("faster than {name} by 5 %"),
            known(ranged(clearly, of.intervals.faster(way), percent)),
        );
        add(
            format!("faster than {name} at all"),
            known(percent(at_all).into()),
        );
    }
    for (way, name) in ways {
        let speed = all.strict.over(way);
        let matched = all.matched.over(way).and_then(|speed| speed.geomean);
        let geomean = speed.and_then(|speed| speed.geomean);
        add(
            format!("speed-up over {name}, geomean"),
            ranged(geomean, of.intervals.speedup(way), times),
        );
        add("  at matched precision".into(), times(matched).into());
        add(
            "  median".into(),
            times(speed.and_then(|speed| speed.median)).into(),
        );
        add(
            "  geomean, a failure counted as 1".into(),
            times(speed.and_then(|speed| speed.geomean_all)).into(),
        );
    }
    add(
        "average runtime of correct".into(),
        runtime(all.average_runtime_us).into(),
    );
    add(
        "correct by the best attempt".into(),
        percent(of.attempts.best.correct.value()).into(),
    );
    add(
        "correct by the final attempt".into(),
        percent(of.attempts.last.correct.value()).into(),
    );
    let broken = Share {
        count: of.cheating.cheating + of.cheating.rejected,
        of: of.cheating.attempts,
    };
    add("attempts that broke a rule".into(), fraction(broken).into());
    add(
        "prompt tokens per task".into(),
        whole(of.cost.prompt_tokens_per_task).into(),
    );
    add(
        "completion tokens per task".into(),
        whole(of.cost.completion_tokens_per_task).into(),
    );
    add(
        "time per task".into(),
        duration(of.cost.seconds_per_task).into(),
    );
    found
}

fn ranged(
    value: Option<f64>,
    interval: Option<Interval>,
    words: fn(Option<f64>) -> String,
) -> Cell {
    let range = |interval: Interval| {
        format!(
            "{} to {}",
            words(Some(interval.low)),
            words(Some(interval.high))
        )
    };
    Cell {
        text: words(value),
        range: interval.map(range),
    }
}

fn whole(number: Option<f64>) -> String {
    number.map_or_else(|| "–".to_owned(), |number| format!("{number:.0}"))
}

fn pass_at_k(runs: &[RunReport<'_>]) -> Vec<Vec<Cell>> {
    let all = runs
        .iter()
        .flat_map(|run| &run.metrics.pass_at_k)
        .map(|one| one.k);
    // Of one sample it is the correct share.
    let wanted: BTreeSet<u32> = all.filter(|k| *k > 1).collect();
    let cell = |run: &RunReport<'_>, k: u32| {
        let found = run.metrics.pass_at_k.iter().find(|one| one.k == k);
        let interval = found.and_then(|one| one.interval);
        ranged(found.map(|one| one.value), interval, percent)
    };
    (wanted.into_iter())
        .map(|k| row(format!("pass@{k}"), runs.iter().map(|run| cell(run, k))))
        .collect()
}
