//! What a run does at this moment, for the top of the first page.

use maud::{Markup, html};
use warpsmith_store::{EpisodeRow, RunIndex};

use super::frame::encoded;
use super::runs::how_far;
use super::shelf::ShelvedRun;
use warpsmith_report::page::{duration, runtime, times};

/// Ends that the remaining time is taken from, and how many of them are shown.
const LATELY: usize = 17;
const TAIL: usize = 5;
const CLIPPED: usize = 100;

pub(super) fn card(name: &str, run: &ShelvedRun) -> Markup {
    let index = &run.index;
    let (done, planned) = match (run.progress(), index.metrics) {
        (Some(progress), _) => (progress.step, progress.steps),
        (None, Some(metrics)) => (
            u64::from(index.totals.ended),
            Some(u64::from(metrics.episodes_planned)),
        ),
        (None, None) => (0, None),
    };
    let remaining_s = match run.progress() {
        Some(progress) => progress.remaining_s,
        None => remaining_s(index),
    };
    html! {
        section.now aria-label={ "running: " (name) } {
            p {
                strong { "running " } a href={ "/runs/" (encoded(name)) } { (name) }
                @if let Some(verb) = run.verb() { ", " (verb) }
                @if let Some(policy) = run.policy() { " of " (policy) }
                ": " (how_far(run))
                @if remaining_s.is_some() { ", about " (duration(remaining_s)) " left" }
                @if let Some(metrics) = &index.metrics {
                    "; " (metrics.asking) " asking, " (metrics.judge_queue) " waiting for a judge"
                }
            }
            @if let Some(planned) = planned { progress max=(planned) value=(done) aria-label={ "How far " (name) " is" } {} }
            @let tail = latest(index, TAIL);
            @if !tail.is_empty() {
                ol.tail aria-label="What ended last" { @for row in tail { li { (line(name, row)) } } }
            }
            @if let Some(step) = run.stages.last().and_then(|stage| stage.steps.last()) {
                p.quiet {
                    @for name in ["loss", "reward", "pass_rate", "validation_loss", "tokens_per_second"] {
                        @if let Some(value) = step.values.get(name) { (name.replace('_', " ")) " " (format!("{value:.4}")) "  " }
                    }
                }
            }
        }
    }
}

fn line(run: &str, row: &EpisodeRow) -> Markup {
    let result = row.result.as_ref();
    let time = row.at.get(11..19).unwrap_or_default();
    let address = format!(
        "/runs/{}/episode?task={}&sample={}",
        encoded(run),
        encoded(&row.id.task),
        row.id.sample
    );
    html! {
        span.quiet { (time) " " }
        a href=(address) { (row.id.task) ", sample " (row.id.sample) }
        " "
        @if let Some(result) = result {
            @if result.passed() { span.good { "passed" } } @else { span.bad { (result.status.map_or("nothing judged", warpsmith_schema::Status::name)) } }
            @if let Some(us) = result.us { ", " (runtime(Some(us.0))) }
            @if let Some(speedup) = &result.speedup { ", " (times(Some(speedup.eager.0))) " over eager" }
        }
    }
}

/// Those that ended last, the latest first.
pub(super) fn latest(index: &RunIndex, count: usize) -> Vec<&EpisodeRow> {
    let mut ended: Vec<&EpisodeRow> = index
        .episodes
        .iter()
        .filter(|row| row.result.is_some())
        .collect();
    if ended.len() > count {
        let place = ended.len() - count;
        ended.select_nth_unstable_by(place, |one, other| one.at.cmp(&other.at));
        ended.drain(..place);
    }
    ended.sort_by(|one, other| other.at.cmp(&one.at));
    ended
}

/// From the episodes that ended lately; unknown before the third.
fn remaining_s(index: &RunIndex) -> Option<f64> {
    let planned = index.metrics?.episodes_planned;
    let ended = latest(index, LATELY);
    let at = |row: &&EpisodeRow| row.at.parse::<jiff::Timestamp>().ok();
    let (last, first) = (ended.first().and_then(at)?, ended.last().and_then(at)?);
    let between = ended.len().checked_sub(1).filter(|ended| *ended >= 2)?;
    let each = last.duration_since(first).as_secs_f64() / between as f64;
    Some(each * f64::from(planned.saturating_sub(index.totals.ended)))
}

/// As much of a message as a line of a list has room for.
pub(super) fn clipped(text: &str) -> String {
    let end = text.char_indices().nth(CLIPPED);
    end.map_or_else(|| text.to_owned(), |(end, _)| format!("{}…", &text[..end]))
}
