//! Episodes, live, for the person who waits.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warpsmith_agent::EpisodeProgress;
use warpsmith_rollout::ComparedTimes;
use warpsmith_rollout::optimize::{FinalRound, StartProgress, TunedStart};
use warpsmith_schema::{EpisodeId, Event, EventKind, RunMetrics, StartAuthor, ToolCall, Verdict};

use super::words::{describe_author, describe_ending, why};
use crate::highlights::Highlights;
use crate::live::Live;
use crate::printer::Printer;
use crate::render::time;

/// After so long a silence a person wonders.
const SILENCE: Duration = Duration::from_secs(30);

/// Prints what episodes do. They run on threads of their own.
pub(super) struct Show {
    samples: u32,
    state: Mutex<State>,
}

struct State {
    live: Live,
    highlights: Highlights,
    /// Of the replies under way, by sample.
    characters: BTreeMap<u32, usize>,
    last_line: Instant,
}

impl Show {
    pub(super) fn new(printer: &Printer, samples: u32) -> Self {
        let mut live = Live::new(printer, "samples", SILENCE);
        live.quiet_until_due();
        Self {
            samples,
            state: Mutex::new(State {
                live,
                highlights: Highlights::default(),
                characters: BTreeMap::new(),
                last_line: Instant::now(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, line: &str) {
        let mut state = self.state();
        state.last_line = Instant::now();
        state.live.say(line);
    }

    /// Says which sample it is about, where there are several.
    fn note_about(&self, sample: u32, what: &str) {
        if self.samples > 1 {
            self.note(&format!("  sample {sample}: {what}"));
        } else {
            self.note(&format!("  {what}"));
        }
    }

    /// Characters of the reply under way.
    fn length(&self, sample: u32) -> usize {
        let state = self.state();
        state.characters.get(&sample).copied().unwrap_or_default()
    }

    pub(super) fn progress(&self, episode: &EpisodeId, progress: &EpisodeProgress<'_>) {
        let sample = episode.sample;
        match progress {
            EpisodeProgress::Asking { turn } => {
                self.state().characters.insert(sample, 0);
                let whose = match self.samples {
                    1 => String::new(),
                    all => format!("sample {sample} of {all}, "),
                };
                self.note(&format!("{whose}turn {turn}: asking the policy"));
            }
            EpisodeProgress::Text(piece) => self.text(sample, piece),
            EpisodeProgress::Unusable(why) => {
                let count = self.length(sample);
                let what = format!("a reply of {count} characters, not usable: {why}");
                self.note_about(sample, &what);
            }
            EpisodeProgress::Elided(elision) => {
                let what = format!(
                    "the conversation grew long; {} old tool answers, about {} tokens, are left out of it",
                    elision.elided.len(),
                    elision.freed_tokens
                );
                self.note_about(sample, &what);
            }
            EpisodeProgress::ToolCalled(call) => self.note_about(sample, &describe_call(call)),
            EpisodeProgress::ToolAnswered { call, text, failed } => {
                // A verdict gets a line of its own.
                if *failed && !matches!(call.name.as_str(), "judge" | "submit") {
                    let first = text.lines().find(|line| !line.trim().is_empty());
                    let first = first.unwrap_or_default();
                    self.note_about(sample, &format!("  failed: {first}"));
                }
            }
            EpisodeProgress::Judging(files) => {
                let names: Vec<&str> = files.keys().map(String::as_str).collect();
                let names = names.join(", ");
                let what = match self.length(sample) {
                    // It came in an earlier process.
                    0 => format!("the reply with {names}; judging"),
                    count => format!("a reply of {count} characters with {names}; judging"),
                };
                self.note_about(sample, &what);
            }
            EpisodeProgress::Judged(verdict) => self.note_about(sample, &verdict_line(verdict)),
        }
    }

    fn text(&self, sample: u32, piece: &str) {
        let mut state = self.state();
        *state.characters.entry(sample).or_default() += piece.chars().count();
        let total: usize = state.characters.values().sum();
        let silent = state.last_line.elapsed() > SILENCE;
        drop(state);
        if silent {
            self.note(&format!("  {total} characters so far"));
        }
    }

    /// What happened, if anything, and how the machine is used. Of one sample its lines say it all.
    pub(super) fn hear(&self, event: Option<&Event>, gauges: &RunMetrics) {
        if let Some(event) = event {
            self.event(&event.event);
            self.state().highlights.take_up(&event.event);
        }
        if self.samples > 1 {
            let mut state = self.state();
            let words = state.highlights.words(gauges);
            let (ended, planned) = (gauges.episodes_ended, gauges.episodes_planned);
            state.live.show(ended.into(), planned.into(), &words);
        }
    }

    pub(super) fn finish(&self) {
        self.state().live.finish();
    }

    fn event(&self, event: &EventKind) {
        match event {
            // The verdict of one that passed has been shown.
            EventKind::EpisodeEnded { trajectory } if trajectory.best.is_none() => {
                let what = format!("over: {}", describe_ending(&trajectory.ending));
                self.note_about(trajectory.sample, &what);
            }
            EventKind::InfrastructureFailed {
                episode: Some(episode),
                failure,
                retry_in_seconds,
            } => {
                let what = match retry_in_seconds {
                    Some(seconds) => format!("{} (again in {seconds:.0} s)", failure.message),
                    None => format!("over: {}", failure.message),
                };
                self.note_about(episode.sample, &what);
            }
            _ => {}
        }
    }
}

/// What is measured next.
pub(super) fn final_round(round: FinalRound) -> String {
    match round {
        FinalRound::Finalist { author } => {
            format!("measuring afresh: what {} wrote", describe_author(author))
        }
        FinalRound::Winner { author } => {
            format!(
                "measuring once more: the quickest, by {}",
                describe_author(author)
            )
        }
    }
}

/// What happens before the policy is asked.
pub(super) fn start(progress: &StartProgress<'_>) -> String {
    match progress {
        StartProgress::Capturing => "capturing the module's graph".to_owned(),
        StartProgress::Absent(reason) => {
            format!("the compiler does not cover this module: {}", why(reason))
        }
        StartProgress::Judging(author) => {
            let whose = match author {
                StartAuthor::Compiler => "the compiler's solution",
                StartAuthor::User => "the solution to start from",
            };
            format!("judging {whose}: about a minute where the task's baselines are new")
        }
        StartProgress::Judged(verdict) => format!("  {}", verdict_line(verdict)),
        // Of a line that changes, not of one for each variant.
        StartProgress::Tuning(_) => String::new(),
        StartProgress::Tuned(None) => "tuning: nothing is faster".to_owned(),
        StartProgress::Tuned(Some(tuned)) => format!("tuning: {}", tuned_line(tuned)),
    }
}

/// What measuring changed, in one line.
fn tuned_line(tuned: &TunedStart) -> String {
    let ComparedTimes { usual_us, tuned_us } = tuned.times;
    format!(
        "{} instead of {} ({:.2}x) with {}",
        time(tuned_us),
        time(usual_us),
        usual_us / tuned_us,
        tuned.changes.join("; ")
    )
}

/// A verdict in one line.
pub(crate) fn verdict_line(verdict: &Verdict) -> String {
    match (&verdict.times_us, &verdict.reason) {
        (Some(times), _) => {
            let compile = times.compile.as_ref();
            let compile = compile.map(|us| format!(", torch.compile {}", time(us.0)));
            format!(
                "passed: {}; eager {}{}",
                time(times.candidate.0),
                time(times.eager.0),
                compile.unwrap_or_default()
            )
        }
        (None, Some(reason)) => format!("{}: {}", verdict.status.name(), gist(reason)),
        (None, None) => verdict.status.name().to_owned(),
    }
}

/// The line that matters: a compiler names files before its first error, Python ends with what went wrong.
fn gist(reason: &str) -> &str {
    let mut lines = reason.lines().filter(|line| !line.trim().is_empty());
    let first = lines.clone().next().unwrap_or_default();
    if first.starts_with("Traceback ") {
        return lines.next_back().unwrap_or(first);
    }
    lines.find(|line| line.contains("error:")).unwrap_or(first)
}

/// A call in a few words.
fn describe_call(call: &ToolCall) -> String {
    let argument = |field: &str| {
        call.arguments[field]
            .as_str()
            .and_then(|text| text.lines().next())
    };
    let what = ["path", "pattern", "command"]
        .into_iter()
        .find_map(argument);
    match what {
        Some(what) => format!("{} {what}", call.name),
        None => call.name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::gist;

    #[test]
    fn the_line_that_matters_is_shown() {
        let python = "Traceback (most recent call last):\n  File \"worker.py\", line 4, in serve\nTypeError: an argument is missing\n";
        assert_eq!(gist(python), "TypeError: an argument is missing");
        let compiler =
            "== kernels/a.cpp\nkernels/a.cpp:3:1: error: expected a semicolon\n  3 | }\n";
        assert_eq!(
            gist(compiler),
            "kernels/a.cpp:3:1: error: expected a semicolon"
        );
        assert_eq!(gist("output 0 is wrong"), "output 0 is wrong");
    }
}
