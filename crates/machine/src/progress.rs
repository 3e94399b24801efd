use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How long work tells a person that it goes on. Never carries data: that is stdout's.
pub trait Progress {
    /// One line worth keeping.
    fn say(&self, line: &str);
    /// Something of known or unknown size begins; the bar of what came before ends.
    fn start(&self, what: &str, total_bytes: Option<u64>);
    fn advance(&self, bytes: u64);
    fn finish(&self);
}

/// Says nothing: for `-q`, and for tests.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn say(&self, _line: &str) {}
    fn start(&self, _what: &str, _total_bytes: Option<u64>) {}
    fn advance(&self, _bytes: u64) {}
    fn finish(&self) {}
}

/// Bars on stderr where a terminal is, a line a step where none is (a log should not be full of bars).
#[derive(Debug, Default)]
pub struct Bars {
    current: Mutex<Option<ProgressBar>>,
}

impl Bars {
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

/// A closed stderr is no reason to fail.
fn print(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

impl Progress for Bars {
    fn say(&self, line: &str) {
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
