//! What comes out: a folder with a correct module, and the numbers that stand behind it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use warpsmith_schema::{EpisodeEnding, FORMAT, MODEL_NEW, Task, Trajectory, Usage, Verdict};

use super::finals::Winner;
use super::package;
use crate::commands::judge::speedup;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::render::{Table, time};

/// The original under the name that users import.
const UNCHANGED: &str = "\"\"\"No faster module was found: this is the original.\"\"\"\n\nfrom model import Model as ModelNew\n\n__all__ = [\"ModelNew\"]\n";

pub(super) struct Outcome<'a> {
    task: &'a Task,
    trajectories: Vec<&'a Trajectory>,
    /// How many were asked for.
    samples: u32,
    winner: Option<Winner>,
    folder: PathBuf,
}

impl<'a> Outcome<'a> {
    /// Lays the result out.
    pub(super) fn of(
        task: &'a Task,
        trajectories: Vec<&'a Trajectory>,
        samples: u32,
        winner: Option<Winner>,
        run: &Path,
    ) -> Result<Self, Stop> {
        let outcome = Self {
            task,
            trajectories,
            samples,
            winner,
            folder: run.join("result"),
        };
        lay_out(&outcome.folder, &outcome.files())?;
        Ok(outcome)
    }

    fn verdict(&self) -> Option<&Verdict> {
        self.winner.as_ref().map(|winner| &winner.verdict)
    }

    /// A module that is right but no quicker than the original is no result.
    fn improved(&self) -> bool {
        let over = self.verdict().and_then(|verdict| verdict.matched_precision);
        over.is_some_and(|matched| matched.speedup.eager.0 > 1.0)
    }

    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let mut files = match &self.winner {
            Some(winner) if self.improved() => {
                let mut files = package::files(self.task, &winner.submission);
                files.extend(winner.submission.files.clone());
                files
            }
            _ => BTreeMap::from([(MODEL_NEW.to_owned(), UNCHANGED.as_bytes().to_vec())]),
        };
        let model = self.task.source.clone().into_bytes();
        files.insert("model.py".to_owned(), model);
        files
    }

    pub(super) fn exit(&self, required: Option<f64>, printer: &Printer) -> Exit {
        let reached = self.verdict().and_then(speedup);
        match required {
            Some(required) if !reached.is_some_and(|reached| reached >= required) => {
                printer.note(&format!("below --require-speedup {required}"));
                Exit::NO
            }
            _ => Exit::DONE,
        }
    }

    pub(super) fn report(&self, run: &Path, printer: &Printer) -> Result<(), Stop> {
        if printer.json() {
            printer.object(&self.json(run))
        } else {
            Ok(printer.data(&self.table())?)
        }
    }

    fn attempts(&self) -> usize {
        self.trajectories.iter().map(|one| one.attempts.len()).sum()
    }

    fn json(&self, run: &Path) -> Value {
        let mut usage = Usage::default();
        for one in &self.trajectories {
            usage += one.usage;
        }
        let sample = self.winner.as_ref().map(|winner| winner.sample);
        // Of the sample that the result is from, else of the last.
        let told = self
            .trajectories
            .iter()
            .find(|one| Some(one.sample) == sample);
        let told = told.or(self.trajectories.last());
        let samples: Vec<Value> = self
            .trajectories
            .iter()
            .map(|one| {
                let passed = one.attempts.iter().filter(|attempt| attempt.verdict.passed());
                json!({
                    "sample": one.sample, "id": one.id, "ending": one.ending, "attempts": one.attempts.len(),
                    "passed": passed.count(), "usage": one.usage, "seconds": one.seconds,
                })
            })
            .collect();
        json!({
            "format": FORMAT, "task": self.task.name, "policy": told.map(|one| &one.policy),
            "ending": told.map(|one| &one.ending), "sample": sample, "samples": samples, "attempts": self.attempts(),
            "usage": usage, "verdict": self.verdict(), "improved": self.improved(), "result": self.folder, "run": run,
        })
    }

    fn table(&self) -> String {
        let mut table = Table::titled(&self.task.name);
        let times = self.verdict().and_then(|verdict| verdict.times_us.as_ref());
        if let Some(times) = times {
            let over = |us: f64| format!("{:>12}  {:.2}x", time(us), us / times.candidate.0);
            table.row("eager", &over(times.eager.0));
            if let Some(compile) = &times.compile {
                table.row("torch.compile", &over(compile.0));
            }
            table.row("ours", &format!("{:>12}", time(times.candidate.0)));
            if !self.improved() {
                let slower = "the best that passed is no quicker than the original, which is kept";
                table.row("result", slower);
            }
        } else {
            let why = format!(
                "no attempt passed ({}); the original module is kept",
                self.why()
            );
            table.row("result", &why);
        }
        table.row("attempts", &self.attempts().to_string());
        if self.samples > 1 {
            table.row("samples", &self.told_samples());
        }
        table.row("folder", &self.folder.display().to_string());
        if self.improved() {
            let package = self.folder.join(package::FOLDER);
            table.row("install", &format!("pip install {}", package.display()));
            let name = package::name(&self.task.name);
            table.row("import", &format!("from {name} import ModelNew"));
        }
        table.text()
    }

    fn told_samples(&self) -> String {
        let passed = |one: &&&Trajectory| one.best.is_some();
        let passed = self.trajectories.iter().filter(passed).count();
        let begun = match self.trajectories.len() as u32 {
            all if all == self.samples => all.to_string(),
            some => format!("{some} of {} begun", self.samples),
        };
        let from = self.winner.as_ref().map(|winner| winner.sample);
        let from = from.map(|sample| format!(", the best is of sample {sample}"));
        format!(
            "{begun}, {passed} with a passed attempt{}",
            from.unwrap_or_default()
        )
    }

    /// Every kind of ending once, with how often it came.
    fn why(&self) -> String {
        let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
        for one in &self.trajectories {
            *kinds.entry(words(&one.ending)).or_default() += 1;
        }
        let told = kinds.into_iter().map(|(words, count)| match count {
            1 => words,
            count => format!("{count} times: {words}"),
        });
        told.collect::<Vec<_>>().join("; ")
    }
}

/// Why an episode without a passed attempt is over.
pub(super) fn words(ending: &EpisodeEnding) -> String {
    match ending {
        EpisodeEnding::Finished => "all repairs were used".to_owned(),
        EpisodeEnding::Limit { which } => format!("a limit was reached: {which:?}").to_lowercase(),
        EpisodeEnding::ContextFull => "the policy's context was full".to_owned(),
        EpisodeEnding::NothingUsable => "no reply held files to judge".to_owned(),
        EpisodeEnding::Looping => "the policy said the same again".to_owned(),
        EpisodeEnding::NotCovered { message } => {
            format!("the policy does not cover this task: {message}")
        }
        EpisodeEnding::PolicyFailed { message } => message.clone(),
        EpisodeEnding::Interrupted => "interrupted".to_owned(),
    }
}

/// What is there already and the same stays untouched, with whatever else lies there; another result is moved aside.
fn lay_out(folder: &Path, files: &BTreeMap<String, Vec<u8>>) -> Result<(), Stop> {
    let same = |(name, content): (&String, &Vec<u8>)| {
        fs_err::read(folder.join(name)).is_ok_and(|found| found == *content)
    };
    if files.iter().all(same) {
        return Ok(());
    }
    if folder.exists() {
        let mut places = (1_u32..).map(|number| folder.with_extension(number.to_string()));
        if let Some(place) = places.find(|place| !place.exists()) {
            fs_err::rename(folder, place)?;
        }
    }
    for (name, content) in files {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            fs_err::create_dir_all(parent)?;
        }
        fs_err::write(path, content)?;
    }
    Ok(())
}
