use std::collections::BTreeSet;

use super::{Cell, Table, head, names, row};
use crate::page::{UNKNOWN, percent};
use crate::training::{ASKED_FIRST, TrainingStep, curves};
use crate::{RunReport, TrainingProgress};

/// What training came to; nothing where no run trained.
pub(super) fn training(runs: &[RunReport<'_>]) -> Option<Table> {
    let all: BTreeSet<&str> = runs
        .iter()
        .flat_map(|run| run.training)
        .flat_map(|step| step.values.keys().map(String::as_str))
        .collect();
    let asked = ASKED_FIRST.iter().flat_map(|(_, names)| names.iter());
    let wanted: Vec<&str> = asked.copied().filter(|name| all.contains(name)).collect();
    if wanted.is_empty() {
        return None;
    }
    let title = "Training".to_owned();
    if let [run] = runs {
        let of = |name: &&str| row(name.replace('_', " "), course(name, run.training));
        return Some(Table {
            title,
            head: head("number", ["first", "last", "lowest", "highest"]),
            rows: wanted.iter().map(of).collect(),
        });
    }
    let steps = row(
        "steps",
        runs.iter().map(|run| progress(run.training).into()),
    );
    let of = |name: &&str| {
        let last = |run: &RunReport<'_>| {
            let [_, last, ..] = course(name, run.training);
            last
        };
        row(name.replace('_', " "), runs.iter().map(last))
    };
    Some(Table {
        title: "Training, after the last step".to_owned(),
        head: head("number", names(runs)),
        rows: std::iter::once(steps)
            .chain(wanted.iter().map(of))
            .collect(),
    })
}

/// `9 of 9 steps`
pub fn progress(steps: &[TrainingStep]) -> String {
    match TrainingProgress::of(steps) {
        None => UNKNOWN.to_owned(),
        Some(found) => match found.steps {
            Some(planned) => format!("{} of {planned}", found.step),
            None => found.step.to_string(),
        },
    }
}

/// Where a number began and ended, and how far it went.
fn course(name: &str, steps: &[TrainingStep]) -> [Cell; 4] {
    let values: Vec<f64> = curves(steps)
        .remove(name)
        .into_iter()
        .flatten()
        .map(|(_, value)| value)
        .collect();
    let lowest = values.iter().copied().reduce(f64::min);
    let highest = values.iter().copied().reduce(f64::max);
    let ends = [values.first().copied(), values.last().copied()];
    let [first, last] = ends;
    [first, last, lowest, highest].map(|value| told(name, value).into())
}

/// A share in percent, anything else with the digits it needs.
fn told(name: &str, value: Option<f64>) -> String {
    let is_share = name.ends_with("_rate") && name != "learning_rate" || name.ends_with("_share");
    match value {
        Some(share) if is_share => percent(Some(share)),
        Some(value) if value != 0.0 && value.abs() < 1e-3 => format!("{value:.2e}"),
        Some(value) if value.abs() >= 1000.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.4}"),
        None => UNKNOWN.to_owned(),
    }
}
