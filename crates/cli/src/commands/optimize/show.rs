//! An episode, live, for the person who waits.

use warpsmith_agent::{Files, Unreadable, Watch};
use warpsmith_schema::{Elision, ToolCall, Verdict};

use crate::interrupt;
use crate::printer::Printer;
use crate::render::time;

pub(super) struct Show<'a> {
    printer: &'a Printer,
    characters: usize,
}

impl<'a> Show<'a> {
    pub(super) fn new(printer: &'a Printer) -> Self {
        Self {
            printer,
            characters: 0,
        }
    }
}

impl Watch for Show<'_> {
    fn asking(&mut self, turn: u32) {
        self.characters = 0;
        self.printer
            .note(&format!("turn {turn}: asking the policy"));
    }

    fn elided(&mut self, elision: &Elision) {
        self.printer.note(&format!(
            "turn {}: the conversation grew long; {} old tool answers, about {} tokens, are left out of it",
            elision.turn,
            elision.left_out.len(),
            elision.freed_tokens
        ));
    }

    fn text(&mut self, piece: &str) {
        self.characters += piece.chars().count();
    }

    fn unreadable(&mut self, why: &Unreadable) {
        let count = self.characters;
        self.printer.note(&format!(
            "  a reply of {count} characters, not usable: {why}"
        ));
    }

    fn judging(&mut self, files: &Files) {
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        self.printer.note(&format!(
            "  a reply of {} characters with {}; judging",
            self.characters,
            names.join(", ")
        ));
    }

    fn called(&mut self, call: &ToolCall) {
        self.printer.note(&format!("  {}", said(call)));
    }

    fn answered(&mut self, call: &ToolCall, text: &str, failed: bool) {
        // A verdict is told by itself.
        if failed && !matches!(call.name.as_str(), "judge" | "submit") {
            let first = text.lines().find(|line| !line.trim().is_empty());
            self.printer
                .note(&format!("    failed: {}", first.unwrap_or_default()));
        }
    }

    fn judged(&mut self, verdict: &Verdict) {
        self.printer.note(&format!("  {}", line(verdict)));
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
        (None, Some(reason)) => {
            let first = reason.lines().next().unwrap_or_default();
            format!("{}: {first}", verdict.status.name())
        }
        (None, None) => verdict.status.name().to_owned(),
    }
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
