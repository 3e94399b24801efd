//! The one live view of verbs that take long: a bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::printer::Printer;
use crate::remaining::Remaining;

const TICK: Duration = Duration::from_secs(1);

pub(crate) struct Live {
    printer: Printer,
    bar: Option<ProgressBar>,
    /// Where there is no terminal, a line after this long: a person wonders.
    silence: Duration,
    spoken: Option<Instant>,
    remaining: Remaining,
    /// What is counted.
    noun: &'static str,
}

impl Live {
    pub(crate) fn new(printer: &Printer, noun: &'static str, silence: Duration) -> Self {
        Self {
            bar: (io::stderr().is_terminal() && !printer.quiet()).then(|| bar(noun)),
            printer: printer.clone(),
            silence,
            spoken: None,
            remaining: Remaining::default(),
            noun,
        }
    }

    /// So many of those that are planned have ended, and what there is to say of it. From the first call on it is known how
    /// long they take.
    pub(crate) fn show(&mut self, ended: u64, planned: u64, words: &str) {
        self.remaining.ended(Instant::now(), ended);
        self.describe(ended, planned, words);
    }

    /// The same where what comes next is no measure of what comes later.
    pub(crate) fn describe(&mut self, ended: u64, planned: u64, words: &str) {
        let last = ended >= planned && self.bar.is_none();
        let left = self.remaining.words(planned);
        if let Some(bar) = &self.bar {
            bar.set_length(planned);
            bar.set_position(ended);
            bar.set_prefix(left);
            bar.set_message(words.to_owned());
        } else if last || self.spoken.is_none_or(|at| at.elapsed() > self.silence) {
            let noun = self.noun;
            self.say(&format!("{ended} of {planned} {noun}{left}; {words}"));
        }
    }

    /// What is worth a line of its own.
    pub(crate) fn say(&mut self, line: &str) {
        self.spoken = Some(Instant::now());
        match &self.bar {
            Some(bar) => bar.suspend(|| self.printer.note(line)),
            None => self.printer.note(line),
        }
    }

    /// A person was told enough for now.
    pub(crate) fn quiet_until_due(&mut self) {
        self.spoken.get_or_insert_with(Instant::now);
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn bar(noun: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let template = format!("{{wide_bar}} {{pos}}/{{len}} {noun}, {{elapsed}}{{prefix}}\n{{msg}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(TICK);
    bar
}
