//! One episode, turn by turn.

use std::path::{Path, PathBuf};

use maud::{Markup, html};
use serde::Deserialize;
use warpsmith_schema::{Attempt, EpisodeEnding, EpisodeId, Message, Trajectory};

use super::examination::{Examiner, Standing};
use super::frame::{columns, encoded, page as framed};
use super::now::clipped;
use super::shelf::Shelf;
use super::{compile_errors, evidence, kernels, start};
use warpsmith_report::page::{
    annotated_code, code, count, duration, fact, line_diff, runtime, table, times,
};
use warpsmith_report::{verdict, verdict_line};

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    task: String,
    #[serde(default = "first")]
    sample: u32,
}

fn first() -> u32 {
    1
}

/// One attempt of an episode, from one; [`start::NUMBER`] is what a run started from.
#[derive(Debug, Deserialize)]
pub(super) struct AskedAttempt {
    task: String,
    #[serde(default = "first")]
    sample: u32,
    attempt: usize,
}

impl AskedAttempt {
    /// Its place on its episode's page.
    pub(super) fn page(&self, run: &str) -> String {
        if self.attempt == start::NUMBER {
            return start::address(run);
        }
        let (run, task) = (encoded(run), encoded(&self.task));
        let (sample, attempt) = (self.sample, self.attempt);
        format!("/runs/{run}/episode?task={task}&sample={sample}#attempt-{attempt}")
    }

    fn find(&self, shelf: &Shelf, run: &str) -> Option<(PathBuf, Trajectory, Attempt)> {
        if self.attempt == start::NUMBER {
            return start::find(shelf, run);
        }
        let trajectory = find(shelf, run, &self.task, self.sample)?;
        let attempt = trajectory
            .attempts
            .get(self.attempt.checked_sub(1)?)?
            .clone();
        let place = shelf.look(run, |run| run.folder().to_path_buf())?;
        Some((place, trajectory, attempt))
    }
}

pub(super) fn examine(
    shelf: &Shelf,
    examiner: &Examiner,
    run: &str,
    asked: &AskedAttempt,
) -> Option<()> {
    let (place, trajectory, attempt) = asked.find(shelf, run)?;
    examiner.begin(&place, &trajectory, &attempt);
    Some(())
}

pub(super) fn assembly(
    shelf: &Shelf,
    examiner: &Examiner,
    run: &str,
    asked: &AskedAttempt,
) -> Option<Markup> {
    let (place, trajectory, attempt) = asked.find(shelf, run)?;
    let Standing::Done(found) = examiner.standing(&place, &attempt) else {
        return None;
    };
    let title = format!(
        "Machine code of {}, attempt {}",
        trajectory.task.name, asked.attempt
    );
    let body = html! {
        p { a href=(asked.page(run)) { "← attempt " (asked.attempt) } }
        (kernels::assembly(&found.assembly))
    };
    Some(framed(&title, None, &body))
}

pub(super) fn page(shelf: &Shelf, examiner: &Examiner, run: &str, asked: &Asked) -> Option<Markup> {
    let trajectory = find(shelf, run, &asked.task, asked.sample)?;
    let place = shelf.look(run, |run| run.folder().to_path_buf())?;
    let time = |number: usize, attempt: &Attempt| {
        let (task, sample) = (encoded(&asked.task), asked.sample);
        let address = format!("?task={task}&sample={sample}&attempt={}", number + 1);
        let standing = examiner.standing(&place, attempt);
        kernels::part(&encoded(run), number + 1, attempt, &address, &standing)
    };
    let title = format!("{}, sample {}", trajectory.task.name, trajectory.sample);
    let body = html! {
        p { a href={ "/runs/" (encoded(run)) } { "← " (run) } }
        (lead(&trajectory))
        (overview(&trajectory))
        h2 { "Turns" }
        @for (number, message) in trajectory.messages.iter().enumerate() {
            (turn(number, message))
            @for (number_of, attempt) in trajectory.attempts.iter().enumerate() {
                @if attempt.message as usize == number { (judged(&place, &trajectory, number_of, attempt, &time(number_of, attempt))) }
            }
        }
        h2 { "The original" }
        (code("model.py", &trajectory.task.source))
    };
    Some(framed(&title, None, &body))
}

pub(super) fn find(shelf: &Shelf, run: &str, task: &str, sample: u32) -> Option<Trajectory> {
    let id = EpisodeId {
        task: task.to_owned(),
        sample,
    };
    shelf.look(run, |run| {
        let index = &run.index;
        index.trajectory(index.episode(&id)?).ok()?
    })?
}

fn lead(trajectory: &Trajectory) -> Markup {
    let usage = &trajectory.usage;
    html! {
        dl {
            (fact("policy", &html! { (trajectory.policy.name) }))
            (fact("attempts", &html! { (trajectory.attempts.len()) }))
            (fact("best", &html! {
                @match trajectory.best.and_then(|best| trajectory.attempts.get(best as usize)) {
                    Some(attempt) => (verdict_line(&attempt.verdict)),
                    None => @match trajectory.attempts.iter().rev().find(|one| one.verdict.passed()) {
                        Some(attempt) => (verdict_line(&attempt.verdict)),
                        None => "none passed",
                    },
                }
            }))
            (fact("tokens read, written", &html! { (usage.prompt_tokens) ", " (usage.completion_tokens) }))
            (fact("time", &html! { (duration(Some(trajectory.seconds))) }))
        }
    }
}

/// Every attempt in a line, and why it failed.
fn overview(trajectory: &Trajectory) -> Markup {
    let reward = |attempt: &Attempt| format!("{:.2}", attempt.verdict.reward.robust);
    let rows: Vec<Vec<Markup>> = trajectory
        .attempts
        .iter()
        .enumerate()
        .map(|(number, attempt)| {
            let verdict = &attempt.verdict;
            let matched = verdict.matched_precision.as_ref();
            vec![
                html! { a href={ "#attempt-" (number + 1) } { "attempt " (number + 1) } @if trajectory.best == Some(number as u32) { " ★" } },
                html! { @if verdict.passed() { span.good.whole { "✓ passed" } } @else { span.bad.whole { "✗ " (verdict.status.name()) } } },
                html! { (runtime(verdict.times_us.as_ref().map(|found| found.candidate.0))) },
                html! { (times(matched.map(|one| one.speedup.eager.0))) },
                html! { (times(matched.and_then(|one| one.speedup.compile.map(|one| one.0)))) },
                html! { (reward(attempt)) },
                html! { (first_cause(attempt)) },
            ]
        })
        .collect();
    let head = columns(
        &[
            "attempt",
            "verdict",
            "runtime",
            "over eager",
            "over compile",
            "reward",
            "why",
        ],
        &["attempt", "verdict", "why"],
    );
    html! {
        @if rows.is_empty() { p { "Nothing of this episode was judged: " (ending(&trajectory.ending)) "." } }
        @else { (table("Attempts; ★ is the one that counts", &head, &rows)) }
    }
}

/// The line of a reason that says most: a compiler's first error, else the first line.
fn first_cause(attempt: &Attempt) -> String {
    let reason = attempt.verdict.reason.as_deref().unwrap_or_default();
    let error = reason.lines().find(|line| line.contains("error:"));
    let last = reason
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .filter(|_| reason.starts_with("Traceback"));
    let line = error.or(last).or(reason.lines().next());
    clipped(line.unwrap_or_default())
}

/// Why an episode ended in which nothing was judged.
pub(super) fn ending(ending: &EpisodeEnding) -> String {
    match ending {
        EpisodeEnding::NotCovered { message } => {
            format!("the policy does not cover this task ({message})")
        }
        EpisodeEnding::PolicyFailed { message } => format!("the policy failed ({message})"),
        EpisodeEnding::NothingUsable => "no reply held files to judge".to_owned(),
        EpisodeEnding::Looping => "the policy said the same again".to_owned(),
        EpisodeEnding::ContextFull => "the policy's context was full".to_owned(),
        EpisodeEnding::Limit { which } => format!("a limit was reached ({which:?})").to_lowercase(),
        EpisodeEnding::Finished => "it ended without a submission".to_owned(),
        EpisodeEnding::Interrupted => "it was interrupted".to_owned(),
    }
}

fn turn(number: usize, message: &Message) -> Markup {
    let said = |text: &str| html! { pre.said tabindex="0" { (text) } };
    html! {
        article id={ "turn-" (number) } {
            @match message {
                Message::System { text } => details { summary { "System" } (said(text)) },
                Message::User { text } => details open[text.len() < 2000] { summary { "Asked, " (count(text.lines().count(), "line")) } (said(text)) },
                Message::Assistant { text, calls } => {
                    h3 { "Policy" }
                    (said(text))
                    @for call in calls {
                        details { summary { "calls " code { (call.name) } } (said(&call.arguments.to_string())) }
                    }
                },
                Message::Tool { name, text, failed, .. } => details {
                    summary { code { (name) } @if *failed { span.bad { " failed" } } ", " (count(text.lines().count(), "line")) }
                    (said(text))
                },
            }
        }
    }
}

fn judged(
    place: &Path,
    trajectory: &Trajectory,
    number: usize,
    attempt: &Attempt,
    time: &Markup,
) -> Markup {
    let before = number
        .checked_sub(1)
        .and_then(|before| trajectory.attempts.get(before));
    let said = attempt.verdict.reason.as_deref().unwrap_or_default();
    html! {
        article id={ "attempt-" (number + 1) } {
            h3 { "Attempt " (number + 1) ": " (verdict_line(&attempt.verdict)) }
            (verdict(&attempt.verdict))
            @if let Some(plot) = evidence::strip(place, &attempt.verdict) { (plot) }
            (time)
            @for (name, content) in &attempt.files { (file(name, content, before, said)) }
            @for name in before.into_iter().flat_map(|before| before.files.keys()) {
                @if !attempt.files.contains_key(name) { p { code { (name) } " is gone since the attempt before." } }
            }
        }
    }
}

/// A file as it is, with what the compiler says at its lines, and how it differs from the attempt before.
fn file(name: &str, content: &str, before: Option<&Attempt>, said: &str) -> Markup {
    let notes = compile_errors::notes(name, said);
    let old = before.map(|before| before.files.get(name));
    let errors = notes.iter().filter(|note| note.error).count();
    html! {
        details open[errors > 0] {
            summary {
                code { (name) } ", " (count(content.lines().count(), "line"))
                @if errors > 0 { ", " span.bad { (count(errors, "error")) } }
                @match old {
                    Some(Some(old)) if old == content => ", the same as before",
                    Some(None) => ", new",
                    _ => "",
                }
            }
            (annotated_code(name, content, &notes))
        }
        @if let Some(Some(old)) = old {
            @if old != content {
                @let changes = line_diff(old, content);
                details {
                    summary { code { (name) } " since the attempt before: " (changes.added()) " added, " (changes.removed()) " removed" }
                    (changes)
                }
            }
        }
    }
}
