//! The report as one page that needs nothing else.

mod overview;
mod plots;
mod tasks;
mod verdict;

pub use overview::{EpisodeAddress, overview};
pub use plots::training_plots;
pub use verdict::{line as verdict_line, verdict, words as verdict_words};

use maud::{Markup, html};
use warpsmith_store::RunIndex;

use crate::page::{self, Column, Section, count, page};
use crate::search::SearchHistory;
use crate::tables::{tables, training_progress};
use crate::{Report, RunReport, Table};

pub fn html(report: &Report<'_>) -> String {
    let title = match &report.runs[..] {
        [run] => format!("Report of {}", run.name),
        runs => format!("Report of {}", count(runs.len(), "run")),
    };
    let summary = Section {
        title: "Summary",
        body: html! { div.tables { @for table in tables(report) { (shown(&table)) } } },
    };
    let training = plots::training(report).map(|body| Section {
        title: "Training",
        body,
    });
    let searches: Vec<&SearchHistory> = report.runs.iter().filter_map(|run| run.search).collect();
    let mut sections = vec![summary];
    // Anchors of candidates are of one run.
    if let [search] = searches[..] {
        sections.push(Section {
            title: "Search",
            body: search.html(),
        });
    }
    if report.has_episodes() {
        sections.push(Section {
            title: "Overview",
            body: html! { @for run in &report.runs { (overview_of(run, report.runs.len() > 1)) } },
        });
        sections.push(Section {
            title: "Plots",
            body: plots::plots(report),
        });
    }
    sections.extend(training);
    if report.has_episodes() {
        sections.push(Section {
            title: "Tasks",
            body: tasks::tasks(report),
        });
    }
    page(&title, &lead(report), &sections).into_string()
}

/// As the dashboard shows it, with links within this page.
fn overview_of(run: &RunReport<'_>, named: bool) -> Markup {
    let mut index = RunIndex::new(run.folder);
    // What cannot be read again has been reported from all the same.
    if index.refresh().is_err() || index.totals.ended == 0 {
        return html! {};
    }
    html! {
        @if named { h3 { (run.name) } }
        (overview(&index, &|row| format!("#{}", tasks::place(&row.id.task))))
    }
}

/// What was run, and what to keep in mind.
fn lead(report: &Report<'_>) -> Markup {
    let list = |words: &mut dyn Iterator<Item = &str>| words.collect::<Vec<_>>().join(", ");
    html! {
        @for run in &report.runs {
            @if report.runs.len() > 1 { h2 { (run.name) } }
            dl {
                @if run.metrics.overall.episodes > 0 {
                    (page::fact("policy", &html! { (list(&mut run.policies.iter().copied())) }))
                    (page::fact("mode", &html! { (list(&mut run.modes.iter().copied())) }))
                    (page::fact("device", &html! { (list(&mut run.devices.iter().copied())) }))
                }
                @if !run.training.is_empty() {
                    (page::fact("steps", &html! { (training_progress(run.training)) }))
                }
                @if let Some(start) = &run.start {
                    (page::fact("started from", &html! { (start.words()) ", " (verdict_line(start.verdict)) }))
                }
                @if let Some(result) = run.result { (page::fact("result, measured afresh", &verdict_line(result))) }
                (page::fact("folder", &html! { code { (run.folder.display()) } }))
            }
            @for note in &run.notes { p.note { strong { "Note: " } (note) } }
        }
    }
}

fn shown(table: &Table) -> Markup {
    let cell = |cell: &crate::Cell| {
        html! {
            (cell.text)
            @if let Some(range) = &cell.range { span.range { (range) } }
        }
    };
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
    page::table(&table.title, &columns, &rows)
}
