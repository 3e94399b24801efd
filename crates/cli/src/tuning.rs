//! Tuning, for the person who waits: a line that changes, and with `-v` what was dropped.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use fs_err::OpenOptions;
use serde_json::json;
use warpsmith_compiler::{CompileOptions, SolutionFiles, Strategy, compile_with};
use warpsmith_judge::Judge;
use warpsmith_rollout::{
    RolloutError, TuningEvent, TuningKey, TuningLog, TuningOutcome, TuningRequest, tune_by_judge,
};
use warpsmith_schema::{Precision, Task};
use warpsmith_tasks::capture_graphs;

use crate::engine::Engine;
use crate::failure::Stop;
use crate::interrupt;
use crate::live::Live;
use crate::printer::Printer;
use crate::render::time;

const SILENCE: Duration = Duration::from_secs(15);

pub(crate) struct TuningShow {
    live: Live,
    verbose: bool,
}

impl TuningShow {
    pub(crate) fn new(printer: &Printer) -> Self {
        Self {
            live: Live::new(printer, "variants", SILENCE),
            verbose: printer.verbose(),
        }
    }

    pub(crate) fn hear(&mut self, event: &TuningEvent<'_>) {
        match event {
            TuningEvent::Progressed(progress) => {
                let tried = progress.tried as u64;
                let failed = match progress.failed {
                    0 => String::new(),
                    failed => format!(", {failed} dropped"),
                };
                let words = format!(
                    "best {} ({:.2}x){failed}",
                    time(progress.best_us),
                    progress.usual_us / progress.best_us
                );
                // The end is known when nothing is left to try.
                self.live
                    .describe(tried, tried + progress.left.max(1) as u64, &words);
            }
            TuningEvent::Dropped { variant, reason } if self.verbose => {
                let last = variant.changes.last().map_or("as it was", String::as_str);
                self.live.say(&format!("  dropped: {last}: {reason}"));
            }
            TuningEvent::Dropped { .. } => {}
            TuningEvent::Comparing => self.live.say("  the best in turn with the usual solution"),
        }
    }

    pub(crate) fn finish(&self) {
        self.live.finish();
    }
}

/// What was found for each task of a run, in its folder.
const SUMMARY: &str = "tuning.jsonl";

/// The compiler's solutions of several tasks that are others than the usual ones, by their ids: made faster by measuring, or in
/// another precision.
pub(crate) struct TuningRun<'a> {
    pub(crate) tasks: &'a [Task],
    pub(crate) engine: &'a Engine,
    /// For each task. Without it only what was measured before is used.
    pub(crate) budget: Option<Duration>,
    pub(crate) precision: Precision,
    pub(crate) folder: &'a Path,
}

impl TuningRun<'_> {
    pub(crate) fn tune(
        &self,
        judge: &mut dyn Judge,
        printer: &Printer,
    ) -> Result<HashMap<String, SolutionFiles>, Stop> {
        let mut tasks = self.tasks.to_vec();
        // Those without a graph are told of where the policy is asked about them.
        capture_graphs(&mut tasks, &self.engine.python, &self.engine.caches)?;
        let mut faster = HashMap::new();
        for task in tasks.iter().filter(|task| task.graph.is_some()) {
            if interrupt::happened() {
                return Err(Stop::interrupted());
            }
            // A precision that was asked for needs no measurement.
            if self.precision != Precision::Fp32
                && let Ok(solution) = compile_with(task, self.engine.target, &self.options())
            {
                faster.insert(task.id.clone(), solution.files);
            }
            match self.tune_one(task, judge, printer) {
                Ok(None) => {}
                Ok(Some(outcome)) => {
                    self.note(task, &outcome)?;
                    if let Some(files) = outcome.faster() {
                        faster.insert(task.id.clone(), files.clone());
                    }
                }
                // The run itself says what is wrong with a task.
                Err(error) => printer.note(&format!("`{}` was not tuned: {error}", task.id)),
            }
        }
        Ok(faster)
    }

    fn options(&self) -> CompileOptions {
        CompileOptions {
            precision: self.precision,
            ..Strategy::Tuned.into()
        }
    }

    fn tune_one(
        &self,
        task: &Task,
        judge: &mut dyn Judge,
        printer: &Printer,
    ) -> Result<Option<TuningOutcome>, RolloutError> {
        let Some(graph) = &task.graph else {
            return Ok(None);
        };
        let key = TuningKey {
            graph,
            target: self.engine.target,
            device: &self.engine.device_name(),
            torch: &self.engine.python.torch.version,
        };
        let log = TuningLog::open(&self.engine.caches.tuning(), key)?;
        if self.budget.is_none() && !log.is_known() {
            return Ok(None);
        }
        printer.note(&format!("tuning `{}`", task.id));
        let mut show = TuningShow::new(printer);
        let outcome = tune_by_judge(TuningRequest {
            task,
            target: self.engine.target,
            options: self.options(),
            budget: self.budget,
            log,
            judge,
            stop: &interrupt::happened,
            watch: &mut |event| show.hear(&event),
        });
        show.finish();
        outcome
    }

    /// A line of the run's summary, at once: whoever is cut short has what was found until then.
    fn note(&self, task: &Task, outcome: &TuningOutcome) -> Result<(), Stop> {
        let found = &outcome.found;
        let compared = outcome.compared;
        let line = json!({
            "task": task.id, "tried": found.tried, "dropped": found.failed, "exhausted": found.exhausted,
            "changes": found.best.changes, "faster": outcome.faster().is_some(),
            "usual_us": compared.map_or(found.usual_us, |times| times.usual_us),
            "tuned_us": compared.map_or(found.best_us, |times| times.tuned_us),
            "eager_us": outcome.baselines.map(|times| times.eager_us),
            "compile_us": outcome.baselines.and_then(|times| times.compile_us),
        });
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.join(SUMMARY))?;
        Ok(file.write_all(format!("{line}\n").as_bytes())?)
    }
}
