//! Tables of words, which a terminal and a page show alike.

mod groups;
mod summary;
mod tasks;
mod training;

use std::collections::BTreeSet;

use crate::metrics::{Budget, Comparison, Curve, PairedDifference, Share};
use crate::page::{UNKNOWN, duration, percent, times};
use crate::search::SearchHistory;
use crate::{Report, RunReport};

pub use tasks::tasks;
pub use training::progress as training_progress;

/// A table; the first column names the rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub title: String,
    pub head: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Whether a column is read rather than compared: it names the rows, or not all of it are numbers.
    pub fn is_words(&self, column: usize) -> bool {
        let number = |cell: &Cell| {
            let digits = cell.text.trim_start_matches(['+', '-']);
            cell.text == UNKNOWN || digits.starts_with(|first: char| first.is_ascii_digit())
        };
        column == 0
            || !self
                .rows
                .iter()
                .filter_map(|row| row.get(column))
                .all(number)
    }
}

/// What stands in a place of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    /// Where 95 % of resamples lie.
    pub range: Option<String>,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Self {
            text: text.into(),
            range: None,
        }
    }
}

/// Everything but the tasks themselves.
pub fn tables(report: &Report<'_>) -> Vec<Table> {
    let runs = &report.runs;
    let mut tables: Vec<Table> = training::training(runs).into_iter().collect();
    let searches = runs.iter().filter_map(|run| run.search);
    tables.extend(searches.flat_map(SearchHistory::tables));
    if !report.has_episodes() {
        tables.extend(left_out(runs));
        return tables;
    }
    tables.extend([summary::summary(runs), groups::counts(runs), fast_p(runs)]);
    tables.extend(comparisons(report));
    tables.extend(differences(report));
    tables.extend(
        runs.iter()
            .filter_map(|run| groups::groups(run, runs.len() > 1)),
    );
    tables.extend(compared(runs));
    tables.extend(rules(runs));
    tables.push(seconds(runs));
    tables.extend(left_out(runs));
    // Of what was not measured there is nothing to read.
    tables.retain(|table| !table.rows.is_empty());
    tables
}

fn head(first: &str, rest: impl IntoIterator<Item = impl Into<String>>) -> Vec<String> {
    let rest = rest.into_iter().map(Into::into);
    std::iter::once(first.to_owned()).chain(rest).collect()
}

fn row(name: impl Into<Cell>, cells: impl IntoIterator<Item = Cell>) -> Vec<Cell> {
    std::iter::once(name.into()).chain(cells).collect()
}

fn names(runs: &[RunReport<'_>]) -> Vec<String> {
    runs.iter().map(|run| run.name.to_owned()).collect()
}

fn fraction(share: Share) -> String {
    format!("{} of {}", share.count, share.of)
}

fn fast_p(runs: &[RunReport<'_>]) -> Table {
    const SHOWN: [f64; 8] = [0.0, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0];
    let at = |curve: &Curve, p: f64| {
        let mut points = curve.iter();
        points
            .find(|(at, _)| (at - p).abs() < 1e-9)
            .map(|(_, share)| *share)
    };
    let rows = runs.iter().flat_map(|run| {
        let curves = &run.metrics.fast_p;
        let both = [
            (
                "eager",
                run.metrics
                    .overall
                    .strict
                    .eager
                    .is_some()
                    .then_some(&curves.eager),
            ),
            ("compile", curves.compile.as_ref()),
        ];
        both.into_iter().filter_map(|(over, curve)| {
            let curve = curve?;
            let cells = SHOWN.map(|p| percent(at(curve, p)).into());
            Some(row(format!("{}, over {over}", run.name), cells))
        })
    });
    Table {
        title: "fast_p: correct and more than p times as fast".to_owned(),
        head: head("p", SHOWN.map(|p| p.to_string())),
        rows: rows.collect(),
    }
}

fn comparisons(report: &Report<'_>) -> Option<Table> {
    let (first, others) = report
        .runs
        .split_first()
        .filter(|(_, others)| !others.is_empty())?;
    let of = |(run, found): (&RunReport<'_>, &Comparison)| {
        let counts = [
            found.shared,
            found.gained,
            found.lost,
            found.quicker,
            found.slower,
        ];
        let counts = counts.map(|count| Cell::from(count.to_string()));
        row(
            run.name,
            counts
                .into_iter()
                .chain([times(found.times_as_quick).into()]),
        )
    };
    let columns = [
        "shared tasks",
        "gained",
        "lost",
        "quicker",
        "slower",
        "times as quick",
    ];
    Some(Table {
        title: format!("Beside {}", first.name),
        head: head("run", columns),
        rows: others.iter().zip(&report.comparisons).map(of).collect(),
    })
}

/// Shares over the tasks that another run has in common with the first.
fn differences(report: &Report<'_>) -> Option<Table> {
    let (first, others) = report.runs.split_first()?;
    let points = |share: f64| format!("{:+.1}", 100.0 * share);
    let of = |run: &RunReport<'_>, found: &PairedDifference| {
        let name = found.metric.replace('_', " ");
        let chance = found.bootstrap.as_ref();
        let difference = Cell {
            text: points(found.difference),
            range: chance.map(|chance| {
                let interval = chance.interval;
                format!("{} to {}", points(interval.low), points(interval.high))
            }),
        };
        let p_value = chance.map_or_else(
            || UNKNOWN.to_owned(),
            |chance| format!("{:.4}", chance.p_value),
        );
        let shares: [Cell; 2] = [found.first, found.other].map(|share| percent(Some(share)).into());
        row(
            format!("{}, {name}", run.name),
            shares.into_iter().chain([difference, p_value.into()]),
        )
    };
    let rows: Vec<Vec<Cell>> = (others.iter().zip(&report.comparisons))
        .flat_map(|(run, found)| found.differences.iter().map(move |one| of(run, one)))
        .collect();
    (!rows.is_empty()).then(|| Table {
        title: format!("Beside {}, means over shared tasks", first.name),
        head: head("share", [first.name, "this run", "points", "p"]),
        rows,
    })
}

fn rules(runs: &[RunReport<'_>]) -> Option<Table> {
    let rules: BTreeSet<&String> = runs
        .iter()
        .flat_map(|run| run.metrics.cheating.rules.keys())
        .collect();
    let count = |run: &RunReport<'_>, rule: &String| {
        run.metrics.cheating.rules.get(rule).copied().unwrap_or(0)
    };
    let of = |rule: &&String| {
        row(
            rule.as_str(),
            runs.iter().map(|run| count(run, rule).to_string().into()),
        )
    };
    (!rules.is_empty()).then(|| Table {
        title: "Broken rules".to_owned(),
        head: head("rule", names(runs)),
        rows: rules.iter().map(of).collect(),
    })
}

fn seconds(runs: &[RunReport<'_>]) -> Table {
    let parts: Vec<_> = runs.iter().map(|run| run.metrics.seconds.parts()).collect();
    let names_of_rows = Budget::default().parts().map(|(name, _)| name);
    let of = |(number, name): (usize, &'static str)| {
        row(
            name,
            parts
                .iter()
                .map(|parts| duration(Some(parts[number].1)).into()),
        )
    };
    Table {
        title: "Where the time went".to_owned(),
        head: head("part", names(runs)),
        rows: names_of_rows.into_iter().enumerate().map(of).collect(),
    }
}

fn compared(runs: &[RunReport<'_>]) -> Option<Table> {
    let rows = runs.iter().flat_map(|run| {
        run.compared.iter().map(|beside| {
            let mode = format!("{}, {}", run.name, beside.mode);
            row(
                mode,
                [fraction(beside.faster).into(), times(beside.speedup).into()],
            )
        })
    });
    let rows: Vec<Vec<Cell>> = rows.collect();
    (!rows.is_empty()).then(|| Table {
        title: "The best of each task beside other modes of torch.compile".to_owned(),
        head: head("mode", ["faster by 5 %", "geomean"]),
        rows,
    })
}

fn left_out(runs: &[RunReport<'_>]) -> Option<Table> {
    let rows = runs.iter().flat_map(|run| {
        let of = |(task, why): (&String, &String)| row(task, [run.name.into(), why.into()]);
        run.left_out.iter().map(of)
    });
    let rows: Vec<Vec<Cell>> = rows.collect();
    (!rows.is_empty()).then(|| Table {
        title: "Left out".to_owned(),
        head: head("task", ["run", "why"]),
        rows,
    })
}
