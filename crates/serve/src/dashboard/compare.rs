//! Several runs beside each other: is one better than another, and by how much?

use std::path::PathBuf;

use maud::{Markup, html};
use warpsmith_report::metrics::{Comparison, PairedDifference};
use warpsmith_report::page::{Column, count, times};
use warpsmith_report::{self as report, Report, RunReport, Table, TrainingStep, training_plots};

use super::frame::{encoded, page as framed};
use super::shelf::Shelf;

/// More cannot be told apart, and each is read whole.
const MOST: usize = 6;

/// What the address asks: `run` as often as there are runs.
pub(super) fn asked(query: Vec<(String, String)>) -> Vec<String> {
    let mut runs: Vec<String> = Vec::new();
    for (name, value) in query {
        if name == "run" && !runs.contains(&value) {
            runs.push(value);
        }
    }
    runs
}

pub(super) fn page(shelf: &Shelf, names: &[String]) -> Option<Markup> {
    let chosen = &names[..names.len().min(MOST)];
    let mut curves: Vec<(String, Vec<TrainingStep>)> = Vec::new();
    let mut folders: Vec<(String, PathBuf, bool)> = Vec::new();
    for name in chosen {
        let found = shelf.look(name, |run| {
            for stage in &run.stages {
                let title = match stage.name.as_str() {
                    "" => name.clone(),
                    stage => format!("{name}, {stage}"),
                };
                curves.push((title, stage.steps.clone()));
            }
            (run.folder().to_path_buf(), run.index.totals.ended > 0)
        });
        let (folder, has_episodes) = found?;
        folders.push((name.clone(), folder, has_episodes));
    }
    let mut notes = Vec::new();
    if names.len() > MOST {
        notes.push(format!(
            "Only the first {MOST} of {} runs are shown.",
            names.len()
        ));
    }
    let mut runs = Vec::new();
    for (name, folder, _) in folders.iter().filter(|(.., has_episodes)| *has_episodes) {
        match report::read(folder) {
            Ok(run) => runs.push(run),
            Err(error) => notes.push(format!("{name}: {error}")),
        }
    }
    if let Err(failure) = report::same_rules(&runs) {
        notes.push(failure.message);
        runs.clear();
    }
    let report = Report::of(&runs, None, 0);
    let stages: Vec<(&str, &[TrainingStep])> = curves
        .iter()
        .map(|(name, steps)| (name.as_str(), steps.as_slice()))
        .collect();
    let training = (!stages.is_empty())
        .then(|| training_plots(&stages))
        .flatten();
    let body = html! {
        p {
            "Compared with the first: "
            @for (number, name) in chosen.iter().enumerate() {
                @if number > 0 { ", " }
                a href={ "/runs/" (encoded(name)) } { (name) }
            }
            "."
        }
        @if chosen.len() < 2 { p { "Choose two runs or more on " a href="/" { "the list of runs" } "." } }
        @for note in &notes { p.note { strong { "Note: " } (note) } }
        @if report.runs.len() > 1 { (answers(&report)) }
        @if !report.runs.is_empty() {
            h2 { "Numbers" }
            @for run in &report.runs { @for note in &run.notes { p.note { strong { (run.name) ": " } (note) } } }
            div.tables { @for table in report::tables(&report) { (shown(&table)) } }
            @if report.runs.len() > 1 { h2 { "Tasks" } (shown(&report::table_of_tasks(&report))) }
        }
        @if let Some(plots) = training { h2 { "Training" } (plots) }
    };
    Some(framed("Comparison", None, &body))
}

fn shown(table: &Table) -> Markup {
    let cell = |cell: &report::Cell| html! { (cell.text) @if let Some(range) = &cell.range { span.range { (range) } } };
    let rows: Vec<Vec<Markup>> = table
        .rows
        .iter()
        .map(|row| row.iter().map(cell).collect())
        .collect();
    let columns: Vec<Column<'_>> = (table.head.iter().enumerate())
        .map(|(number, name)| Column {
            name,
            words: table.is_words(number),
        })
        .collect();
    report::page::table(&table.title, &columns, &rows)
}

/// In a sentence each: is it better?
fn answers(report: &Report<'_>) -> Markup {
    let Some((first, others)) = report.runs.split_first() else {
        return html! {};
    };
    html! {
        h2 { "Is it better?" }
        @for (run, found) in others.iter().zip(&report.comparisons) { (answer(first, run, found)) }
    }
}

fn answer(first: &RunReport<'_>, run: &RunReport<'_>, found: &Comparison) -> Markup {
    html! {
        h3 { (run.name) " against " (first.name) }
        @if found.shared == 0 { p { "They have no task in common, so nothing can be compared." } }
        @else {
            ul {
                @for difference in &found.differences { li { (sentence(difference)) } }
                li {
                    (count(found.shared, "task")) " in both: " (found.gained) " gained, " (found.lost) " lost, "
                    (found.quicker) " quicker and " (found.slower) " slower by more than 5 %"
                    @if found.times_as_quick.is_some() { "; over those that both solved it is " (times(found.times_as_quick)) " as quick (geometric mean)" }
                    "."
                }
            }
        }
    }
}

fn sentence(found: &PairedDifference) -> Markup {
    let name = found.metric.replace('_', " ");
    let points = |share: f64| format!("{:+.1}", 100.0 * share);
    let (class, verdict, interval) = match &found.bootstrap {
        None => (None, "too few tasks to tell", None),
        Some(chance) => {
            let interval = chance.interval;
            let words = match (interval.low > 0.0, interval.high < 0.0) {
                (true, _) => (Some("good"), "better"),
                (_, true) => (Some("bad"), "worse"),
                _ => (None, "no difference can be told"),
            };
            (words.0, words.1, Some(interval))
        }
    };
    html! {
        strong class=[class] { (name) ": " (verdict) }
        ", " (points(found.difference)) " points"
        @if let Some(interval) = interval { " (95 % of resamples: " (points(interval.low)) " to " (points(interval.high)) ")" }
        ", " (report::page::percent(Some(found.first))) " before and " (report::page::percent(Some(found.other))) " here."
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_asked_for_by_name() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let query = vec![
            pair("run", "a"),
            pair("x", "b"),
            pair("run", "c"),
            pair("run", "a"),
        ];
        assert_eq!(asked(query), ["a", "c"]);
        let runs = tempfile::tempdir().unwrap();
        let shelf = Shelf::new(runs.path().to_path_buf());
        assert!(page(&shelf, &["none".to_owned()]).is_none());
    }
}
