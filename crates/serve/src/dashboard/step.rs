//! What a policy wrote at one step of its training, sorted by reward, with the verdict beside each.

use std::path::{Path, PathBuf};

use maud::{Markup, html};
use serde::Deserialize;
use warpsmith_schema::{EpisodeId, Message, Trajectory};
use warpsmith_store::RunIndex;

use super::episode::ending;
use super::frame::{columns, encoded, page as framed};
use super::shelf::{Shelf, ShelvedRun, TrainingStage};
use warpsmith_report::page::{UNKNOWN, code, count, duration, percent, table};
use warpsmith_report::{verdict, verdict_line};

/// Replies on one page: each is read whole.
const A_PAGE: usize = 24;
/// Steps whose links are shown at once.
const STEPS: usize = 200;
const ROLLOUTS: &str = "rollouts";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    stage: String,
    step: u64,
    page: usize,
}

/// The steps of a run that writes modules as it trains, the latest first, each leading to its replies.
pub(super) fn links(name: &str, run: &ShelvedRun) -> Markup {
    html! {
        @for stage in &run.stages {
            @if stage.folder().join(ROLLOUTS).is_dir() {
                h2 { "Steps" @if !stage.name.is_empty() { ": " (stage.name) } }
                (steps(name, stage))
            }
        }
    }
}

fn steps(run: &str, stage: &TrainingStage) -> Markup {
    let number = |value: Option<&f64>, share: bool| match value {
        Some(value) if share => percent(Some(*value)),
        Some(value) => format!("{value:.3}"),
        None => UNKNOWN.to_owned(),
    };
    let rows: Vec<Vec<Markup>> = stage
        .steps
        .iter()
        .rev()
        .filter(|step| step.step > 0)
        .take(STEPS)
        .map(|step| {
            let value = |name: &str| step.values.get(name);
            let address = format!(
                "/runs/{}/step?stage={}&step={}",
                encoded(run),
                encoded(&stage.name),
                step.step
            );
            vec![
                html! { a href=(address) { "step " (step.step) } },
                html! { (number(value("reward"), false)) },
                html! { (number(value("pass_rate"), true)) },
                html! { (number(value("groups"), false)) },
                html! { (number(value("length"), false)) },
                html! { (duration(value("seconds_collect").copied())) },
                html! { (duration(value("seconds_learn").copied())) },
            ]
        })
        .collect();
    let head = columns(
        &[
            "replies of",
            "reward",
            "passed",
            "groups that taught",
            "tokens",
            "collecting",
            "learning",
        ],
        &["replies of"],
    );
    html! { div.tall { (table("Steps, the latest first", &head, &rows)) } }
}

pub(super) fn page(shelf: &Shelf, run: &str, asked: &Asked) -> Option<Markup> {
    let places = shelf.look(run, |run| {
        let stage = run.stages.iter().find(|stage| stage.name == asked.stage)?;
        Some(rounds(&stage.folder().join(ROLLOUTS), asked.step))
    })??;
    let mut replies: Vec<(f64, PathBuf, EpisodeId)> = Vec::new();
    let mut indices: Vec<(PathBuf, RunIndex)> = Vec::new();
    for place in places {
        let mut index = RunIndex::new(&place);
        index.refresh().ok()?;
        for row in &index.episodes {
            let Some(result) = &row.result else { continue };
            let reward = result.reward.as_ref().map_or(-1.0, |reward| reward.robust);
            replies.push((reward, place.clone(), row.id.clone()));
        }
        indices.push((place, index));
    }
    replies.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.2.cmp(&other.2)));
    let last = replies.len().saturating_sub(1) / A_PAGE;
    let number = asked.page.min(last);
    let shown = replies.iter().skip(number * A_PAGE).take(A_PAGE);
    let trajectory = |place: &Path, id: &EpisodeId| {
        let (_, index) = indices.iter().find(|(of, _)| of == place)?;
        index.trajectory(index.episode(id)?).ok()?
    };
    let address = |page: usize| {
        let stage = encoded(&asked.stage);
        format!("?stage={stage}&step={}&page={page}", asked.step)
    };
    let title = format!("Step {} of {run}", asked.step);
    let body = html! {
        p { a href={ "/runs/" (encoded(run)) } { "← " (run) } }
        p { (count(replies.len(), "reply").replace("replys", "replies")) ", the best rewarded first." }
        @if replies.is_empty() { p.quiet { "Nothing of this step was kept, or nothing has ended yet." } }
        @for (reward, place, id) in shown {
            @if let Some(found) = trajectory(place, id) { (reply(*reward, &found)) }
        }
        @if last > 0 {
            nav aria-label="Pages" { ul {
                @if number > 0 { li { a href=(address(number - 1)) rel="prev" { "better" } } }
                li { "page " (number + 1) " of " (last + 1) }
                @if number < last { li { a href=(address(number + 1)) rel="next" { "worse" } } }
            } }
        }
    };
    Some(framed(&title, None, &body))
}

/// Folders of what was collected for a step: there are several where groups that taught nothing were replaced.
fn rounds(rollouts: &Path, step: u64) -> Vec<PathBuf> {
    let begins = format!("step-{step:06}-");
    let inside = fs_err::read_dir(rollouts).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = inside
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&begins))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

fn reply(reward: f64, trajectory: &Trajectory) -> Markup {
    let last = trajectory.attempts.last();
    let best = trajectory.best.map(|best| best as usize);
    let attempt = best.and_then(|best| trajectory.attempts.get(best)).or(last);
    let said = trajectory
        .messages
        .iter()
        .rev()
        .find_map(|message| match message {
            Message::Assistant { text, .. } => Some(text.as_str()),
            _ => None,
        });
    html! {
        details {
            summary {
                strong { "reward " (format!("{reward:.1}")) }
                " · " (trajectory.task.id) ", sample " (trajectory.sample) " · "
                @match attempt {
                    Some(attempt) => (verdict_line(&attempt.verdict)),
                    None => { span.bad { "nothing judged" } span.quiet { ": " (ending(&trajectory.ending)) } },
                }
            }
            div.beside {
                div {
                    p.label { "verdict" }
                    @match attempt {
                        Some(attempt) => (verdict(&attempt.verdict)),
                        None => p { "The reply held nothing that could be judged." },
                    }
                }
                div {
                    p.label { "reply" }
                    @if let Some(said) = said { (code("reply", said)) }
                }
            }
        }
    }
}
