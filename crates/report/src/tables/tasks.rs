use std::collections::BTreeMap;

use super::{Cell, Table, fraction, head, row};
use crate::metrics::{Change, Comparison, Share};
use crate::page::{runtime, times};
use crate::{Report, RunReport, TaskReport};

/// One row for each task of any run.
pub fn tasks(report: &Report<'_>) -> Table {
    match &report.runs[..] {
        [run] => of_one(run),
        _ => of_several(report),
    }
}

fn of_one(run: &RunReport<'_>) -> Table {
    let of = |task: &TaskReport<'_>| {
        let correct = Share {
            count: task.correct,
            of: task.samples,
        };
        row(
            task.title(),
            [
                status(task).into(),
                fraction(correct).into(),
                runtime(task.runtime_us).into(),
                times(task.speedup_eager).into(),
                times(task.speedup_compile).into(),
            ],
        )
    };
    Table {
        title: "Tasks".to_owned(),
        head: head(
            "task",
            ["status", "correct", "runtime", "over eager", "over compile"],
        ),
        rows: run.tasks.iter().map(of).collect(),
    }
}

/// Only what can be compared: of each run one column, and after it how that differs from the first.
fn of_several(report: &Report<'_>) -> Table {
    let changes: Vec<BTreeMap<&str, Change>> = report.comparisons.iter().map(by_task).collect();
    let mut columns = Vec::new();
    for (number, run) in report.runs.iter().enumerate() {
        columns.push(run.name.to_owned());
        columns.extend((number > 0).then(|| "change".to_owned()));
    }
    let rows = report.by_task().into_iter().map(|task| {
        let mut cells: Vec<Cell> = Vec::new();
        for (number, cell) in task.cells.iter().enumerate() {
            cells.push(cell.map_or("–".into(), in_a_word));
            let change = number
                .checked_sub(1)
                .map(|other| changes[other].get(task.id));
            cells.extend(
                change.map(|change| change.map_or("–".into(), |change| words(*change).into())),
            );
        }
        row(task.title, cells)
    });
    Table {
        title: "Tasks: speed-up over eager".to_owned(),
        head: head("task", columns),
        rows: rows.collect(),
    }
}

fn by_task(found: &Comparison) -> BTreeMap<&str, Change> {
    found
        .tasks
        .iter()
        .map(|one| (one.task.as_str(), one.change))
        .collect()
}

fn status(task: &TaskReport<'_>) -> &'static str {
    task.status.unwrap_or("nothing judged")
}

fn in_a_word(task: &TaskReport<'_>) -> Cell {
    match task.speedup_eager {
        Some(_) => times(task.speedup_eager).into(),
        None => status(task).into(),
    }
}

fn words(change: Change) -> String {
    match change {
        Change::Gained => "gained".to_owned(),
        Change::Lost => "lost".to_owned(),
        Change::Quicker { times } => format!("{times:.2}x quicker"),
        Change::Slower { times } => format!("{times:.2}x slower"),
        Change::Same => "same".to_owned(),
        Change::Neither => "–".to_owned(),
        Change::OtherDevice => "other device".to_owned(),
        Change::OtherTask => "another task".to_owned(),
        Change::Missing => "in one only".to_owned(),
    }
}
