//! All runs.

use maud::{Markup, html};

use super::frame::{columns, encoded, live, page as framed};
use super::shelf::{Doing, Shelf, ShelvedRun};
use warpsmith_report::page::{UNKNOWN, duration, percent, table};
use warpsmith_report::plot::sparkline;

/// What tells best how a training run does, the first that it has.
const TELLING: [(&str, &str); 5] = [
    ("validation_pass_rate", "passed"),
    ("pass_rate", "passed"),
    ("validation_loss", "validation loss"),
    ("explained_variance", "explained"),
    ("loss", "loss"),
];

pub(super) fn page(shelf: &Shelf) -> Markup {
    let mut rows = Vec::new();
    for name in shelf.names() {
        let unreadable = || {
            let mut cells = vec![html! { (name) }, html! { "its log cannot be read" }];
            cells.resize_with(HEAD.len(), || html! {});
            cells
        };
        let row = shelf.look(&name, |run| cells(&name, run));
        rows.push(row.unwrap_or_else(unreadable));
    }
    let body = html! {
        @if rows.is_empty() {
            p { "No runs in " code { (shelf.folder().display()) } " yet. " code { "warpsmith bench" } ", " code { "rollout" } ", " code { "train" } " and " code { "optimize" } " make them." }
        } @else {
            (table("Runs, the latest first", &columns(&HEAD, &WORDS), &rows))
        }
    };
    framed("Runs", Some("/"), &live("runs", &body))
}

const HEAD: [&str; 8] = [
    "run",
    "verb",
    "policy or model",
    "device",
    "begun",
    "took",
    "progress",
    "result",
];
const WORDS: [&str; 5] = ["run", "verb", "policy or model", "device", "result"];

fn cells(name: &str, run: &ShelvedRun) -> Vec<Markup> {
    let doing = run.doing();
    let took = run.begun().zip(run.latest());
    let took = took.map(|(begun, latest)| latest.duration_since(begun).as_secs_f64().max(0.0));
    vec![
        html! { a href={ "/runs/" (encoded(name)) } { (name) } },
        html! { (run.config.verb.as_deref().unwrap_or(UNKNOWN)) },
        html! { (run.policy().unwrap_or(UNKNOWN)) },
        html! { (run.index.head.as_ref().map_or(UNKNOWN, |head| head.device.as_str())) },
        html! { @match run.begun() { Some(at) => (at.strftime("%Y-%m-%d %H:%M UTC")), None => (UNKNOWN) } },
        html! { (duration(took)) },
        html! { (how_far(run)) ", " span.good[doing == Doing::Running] { (doing.word()) } },
        result(run),
    ]
}

/// `12 of 594 steps`, `40 of 128 episodes`
fn how_far(run: &ShelvedRun) -> String {
    let of = |done: u64, planned: Option<u64>, noun: &str| match planned {
        Some(planned) => format!("{done} of {planned} {noun}"),
        None => format!("{done} {noun}"),
    };
    if let Some(progress) = run.progress() {
        return of(progress.step, progress.steps, "steps");
    }
    let metrics = run.index.metrics;
    let planned = metrics.map(|metrics| metrics.episodes_planned.into());
    of(run.index.totals.ended.into(), planned, "episodes")
}

fn result(run: &ShelvedRun) -> Markup {
    let totals = run.index.totals;
    if totals.ended > 0 {
        let share = f64::from(totals.passed) / f64::from(totals.ended);
        return html! { (percent(Some(share))) " passed" };
    }
    let steps = run.stages.last().map_or(&[][..], |stage| &stage.steps);
    for (name, words) in TELLING {
        let values: Vec<f64> = steps
            .iter()
            .filter_map(|step| step.values.get(name).copied())
            .collect();
        if let Some(last) = values.last() {
            let told = if name.ends_with("rate") {
                percent(Some(*last))
            } else {
                format!("{last:.4}")
            };
            return html! { (sparkline(&values)) " " (told) " " (words) };
        }
    }
    html! {}
}
