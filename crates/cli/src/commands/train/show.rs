//! A run that learns, for the person who waits and for scripts.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use warpsmith_train::metrics::{self, Numbers};
use warpsmith_train::recipes::{TrainedRun, Watch};

use crate::exit::Exit;
use crate::failure::Stop;
use crate::interrupt;
use crate::printer::Printer;

/// Where there is no terminal, a line after this long.
const SILENCE: Duration = Duration::from_secs(10);

pub(super) struct Show<'a> {
    printer: &'a Printer,
    bar: Option<ProgressBar>,
    spoken: Option<Instant>,
    /// Numbers worth a person's attention, of those there are.
    told: &'a [&'static str],
}

impl<'a> Show<'a> {
    pub(super) fn new(printer: &'a Printer, told: &'a [&'static str]) -> Self {
        // The first signal ends the run after the step it is at.
        interrupt::drain_first();
        Self {
            printer,
            bar: (io::stderr().is_terminal() && !printer.quiet()).then(bar),
            spoken: None,
            told,
        }
    }

    fn words(&self, numbers: &Numbers) -> String {
        let word = |name: &&'static str| {
            let number = numbers.get(name)?;
            Some(format!("{} {number:.4}", name.replace('_', " ")))
        };
        self.told
            .iter()
            .filter_map(word)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

impl Watch for Show<'_> {
    fn stepped(&mut self, step: u64, steps: u64, numbers: &Numbers) {
        let words = self.words(numbers);
        if let Some(bar) = &self.bar {
            bar.set_length(steps);
            bar.set_position(step);
            bar.set_message(words);
            return;
        }
        let due = self.spoken.is_none_or(|spoken| spoken.elapsed() > SILENCE);
        if due || step == steps || self.printer.verbose() {
            self.spoken = Some(Instant::now());
            let line = format!("step {step} of {steps}: {words}");
            self.printer.note(&line);
        }
    }

    fn wants_stop(&mut self) -> bool {
        interrupt::happened()
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let template = "{wide_bar} {pos}/{len} steps, {elapsed}, about {eta} left\n{msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Says what came of a run.
pub(super) fn report(run: &TrainedRun, printer: &Printer) -> Result<Exit, Stop> {
    if printer.json() {
        printer.object(&run.object()?)?;
    } else {
        tell(run, printer)?;
    }
    if run.outcome.interrupted {
        return Err(Stop::interrupted());
    }
    Ok(Exit::DONE)
}

fn tell(run: &TrainedRun, printer: &Printer) -> Result<(), Stop> {
    let outcome = &run.outcome;
    let lines = metrics::read(&run.folder)?;
    let last = lines.last().map(|(_, numbers)| numbers);
    let mut said = vec![format!("{} of {} steps", outcome.step, outcome.steps)];
    let numbers = last
        .into_iter()
        .flatten()
        .filter(|(name, _)| *name != "step");
    said.extend(numbers.map(|(name, number)| format!("{name:<26} {number:.6}")));
    if let Some(best) = outcome.best {
        said.push(format!(
            "best on what is held out: after step {}",
            best.step
        ));
    }
    if let Some(published) = &outcome.published {
        said.push(format!("published: {}", published.display()));
    }
    Ok(printer.lines(&said)?)
}
