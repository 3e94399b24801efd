//! One episode, turn by turn.

use maud::{Markup, html};
use serde::Deserialize;
use warpsmith_schema::{Attempt, EpisodeId, Message, Trajectory};

use super::frame::{encoded, page as framed};
use super::shelf::Shelf;
use warpsmith_report::page::{code, count, duration, fact, line_diff};
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

pub(super) fn page(shelf: &Shelf, run: &str, asked: &Asked) -> Option<Markup> {
    let trajectory = find(shelf, run, &asked.task, asked.sample)?;
    let title = format!("{}, sample {}", trajectory.task.name, trajectory.sample);
    let body = html! {
        p { a href={ "/runs/" (encoded(run)) } { "← " (run) } }
        (lead(&trajectory))
        h2 { "Turns" }
        @for (number, message) in trajectory.messages.iter().enumerate() {
            (turn(number, message))
            @for (place, attempt) in trajectory.attempts.iter().enumerate() {
                @if attempt.message as usize == number { (judged(&trajectory, place, attempt)) }
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
                    None => "none passed",
                }
            }))
            (fact("tokens read, written", &html! { (usage.prompt_tokens) ", " (usage.completion_tokens) }))
            (fact("time", &html! { (duration(Some(trajectory.seconds))) }))
        }
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

fn judged(trajectory: &Trajectory, place: usize, attempt: &Attempt) -> Markup {
    let before = place
        .checked_sub(1)
        .and_then(|before| trajectory.attempts.get(before));
    html! {
        article id={ "attempt-" (place + 1) } {
            h3 { "Attempt " (place + 1) ": " (verdict_line(&attempt.verdict)) }
            (verdict(&attempt.verdict))
            @for (name, content) in &attempt.files {
                details {
                    summary { code { (name) } ", " (count(content.lines().count(), "line")) }
                    (code(name, content))
                }
                @if let Some(old) = before.and_then(|before| before.files.get(name)) {
                    @if old != content {
                        details { summary { code { (name) } " since the attempt before" } (line_diff(old, content)) }
                    }
                }
            }
        }
    }
}
