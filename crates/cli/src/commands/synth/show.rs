//! A run of synthesis, live: a bar on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use warpsmith_synth::{CandidateOutcome, CandidateRecord, SynthProgress};

use crate::printer::Printer;

/// After so long a silence a person wonders.
const SILENCE: Duration = Duration::from_secs(20);

/// How quickly candidates went through, since this process began.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Pace {
    pub(super) candidates: usize,
    pub(super) seconds: f64,
    pub(super) candidates_a_minute: f64,
}

pub(super) struct Show<'a> {
    printer: &'a Printer,
    bar: Option<ProgressBar>,
    count: usize,
    begun: Instant,
    /// Candidates of earlier runs in the same folder.
    earlier: usize,
    tried: usize,
    spoken: Instant,
}

impl<'a> Show<'a> {
    pub(super) fn new(printer: &'a Printer, count: usize, before: &[CandidateRecord]) -> Self {
        let kept = before
            .iter()
            .filter(|record| matches!(record.outcome, CandidateOutcome::Kept(_)));
        let bar =
            (io::stderr().is_terminal() && !printer.quiet()).then(|| bar(count, kept.count()));
        Self {
            printer,
            bar,
            count,
            begun: Instant::now(),
            earlier: before.len(),
            tried: before.len(),
            spoken: Instant::now(),
        }
    }

    pub(super) fn update(&mut self, record: &CandidateRecord, progress: &SynthProgress) {
        if self.printer.verbose() {
            self.say(&line(record));
        }
        self.tried = progress.tried.len();
        let rate = self.pace().candidates_a_minute;
        let words = format!("{} candidates, {rate:.0} a minute", self.tried);
        match &self.bar {
            Some(bar) => {
                bar.set_position(progress.kept() as u64);
                bar.set_message(words);
            }
            None if self.spoken.elapsed() > SILENCE => {
                self.say(&format!(
                    "{} of {} tasks; {words}",
                    progress.kept(),
                    self.count
                ));
            }
            None => {}
        }
    }

    fn pace(&self) -> Pace {
        let seconds = self.begun.elapsed().as_secs_f64();
        let candidates = self.tried - self.earlier.min(self.tried);
        Pace {
            candidates,
            seconds,
            candidates_a_minute: 60.0 * candidates as f64 / seconds.max(0.1),
        }
    }

    fn say(&mut self, line: &str) {
        self.spoken = Instant::now();
        match &self.bar {
            Some(bar) => bar.suspend(|| self.printer.note(line)),
            None => self.printer.note(line),
        }
    }

    pub(super) fn finish(&self) -> Pace {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.pace()
    }
}

fn bar(count: usize, kept: usize) -> ProgressBar {
    let target = ProgressDrawTarget::stderr();
    let bar = ProgressBar::with_draw_target(Some(count as u64), target).with_position(kept as u64);
    let template = "{wide_bar} {pos}/{len} tasks, {elapsed}, about {eta} left\n{msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

fn line(record: &CandidateRecord) -> String {
    match &record.outcome {
        CandidateOutcome::Kept(row) => {
            let milliseconds = row.task.eager_us.unwrap_or(0.0) / 1e3;
            format!("kept {}: {milliseconds:.2} ms", row.task.id)
        }
        CandidateOutcome::Dropped(dropped) if dropped.detail.is_empty() => {
            format!("dropped {}: {}", record.index, dropped.reason)
        }
        CandidateOutcome::Dropped(dropped) => {
            format!(
                "dropped {}: {}: {}",
                record.index, dropped.reason, dropped.detail
            )
        }
    }
}
