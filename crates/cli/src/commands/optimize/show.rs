//! Episodes, live, for the person who waits; and kept, step by step.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use warpsmith_agent::{AgentError, Files, Unreadable, Watch};
use warpsmith_schema::{Elision, EpisodeEnding, ToolCall, Trajectory, Verdict};

use super::journal::Journal;
use super::result::words;
use crate::interrupt;
use crate::printer::Printer;
use crate::render::time;

/// After so long a silence a person wonders.
const SILENCE: Duration = Duration::from_secs(30);

pub(super) struct Show<'a> {
    printer: &'a Printer,
    pub(super) journal: &'a mut Journal,
    samples: u32,
    /// Of the replies under way, by sample.
    characters: BTreeMap<u32, usize>,
    spoken: Instant,
}

impl<'a> Show<'a> {
    pub(super) fn new(printer: &'a Printer, journal: &'a mut Journal, samples: u32) -> Self {
        Self {
            printer,
            journal,
            samples,
            characters: BTreeMap::new(),
            spoken: Instant::now(),
        }
    }

    fn note(&mut self, line: &str) {
        self.spoken = Instant::now();
        self.printer.note(line);
    }

    /// Says whose it is, where there are several.
    fn tell(&mut self, sample: u32, what: &str) {
        if self.samples > 1 {
            self.note(&format!("  sample {sample}: {what}"));
        } else {
            self.note(&format!("  {what}"));
        }
    }

    fn length(&self, sample: u32) -> usize {
        self.characters.get(&sample).copied().unwrap_or_default()
    }
}

impl Watch for Show<'_> {
    fn asking(&mut self, samples: &[u32], turn: u32) {
        self.characters.clear();
        let all = self.samples;
        let line = match samples {
            [_] if all == 1 => format!("turn {turn}: asking the policy"),
            [one] => format!("sample {one} of {all}, turn {turn}: asking the policy"),
            several => format!(
                "turn {turn}: asking the policy for {} of {all} samples",
                several.len()
            ),
        };
        self.note(&line);
    }

    fn elided(&mut self, sample: u32, elision: &Elision) {
        let line = format!(
            "the conversation grew long; {} old tool answers, about {} tokens, are left out of it",
            elision.elided.len(),
            elision.freed_tokens
        );
        self.tell(sample, &line);
    }

    fn text(&mut self, sample: u32, piece: &str) {
        *self.characters.entry(sample).or_default() += piece.chars().count();
        if self.spoken.elapsed() > SILENCE {
            let total: usize = self.characters.values().sum();
            self.note(&format!("  {total} characters so far"));
        }
    }

    fn unreadable(&mut self, sample: u32, why: &Unreadable) {
        let count = self.length(sample);
        self.tell(
            sample,
            &format!("a reply of {count} characters, not usable: {why}"),
        );
    }

    fn judging(&mut self, sample: u32, files: &Files) {
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        let names = names.join(", ");
        let what = match self.length(sample) {
            // Read by an earlier process.
            0 => format!("the reply with {names}; judging"),
            count => format!("a reply of {count} characters with {names}; judging"),
        };
        self.tell(sample, &what);
    }

    fn called(&mut self, sample: u32, call: &ToolCall) {
        self.tell(sample, &said(call));
    }

    fn answered(&mut self, sample: u32, call: &ToolCall, text: &str, failed: bool) {
        // A verdict is told by itself.
        if failed && !matches!(call.name.as_str(), "judge" | "submit") {
            let first = text.lines().find(|line| !line.trim().is_empty());
            let first = first.unwrap_or_default();
            self.tell(sample, &format!("  failed: {first}"));
        }
    }

    fn judged(&mut self, sample: u32, verdict: &Verdict) {
        self.tell(sample, &line(verdict));
    }

    fn reached(&mut self, so_far: &Trajectory) -> Result<(), AgentError> {
        // One that submitted what passed has said so already.
        if so_far.ending != EpisodeEnding::Interrupted && so_far.best.is_none() {
            self.tell(so_far.sample, &format!("over: {}", words(&so_far.ending)));
        }
        self.journal
            .keep(so_far)
            .map_err(|stop| AgentError::Keep(stop.0))
    }

    fn interrupted(&self) -> bool {
        interrupt::happened()
    }
}

/// A verdict in one line.
pub(super) fn line(verdict: &Verdict) -> String {
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
fn said(call: &ToolCall) -> String {
    let of = |field: &str| {
        call.arguments[field]
            .as_str()
            .and_then(|text| text.lines().next())
    };
    let what = ["path", "pattern", "command"].into_iter().find_map(of);
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
