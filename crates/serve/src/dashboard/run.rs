//! One run: how far it is, what came of it, and its episodes.

use maud::{Markup, html};
use serde::Deserialize;
use warpsmith_schema::Status;
use warpsmith_store::{EpisodeRow, RunIndex};

use super::frame::{columns, encoded, live, page as framed};
use super::shelf::{Doing, Shelf, ShelvedRun};
use super::{start, step};
use warpsmith_report::page::{count, duration, fact, percent, runtime, table, times};
use warpsmith_report::{
    Course, Learning, TrainingStep, learning, overview, start_words, training_plots, verdict_line,
};

/// Episodes on one page.
const A_PAGE: usize = 50;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    show: Option<String>,
    page: usize,
}

const SHOWN: [(&str, &str); 4] = [
    ("", "all"),
    ("passed", "passed"),
    ("failed", "not passed"),
    ("open", "without an end"),
];

pub(super) fn page(shelf: &Shelf, name: &str, asked: &Asked) -> Option<Markup> {
    let body = shelf.look(name, |run| {
        let (index, doing) = (&run.index, run.doing());
        // A run that only learns has neither episodes nor speed-ups.
        let has_episodes = run.stages.is_empty() || !index.episodes.is_empty();
        html! {
            @if !run.stages.is_empty() {
                (live("training", &training(run, doing)))
                (live("steps", &step::links(name, run)))
            }
            @if has_episodes {
                (live("progress", &progress(name, index, doing)))
                section aria-label="Results" { (live("plot", &results(name, index, doing))) }
                h2 { "Episodes" }
                (live("episodes", &episodes(name, index, asked, doing)))
            }
        }
    })?;
    Some(framed(name, None, &body))
}

/// How far training is, and every number over its steps.
fn training(run: &ShelvedRun, doing: Doing) -> Markup {
    let progress = run.progress();
    let stages: Vec<(&str, &[TrainingStep])> = run
        .stages
        .iter()
        .map(|stage| (stage.name.as_str(), stage.steps.as_slice()))
        .collect();
    let last = |name: &str| {
        let steps = &run.stages.last()?.steps;
        steps
            .iter()
            .rev()
            .find_map(|step| step.values.get(name).copied())
    };
    html! {
        dl {
            (fact("state", &html! { (doing.word()) }))
            @if let Some(verb) = run.verb() { (fact("verb", &html! { (verb) })) }
            @if let Some(model) = &run.config.model { (fact("model", &html! { (model) })) }
            @if let Some(stage) = run.stages.last().filter(|stage| !stage.name.is_empty()) { (fact("stage", &html! { (stage.name) })) }
            @if let Some(progress) = progress {
                (fact("step", &html! { (progress.step) @if let Some(steps) = progress.steps { " of " (steps) } }))
                @if doing == Doing::Running { (fact("left", &html! { (duration(progress.remaining_s)) })) }
            }
            @if let Some(speed) = last("tokens_per_second") { (fact("tokens a second", &html! { (format!("{speed:.0}")) })) }
        }
        @if let Some((step, steps)) = progress.and_then(|progress| Some((progress.step, progress.steps?))) {
            progress max=(steps) value=(step) aria-label="Steps that were made" {}
        }
        @for (name, steps) in &stages {
            @let found = learning(steps);
            @if !found.is_empty() { (is_it_learning(name, &found)) }
        }
        @if let Some(warning) = nothing_taught(run) { p.bad { strong { "Warning: " } (warning) } }
        @match training_plots(&stages) {
            Some(plots) => { h2 { "Training" } (plots) },
            None => p.quiet { "No step has ended yet." },
        }
    }
}

/// The answer first; the curves below are its reasons.
fn is_it_learning(stage: &str, found: &[Learning]) -> Markup {
    let has = |course| found.iter().any(|one| one.course == course);
    let (class, answer) = match (has(Course::Better), has(Course::Worse)) {
        (true, false) => (Some("good"), "yes"),
        (false, true) => (Some("bad"), "no, it gets worse"),
        (true, true) => (None, "in part"),
        (false, false) => (None, "it cannot be told yet"),
    };
    let words: Vec<&str> = found.iter().map(|one| one.words.as_str()).collect();
    html! {
        p {
            strong { "Is it learning?" @if !stage.is_empty() { " (" (stage) ")" } " " span class=[class] { (answer) } }
            ": " (words.join("; ")) "."
        }
    }
}

/// Whether groups of replies were told apart at all: else a policy that learns from groups stays what it was.
fn nothing_taught(run: &ShelvedRun) -> Option<&'static str> {
    let steps = &run.stages.last()?.steps;
    let mut groups = steps.iter().filter_map(|step| step.values.get("groups"));
    let first = groups.next()?;
    let idle = *first == 0.0 && groups.all(|taught| *taught == 0.0);
    idle.then_some(
        "no group has taught the policy anything so far: all replies to a task earned the same",
    )
}

fn progress(name: &str, index: &RunIndex, doing: Doing) -> Markup {
    let totals = index.totals;
    let share =
        |part: u32| percent((totals.ended > 0).then(|| f64::from(part) / f64::from(totals.ended)));
    // Nothing that was not measured is a share of nothing.
    let faster = |timed: u32, faster: u32| {
        if timed == 0 {
            "not measured".to_owned()
        } else {
            share(faster)
        }
    };
    html! {
        dl {
            (fact("state", &html! { (doing.word()) }))
            @if let Some(head) = &index.head {
                (fact("policy", &html! { (head.policy.name) }))
                (fact("device", &html! { (head.device) }))
                (fact("tasks, samples", &html! { (head.tasks.len()) ", " (head.samples) }))
            }
            @if let Some(metrics) = &index.metrics {
                (fact("episodes", &html! { (totals.ended) " of " (metrics.episodes_planned) ", " (metrics.episodes_running) " running" }))
                (fact("judgements a minute", &html! { (format!("{:.1}", metrics.judgements_per_minute)) }))
                (fact("waiting for a judge", &html! { (metrics.judge_queue) ", " (duration(Some(metrics.judge_wait_seconds))) " on average" }))
                (fact("device leased, busy", &html! { (percent(Some(metrics.device_leased))) ", " (percent(metrics.device_busy)) }))
            } @else {
                (fact("episodes", &html! { (totals.ended) }))
            }
            (fact("compiled", &html! { (share(totals.compiled)) }))
            (fact("passed", &html! { (share(totals.passed)) }))
            (fact("5 % faster than eager", &html! { (faster(totals.timed, totals.faster_than_eager)) }))
            (fact("5 % faster than torch.compile", &html! { (faster(totals.timed_beside_compile, totals.faster_than_compile)) }))
            @if let Some((author, verdict)) = &index.start { (fact("started from", &html! { a href=(start::address(name)) { (start_words(*author)) } ", " (verdict_line(verdict)) })) }
            @if let Some(verdict) = index.remeasured.reported() { (fact("result, measured afresh", &verdict_line(verdict))) }
            (fact("tokens read, written", &html! { (totals.usage.prompt_tokens) ", " (totals.usage.completion_tokens) }))
        }
        @if let Some(metrics) = &index.metrics {
            progress max=(metrics.episodes_planned) value=(totals.ended) aria-label="Episodes that have ended" {}
        }
        @if let Some(failure) = index.ended.as_ref().and_then(|end| end.failure.as_ref()) {
            p.bad { "It ended early: " (failure.message) }
        }
        @if totals.ended == 0 && doing != Doing::Running && index.ended.as_ref().is_some_and(|end| end.failure.is_some()) {
            p { "No episode has ended, so nothing here counts as passed or failed." }
        }
        @if index.infrastructure_failures > 0 { p.quiet { (count(index.infrastructure_failures as usize, "failure")) " of this machine, which count against nobody." } }
        @if let Some(other) = &index.other_format { p.bad { "Its log is not shown: " (other) "." } }
        @if index.broken > 0 { p.bad { (count(index.broken as usize, "line")) " of its log cannot be read." } }
        @for (task, why) in &index.skipped { p.quiet { "Left out: " (task) ", " (why.message) } }
    }
}

fn results(name: &str, index: &RunIndex, doing: Doing) -> Markup {
    if index.totals.ended == 0 {
        return match doing {
            Doing::Running => html! { p.quiet { "No episode has ended yet." } },
            Doing::Done | Doing::Unfinished => html! { p.quiet { "No episode has ended." } },
        };
    }
    html! {
        h2 { "Tasks" }
        (overview(index, &|row| address(name, row)))
    }
}

fn address(run: &str, row: &EpisodeRow) -> String {
    format!(
        "/runs/{}/episode?task={}&sample={}",
        encoded(run),
        encoded(&row.id.task),
        row.id.sample
    )
}

fn episodes(name: &str, index: &RunIndex, asked: &Asked, doing: Doing) -> Markup {
    let show = asked.show.as_deref().unwrap_or_default();
    let wanted = |row: &&EpisodeRow| {
        let passed = row
            .result
            .as_ref()
            .map(warpsmith_store::EpisodeResult::passed);
        match show {
            "passed" => passed == Some(true),
            "failed" => passed == Some(false),
            "open" => passed.is_none(),
            _ => true,
        }
    };
    let matching = index.episodes.iter().filter(wanted).count();
    let last = matching.saturating_sub(1) / A_PAGE;
    let number = asked.page.min(last);
    let rows: Vec<Vec<Markup>> = index
        .episodes
        .iter()
        .rev()
        .filter(wanted)
        .skip(number * A_PAGE)
        .take(A_PAGE)
        .map(|row| cells(name, row, doing))
        .collect();
    let address = |show: &str, page: usize| format!("?show={show}&page={page}");
    html! {
        nav aria-label="Which episodes" {
            ul {
                @for (word, label) in SHOWN {
                    li {
                        @if word == show { a href=(address(word, 0)) aria-current="true" { strong { (label) } } }
                        @else { a href=(address(word, 0)) { (label) } }
                    }
                }
            }
        }
        (table(&count(matching, "episode"), &columns(&["task", "sample", "verdict", "runtime", "over eager", "over compile", "reward", "attempts", "time"], &["task", "verdict"]), &rows))
        @if last > 0 {
            nav aria-label="Pages" {
                ul {
                    @if number > 0 { li { a href=(address(show, number - 1)) rel="prev" { "later" } } }
                    li { "page " (number + 1) " of " (last + 1) }
                    @if number < last { li { a href=(address(show, number + 1)) rel="next" { "earlier" } } }
                }
            }
        }
    }
}

fn cells(run: &str, row: &EpisodeRow, doing: Doing) -> Vec<Markup> {
    let address = address(run, row);
    let Some(result) = &row.result else {
        let mut cells = vec![
            html! { (row.id.task) },
            html! { (row.id.sample) },
            html! { @if doing == Doing::Running { "under way" } @else { span.quiet { "no end yet" } } },
        ];
        cells.resize_with(7, || html! {});
        cells.push(html! { (row.judged) });
        cells.push(html! {});
        return cells;
    };
    let speedup = result.speedup.as_ref();
    let passed = result.passed();
    let word = result.status.map_or("nothing judged", Status::name);
    vec![
        html! { a href=(address) { (row.id.task) } },
        html! { (row.id.sample) },
        html! { @if passed { span.good { (word) } } @else { span.bad { (word) } } },
        html! { (runtime(result.us.map(|us| us.0))) },
        html! { (times(speedup.map(|one| one.eager.0))) },
        html! { (times(speedup.and_then(|one| one.compile.map(|one| one.0)))) },
        html! { @if let Some(reward) = &result.reward { (reward.robust) } },
        html! { (result.attempts) },
        html! { (duration(Some(result.seconds))) },
    ]
}
