//! A run that learns, for the person who waits and for scripts.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use warpsmith_schema::FORMAT;
use warpsmith_train::metrics::{self, Numbers};
use warpsmith_train::recipes::{RecipeOutcome, Watch};

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

/// What came of a run.
pub(super) struct Learnt {
    pub(super) verb: &'static str,
    pub(super) outcome: RecipeOutcome,
    pub(super) folder: PathBuf,
    /// What else there is to say, for scripts.
    pub(super) about: Map<String, Value>,
}

impl Learnt {
    pub(super) fn object(&self) -> Result<Map<String, Value>, Stop> {
        let outcome = &self.outcome;
        let lines = metrics::read(&self.folder)?;
        let last = lines.last().map(|(_, numbers)| numbers);
        let mut object = self.about.clone();
        for (name, value) in [
            ("format", json!(FORMAT)),
            ("verb", json!(format!("train {}", self.verb))),
            ("run", json!(self.folder)),
            ("step", json!(outcome.step)),
            ("steps", json!(outcome.steps)),
            ("interrupted", json!(outcome.interrupted)),
            ("published", json!(outcome.published)),
            ("best", json!(outcome.best)),
            ("metrics", json!(last)),
        ] {
            object.insert(name.to_owned(), value);
        }
        Ok(object)
    }

    pub(super) fn report(&self, printer: &Printer) -> Result<Exit, Stop> {
        if printer.json() {
            printer.object(&self.object()?)?;
        } else {
            self.tell(printer)?;
        }
        if self.outcome.interrupted {
            return Err(Stop::interrupted());
        }
        Ok(Exit::DONE)
    }

    fn tell(&self, printer: &Printer) -> Result<(), Stop> {
        let outcome = &self.outcome;
        let lines = metrics::read(&self.folder)?;
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
}
