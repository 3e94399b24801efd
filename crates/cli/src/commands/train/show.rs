//! A run that learns, for the person who waits and for scripts.

use std::path::PathBuf;
use std::time::Duration;

use warpsmith_report::LiveCurves;
use warpsmith_train::metrics::{self, Numbers};
use warpsmith_train::recipes::{TrainedRun, Watch};

use super::tracking::{Tracker, Tracking};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::interrupt;
use crate::live::Live;
use crate::printer::Printer;

/// Where there is no terminal, a line after this long.
const SILENCE: Duration = Duration::from_secs(10);

pub(super) struct Show<'a> {
    printer: &'a Printer,
    live: Live,
    /// Whether a step of this process began.
    begun: bool,
    /// Numbers worth a person's attention, of those there are.
    told: &'a [&'static str],
    words: String,
    /// The run's folder, once it is there.
    folder: Option<PathBuf>,
    curves: Option<LiveCurves>,
    /// Whether curves could not be written.
    undrawn: bool,
    trackers: Vec<Tracker>,
    /// From the first step on.
    tracking: Option<Tracking>,
}

impl<'a> Show<'a> {
    pub(super) fn new(
        printer: &'a Printer,
        told: &'a [&'static str],
        folder: Option<PathBuf>,
        trackers: Vec<Tracker>,
    ) -> Self {
        // The first signal ends the run after the step it is at.
        interrupt::drain_first();
        Self {
            printer,
            live: Live::new(printer, "steps", SILENCE),
            begun: false,
            told,
            words: String::new(),
            folder,
            curves: None,
            undrawn: false,
            trackers,
            tracking: None,
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

impl Show<'_> {
    /// For trackers, and curves for TensorBoard. That these cannot be written is said once, and ends no training.
    fn draw(&mut self, step: u64, numbers: &Numbers) {
        if let Some(folder) = &self.folder {
            let (trackers, printer) = (&self.trackers, self.printer);
            let begin = || Tracking::start(trackers, folder, printer);
            let tracking = self.tracking.get_or_insert_with(begin);
            tracking.step(step, numbers, printer);
        }
        let drawn = match (&mut self.curves, &self.folder) {
            _ if self.undrawn => return,
            (Some(curves), _) => curves.add(step, numbers.iter().map(|(name, one)| (*name, *one))),
            // With this step, which the metrics have by now.
            (None, Some(folder)) => {
                LiveCurves::begin(folder).map(|begun| self.curves = Some(begun))
            }
            (None, None) => Ok(()),
        };
        if let Err(error) = drawn {
            self.undrawn = true;
            self.printer
                .note(&format!("no curves for TensorBoard: {error}"));
        }
    }
}

impl Watch for Show<'_> {
    fn begins(&mut self, step: u64, steps: u64) {
        if !self.begun {
            self.begun = true;
            // The first step takes longer than others: it is no measure of them.
            self.live
                .describe(step - 1, steps, &format!("step {step} is under way"));
        }
    }

    fn stepped(&mut self, step: u64, steps: u64, numbers: &Numbers) {
        self.draw(step, numbers);
        self.words = self.words(numbers);
        if self.printer.verbose() && step < steps {
            self.live
                .say(&format!("step {step} of {steps}: {}", self.words));
        }
        self.live.show(step, steps, &self.words);
        if step == steps {
            self.live.finish();
        }
    }

    fn wants_stop(&mut self) -> bool {
        interrupt::happened()
    }
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
    said.push(format!("run: {}", run.folder.display()));
    if let Some(published) = &outcome.published {
        said.push(format!("published: {}", published.display()));
    }
    for warning in run.warnings()? {
        said.push(format!("warning: {warning}"));
    }
    said.extend(next(run).iter().map(|line| format!("next: {line}")));
    Ok(printer.lines(&said)?)
}

/// What to do with what came out.
fn next(run: &TrainedRun) -> Vec<String> {
    let folder = run.folder.display();
    let mut next = vec![format!("warpsmith report {folder}")];
    if run.outcome.step < run.outcome.steps {
        return next;
    }
    if let Some(policy) = &run.policy {
        let policy = interrupt::quoted(policy);
        next.push(format!("warpsmith rollout --tasks FILE --policy {policy}"));
    }
    next
}
