//! An episode, live, for the person who waits.

use warpsmith_agent::{Files, Unreadable, Watch};
use warpsmith_schema::Verdict;

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
    fn asking(&mut self, attempt: u32) {
        self.characters = 0;
        self.printer
            .note(&format!("attempt {attempt}: asking the policy"));
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

    fn judged(&mut self, verdict: &Verdict) {
        let line = match (&verdict.times_us, &verdict.reason) {
            (Some(times), _) => format!(
                "passed: {} against {} eager",
                time(times.candidate.0),
                time(times.eager.0)
            ),
            (None, Some(reason)) => {
                let first = reason.lines().next().unwrap_or_default();
                format!("{}: {first}", verdict.status.name())
            }
            (None, None) => verdict.status.name().to_owned(),
        };
        self.printer.note(&format!("  {line}"));
    }

    fn interrupted(&self) -> bool {
        interrupt::happened()
    }
}
