//! How long work reports its progress to a person.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Receives the progress of long work, for a person. Data goes to stdout instead.
pub trait ProgressReporter {
    /// One line that stays.
    fn message(&self, line: &str);
    /// Begins a step of known or unknown size and ends the bar of the step before.
    fn start(&self, what: &str, total_bytes: Option<u64>);
    fn advance(&self, bytes: u64);
    fn finish(&self);
}

/// Reports nothing: for `-q`, and for tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl ProgressReporter for NoProgress {
    fn message(&self, _line: &str) {}
    fn start(&self, _what: &str, _total_bytes: Option<u64>) {}
    fn advance(&self, _bytes: u64) {}
    fn finish(&self) {}
}

/// Bars on stderr if that is a terminal, else one line a step.
#[derive(Debug, Default)]
pub struct ProgressBars {
    current: Mutex<Option<ProgressBar>>,
}

impl ProgressBars {
    pub fn new() -> Self {
        Self::default()
    }

    fn replace(&self, bar: Option<ProgressBar>) -> Option<ProgressBar> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *current, bar)
    }

    fn with(&self, act: impl FnOnce(&ProgressBar)) -> bool {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = current.as_ref() {
            act(bar);
        }
        current.is_some()
    }
}

/// A closed stderr is not an error.
fn print(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

impl ProgressReporter for ProgressBars {
    fn message(&self, line: &str) {
        if !self.with(|bar| bar.suspend(|| print(line))) {
            print(line);
        }
    }

    fn start(&self, what: &str, total_bytes: Option<u64>) {
        self.finish();
        if !io::stderr().is_terminal() {
            match total_bytes {
                Some(total) => print(&format!("{what} ({})", HumanBytes(total))),
                None => print(what),
            }
            return;
        }
        let (bar, template) = match total_bytes {
            Some(total) => (
                ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr()),
                "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            ),
            None => (
                ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()),
                "{spinner} {msg} {bytes} {elapsed}",
            ),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        self.replace(Some(bar));
    }

    fn advance(&self, bytes: u64) {
        self.with(|bar| bar.inc(bytes));
    }

    fn finish(&self) {
        if let Some(bar) = self.replace(None) {
            bar.finish_and_clear();
        }
    }
}
