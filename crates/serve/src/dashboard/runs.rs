//! All runs: filtered, sorted and searched; what runs now is on top.

use jiff::Timestamp;
use maud::{Markup, html};
use serde::Deserialize;

use super::frame::{encoded, live, page as framed};
use super::now;
use super::shelf::{Doing, Shelf, ShelvedRun};
use warpsmith_report::page::{UNKNOWN, count, duration, percent, scrolling, times};
use warpsmith_report::plot::sparkline;

/// Runs on one page.
const A_PAGE: usize = 50;
/// Points of the curve in a row.
const POINTS: usize = 30;

/// What tells best how a training run does, the first that it has.
const TELLING: [(&str, &str); 5] = [
    ("validation_pass_rate", "passed"),
    ("pass_rate", "passed"),
    ("validation_loss", "validation loss"),
    ("explained_variance", "explained"),
    ("loss", "loss"),
];

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    /// A part of a run's name, policy or device.
    q: String,
    verb: String,
    state: String,
    /// A column; with `-` before it the other way round.
    sort: String,
    page: usize,
}

/// A run in the list.
struct Row {
    name: String,
    verb: Option<String>,
    policy: Option<String>,
    device: Option<String>,
    begun: Option<Timestamp>,
    took_s: Option<f64>,
    doing: Doing,
    how_far: String,
    /// The share that passed, where that is what came out.
    share: Option<f64>,
    result: Markup,
}

const COLUMNS: [(&str, &str); 8] = [
    ("name", "run"),
    ("verb", "verb"),
    ("policy", "policy or model"),
    ("device", "device"),
    ("begun", "begun"),
    ("took", "took"),
    ("state", "progress"),
    ("result", "result"),
];

pub(super) fn page(shelf: &Shelf, asked: &Asked) -> Markup {
    let (mut rows, mut unreadable) = (Vec::new(), Vec::new());
    for name in shelf.names() {
        match shelf.look(&name, |run| Row::of(&name, run)) {
            Some(row) => rows.push(row),
            None => unreadable.push(name),
        }
    }
    if rows.is_empty() && unreadable.is_empty() {
        let body = html! {
            p { "No runs in " code { (shelf.folder().display()) } " yet. " code { "warpsmith bench" } ", " code { "rollout" } ", " code { "train" } " and " code { "optimize" } " make them." }
        };
        return framed("Runs", Some("/"), &live("runs", &body));
    }
    let running: Vec<&Row> = rows
        .iter()
        .filter(|row| row.doing == Doing::Running)
        .collect();
    let now = html! {
        @for row in &running {
            @if let Some(card) = shelf.look(&row.name, |run| now::card(&row.name, run)) { (card) }
        }
    };
    let mut verbs: Vec<String> = rows.iter().filter_map(|row| row.verb.clone()).collect();
    verbs.sort();
    verbs.dedup();
    rows.retain(|row| asked.wants(row));
    asked.sort(&mut rows);
    let body = html! {
        (live("now", &now))
        (filter(asked, &verbs))
        (live("runs", &list(asked, &rows, &unreadable)))
    };
    framed("Runs", Some("/"), &body)
}

impl Asked {
    fn wants(&self, row: &Row) -> bool {
        let text = |text: &Option<String>| text.clone().unwrap_or_default().to_lowercase();
        let all = [
            row.name.to_lowercase(),
            text(&row.verb),
            text(&row.policy),
            text(&row.device),
        ];
        let found = |word: &str| all.iter().any(|text| text.contains(word));
        self.q.to_lowercase().split_whitespace().all(found)
            && (self.verb.is_empty() || row.verb.as_ref() == Some(&self.verb))
            && (self.state.is_empty() || row.doing.word() == self.state)
    }

    /// The latest first, unless another order was asked for.
    fn sort(&self, rows: &mut [Row]) {
        let (column, upwards) = match self.sort.strip_prefix('-') {
            Some(column) => (column, false),
            None => (self.sort.as_str(), true),
        };
        let number = |value: Option<f64>| value.unwrap_or(f64::NEG_INFINITY);
        rows.sort_by(|one, other| {
            let order = match column {
                "name" => one.name.cmp(&other.name),
                "verb" => one.verb.cmp(&other.verb),
                "policy" => one.policy.cmp(&other.policy),
                "device" => one.device.cmp(&other.device),
                "took" => number(one.took_s).total_cmp(&number(other.took_s)),
                "state" => one.doing.word().cmp(other.doing.word()),
                "result" => number(one.share).total_cmp(&number(other.share)),
                "begun" => one.begun.cmp(&other.begun),
                _ => return other.begun.cmp(&one.begun).then(other.name.cmp(&one.name)),
            };
            if upwards { order } else { order.reverse() }
        });
    }

    /// The address of the same list in another order, or of another page of it.
    fn address(&self, sort: &str, page: usize) -> String {
        format!(
            "/?q={}&verb={}&state={}&sort={}&page={page}",
            encoded(&self.q),
            encoded(&self.verb),
            encoded(&self.state),
            encoded(sort)
        )
    }
}

fn filter(asked: &Asked, verbs: &[String]) -> Markup {
    let states = [Doing::Running, Doing::Done, Doing::Unfinished].map(Doing::word);
    html! {
        form.filter action="/" method="get" role="search" aria-label="Runs" {
            label { "search" input type="search" name="q" value=(asked.q) placeholder="name, policy, device"; }
            label { "verb"
                select name="verb" {
                    option value="" selected[asked.verb.is_empty()] { "all" }
                    @for verb in verbs { option value=(verb) selected[*verb == asked.verb] { (verb) } }
                }
            }
            label { "state"
                select name="state" {
                    option value="" selected[asked.state.is_empty()] { "all" }
                    @for state in states { option value=(state) selected[state == asked.state] { (state) } }
                }
            }
            @if !asked.sort.is_empty() { input type="hidden" name="sort" value=(asked.sort); }
            button type="submit" { "Show" }
        }
    }
}

fn list(asked: &Asked, rows: &[Row], unreadable: &[String]) -> Markup {
    let last = rows.len().saturating_sub(1) / A_PAGE;
    let number = asked.page.min(last);
    let shown = rows.iter().skip(number * A_PAGE).take(A_PAGE);
    let comparable = rows.len() > 1;
    let body = html! {
        table {
            caption { (count(rows.len(), "run")) @if asked.sort.is_empty() { ", the latest first" } }
            thead { tr {
                @for (column, name) in COLUMNS { (heading(asked, column, name)) }
                @if comparable { th scope="col" { "compare" } }
            } }
            tbody { @for row in shown { (row.render(comparable)) } }
        }
    };
    html! {
        @if rows.is_empty() { p { "No run is like that. " a href="/" { "All runs" } } }
        @else {
            form action="/compare" method="get" aria-label="Compare runs" {
                div.cards { (scrolling("table: runs", &body)) }
                @if comparable { button type="submit" { "Compare the chosen runs" } }
            }
        }
        @if last > 0 {
            nav aria-label="Pages" { ul {
                @if number > 0 { li { a href=(asked.address(&asked.sort, number - 1)) rel="prev" { "before" } } }
                li { "page " (number + 1) " of " (last + 1) }
                @if number < last { li { a href=(asked.address(&asked.sort, number + 1)) rel="next" { "next" } } }
            } }
        }
        @for name in unreadable { p.bad { (name) ": its log cannot be read" } }
    }
}

/// A click sorts by a column, another the other way round.
fn heading(asked: &Asked, column: &str, name: &str) -> Markup {
    let downwards = format!("-{column}");
    let (next, order, sign) = match asked.sort.as_str() {
        sort if sort == column => (downwards, Some("ascending"), " ↑"),
        sort if sort == downwards => (column.to_owned(), Some("descending"), " ↓"),
        // What is more or later is asked for first.
        _ if ["begun", "took", "result"].contains(&column) => (downwards, None, ""),
        _ => (column.to_owned(), None, ""),
    };
    let words = !["begun", "took", "state"].contains(&column);
    html! {
        th scope="col" class=[words.then_some("words")] aria-sort=[order] {
            a href=(asked.address(&next, 0)) { (name) (sign) }
        }
    }
}

impl Row {
    fn of(name: &str, run: &ShelvedRun) -> Self {
        let index = &run.index;
        let took = run.begun().zip(run.latest());
        let totals = index.totals;
        let share = (totals.ended > 0).then(|| f64::from(totals.passed) / f64::from(totals.ended));
        Self {
            name: name.to_owned(),
            verb: run.verb().map(str::to_owned),
            policy: run.policy().map(str::to_owned),
            device: index.head.as_ref().map(|head| head.device.clone()),
            begun: run.begun(),
            took_s: took.map(|(begun, latest)| latest.duration_since(begun).as_secs_f64().max(0.0)),
            doing: run.doing(),
            how_far: how_far(run),
            share,
            result: result(run, share),
        }
    }

    fn render(&self, comparable: bool) -> Markup {
        let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| UNKNOWN.to_owned());
        html! {
            tr {
                th scope="row" { a href={ "/runs/" (encoded(&self.name)) } { (self.name) } }
                td.words data-label="verb" { (or_dash(&self.verb)) }
                td.words data-label="policy or model" { (or_dash(&self.policy)) }
                td.words data-label="device" { (or_dash(&self.device)) }
                td data-label="begun" { @match self.begun { Some(at) => (at.strftime("%Y-%m-%d %H:%M UTC")), None => (UNKNOWN) } }
                td data-label="took" { (duration(self.took_s)) }
                td data-label="progress" { (self.how_far) ", " span.good[self.doing == Doing::Running] { (self.doing.word()) } }
                td.words data-label="result" { (self.result) }
                @if comparable {
                    td data-label="compare" { input type="checkbox" name="run" value=(self.name) aria-label={ "compare " (self.name) }; }
                }
            }
        }
    }
}

/// `12 of 594 steps`, `40 of 128 episodes`
pub(super) fn how_far(run: &ShelvedRun) -> String {
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

fn result(run: &ShelvedRun, share: Option<f64>) -> Markup {
    let index = &run.index;
    // What `optimize` says of the same run.
    if let Some(verdict) = index.remeasured.reported() {
        let speedup = verdict.matched_precision.as_ref();
        let eager = speedup.map(|one| one.speedup.eager.0);
        return html! { (times(eager)) " over eager" };
    }
    if let Some(share) = share {
        return html! { (sparkline(&passed_over_time(run))) " " span.whole { (percent(Some(share))) " passed" } };
    }
    let failure = index.ended.as_ref().and_then(|end| end.failure.as_ref());
    if let Some(failure) = failure {
        return html! { span.bad { "no result: " } (now::clipped(&failure.message)) };
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

/// The share that passed of one part of the episodes after the other.
fn passed_over_time(run: &ShelvedRun) -> Vec<f64> {
    let passed: Vec<f64> = run
        .index
        .episodes
        .iter()
        .filter_map(|row| row.result.as_ref())
        .map(|result| f64::from(u8::from(result.passed())))
        .collect();
    let part = passed.len().div_ceil(POINTS).max(1);
    passed
        .chunks(part)
        .map(|part| part.iter().sum::<f64>() / part.len() as f64)
        .collect()
}
