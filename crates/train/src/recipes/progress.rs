//! What every recipe does around its steps.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warpsmith_kernels::training::{AdamW, AdamWStep};
use warpsmith_model::HostTensor;

use crate::checkpoint::{Checkpoint, Checkpoints, PUBLISHED, has_files, write_failed};
use crate::lr_schedule::{LrSchedule, LrSchedulerType};
use crate::metrics::{Numbers, StepMetrics};
use crate::network::{Published, Trainable};
use crate::{Alarm, Guard, TrainError};

/// Where a run is kept, and how often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keeping {
    /// The run's folder.
    pub folder: PathBuf,
    /// Where the model was read from.
    pub origin: PathBuf,
    /// A checkpoint after so many steps; there is always one after the last.
    pub every: u64,
    /// So many checkpoints are kept, the latest.
    pub checkpoints: usize,
}

/// Whoever follows a run.
pub trait Watch {
    /// A step begins, of so many. The first may take minutes.
    fn begins(&mut self, _step: u64, _steps: u64) {}

    /// A step was made, of so many.
    fn stepped(&mut self, step: u64, steps: u64, numbers: &Numbers);

    /// Whether the run should stop after the step it is at.
    fn wants_stop(&mut self) -> bool {
        false
    }
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq)]
pub struct RecipeOutcome {
    /// Steps that were made, by whichever process.
    pub step: u64,
    pub steps: u64,
    /// Somebody stopped it; the same command goes on.
    pub interrupted: bool,
    /// What the policy has learnt, where one learns.
    pub published: Option<PathBuf>,
    /// The step after which it did best on what is held out, where something is.
    pub best: Option<Best>,
}

/// The best checkpoint so far, which is kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub step: u64,
    /// More is better.
    pub merit: f64,
}

/// AdamW, and the learning rate along the steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OptimizerSettings {
    pub learning_rate: f64,
    pub warmup_steps: u64,
    pub lr_scheduler_type: LrSchedulerType,
    pub adamw: AdamW,
}

impl OptimizerSettings {
    /// The update of a step of so many; `number` counts updates from one.
    pub(super) fn update(&self, step: u64, steps: u64, number: u64) -> AdamWStep {
        let schedule = LrSchedule {
            learning_rate: self.learning_rate,
            warmup_steps: self.warmup_steps,
            steps,
            lr_scheduler_type: self.lr_scheduler_type,
        };
        AdamWStep {
            adamw: self.adamw,
            learning_rate: schedule.at(step),
            step: number,
        }
    }
}

/// States of networks, by name.
pub(super) type States = BTreeMap<String, BTreeMap<String, HostTensor>>;

/// A run under way.
pub(super) struct Progress<'a> {
    keeping: &'a Keeping,
    checkpoints: Checkpoints,
    metrics: StepMetrics,
    guard: Guard,
    best: Option<Best>,
    /// Steps that were made.
    pub(super) step: u64,
    pub(super) steps: u64,
}

/// What there is to keep after a step.
pub(super) struct Kept<'a> {
    pub(super) networks: &'a [(&'static str, &'a dyn Trainable)],
    /// Further tensors to keep.
    pub(super) tensors: BTreeMap<String, HostTensor>,
    pub(super) memory: Value,
    /// How well it did on what is held out, where that was looked at: more is better.
    pub(super) merit: Option<f64>,
    pub(super) published: Option<&'a dyn Fn() -> Result<Published, TrainError>>,
}

/// What a run had kept beside its networks.
pub(super) struct Recalled {
    pub(super) tensors: BTreeMap<String, HostTensor>,
    pub(super) memory: Value,
}

/// Tensors of a recipe's own are kept under this name.
const OWN: &str = "recipe";
/// A link in a run's folder to what the best checkpoint published.
const BEST: &str = "best";

impl<'a> Progress<'a> {
    /// Goes on from the last checkpoint where there is one.
    pub(super) fn open(
        keeping: &'a Keeping,
        steps: u64,
        networks: &mut [(&'static str, &mut dyn Trainable)],
    ) -> Result<(Self, Option<Recalled>), TrainError> {
        let place = keeping.folder.join("checkpoints");
        let checkpoints = Checkpoints::new(place, keeping.checkpoints);
        let mut guard = Guard::default();
        let (mut step, mut recalled, mut best) = (0, None, None);
        if let Some(mut found) = checkpoints.load()? {
            let broken = |reason: String| TrainError::BrokenCheckpoint {
                path: checkpoints.place(found.step),
                reason,
            };
            for (name, network) in networks {
                let state = found.networks.get(*name);
                let state = state.ok_or_else(|| broken(format!("it has no `{name}`")))?;
                let restored = network.restore(state);
                restored.map_err(|error| broken(error.to_string()))?;
            }
            guard = serde_json::from_value(found.memory["guard"].take())
                .map_err(|error| broken(error.to_string()))?;
            best = serde_json::from_value(found.memory["best"].take())
                .map_err(|error| broken(error.to_string()))?;
            step = found.step;
            recalled = Some(Recalled {
                tensors: found.networks.remove(OWN).unwrap_or_default(),
                memory: found.memory["recipe"].take(),
            });
        }
        let progress = Self {
            metrics: StepMetrics::open(&keeping.folder, step)?,
            keeping,
            checkpoints,
            guard,
            best,
            step,
            steps,
        };
        // A process may have been killed before it could point there.
        if step > 0 {
            progress.point()?;
        }
        Ok((progress, recalled))
    }

    /// The checkpoint that a run goes on from does not say what this program needs.
    pub(super) fn broken(&self, reason: &dyn std::fmt::Display) -> TrainError {
        TrainError::BrokenCheckpoint {
            path: self.checkpoints.place(self.step),
            reason: reason.to_string(),
        }
    }

    /// Publishes what was learnt before, where the checkpoint it is from travelled and did not bring that along.
    pub(super) fn arrived(
        &self,
        publish: &dyn Fn() -> Result<Published, TrainError>,
    ) -> Result<(), TrainError> {
        let origin = &self.keeping.origin;
        if self.step > 0 {
            let published = self
                .checkpoints
                .publish(self.step, &mut |folder| publish()?.save(origin, folder))?;
            if published {
                self.point()?;
            }
        }
        Ok(())
    }

    /// Writes down what was found before the first step.
    pub(super) fn begun(
        &mut self,
        numbers: &Numbers,
        watch: &mut dyn Watch,
    ) -> Result<(), TrainError> {
        self.metrics.append(0, self.steps, numbers)?;
        watch.stepped(0, self.steps, numbers);
        Ok(())
    }

    /// Counts a step: a line of metrics, a look at those that tell a run gone wrong, a checkpoint where one is due. True where
    /// the run is to stop.
    pub(super) fn stepped(
        &mut self,
        numbers: &Numbers,
        guarded: &[(&'static str, Alarm)],
        kept: &Kept<'_>,
        watch: &mut dyn Watch,
    ) -> Result<bool, TrainError> {
        self.step += 1;
        let mut numbers = numbers.clone();
        // They are all on one device.
        if let Some((_, network)) = kept.networks.first()
            && let Some(bytes) = network.device_memory()?
        {
            numbers.insert("gpu_memory_gb", bytes as f64 / 1e9);
        }
        self.metrics.append(self.step, self.steps, &numbers)?;
        watch.stepped(self.step, self.steps, &numbers);
        for (name, alarm) in guarded {
            let value = numbers.get(name).copied();
            if let Some(reason) = value.and_then(|value| self.guard.hear(name, *alarm, value)) {
                return Err(TrainError::Diverged {
                    step: self.step,
                    reason,
                    good: self.checkpoints.last()?,
                });
            }
        }
        let stop = self.step < self.steps && watch.wants_stop();
        let before = self.best.map(|best| best.merit);
        let better = kept
            .merit
            .filter(|merit| before.is_none_or(|before| *merit > before));
        if let Some(merit) = better {
            let step = self.step;
            self.best = Some(Best { step, merit });
        }
        let due = self.step.is_multiple_of(self.keeping.every.max(1));
        if due || stop || better.is_some() || self.step == self.steps {
            self.keep(kept)?;
        }
        Ok(stop)
    }

    fn keep(&self, kept: &Kept<'_>) -> Result<(), TrainError> {
        let mut networks = States::new();
        for (name, network) in kept.networks {
            networks.insert((*name).to_owned(), network.state()?);
        }
        if !kept.tensors.is_empty() {
            networks.insert(OWN.to_owned(), kept.tensors.clone());
        }
        let checkpoint = Checkpoint {
            step: self.step,
            networks,
            memory: json!({ "guard": self.guard, "best": self.best, "recipe": kept.memory }),
        };
        let origin = &self.keeping.origin;
        let best = self.best.map(|best| best.step);
        self.checkpoints.save(&checkpoint, best, &mut |folder| {
            kept.published
                .map_or(Ok(()), |publish| publish()?.save(origin, folder))
        })?;
        self.point()
    }

    /// The run's `published` leads to what its last checkpoint has, its `best` to what the best one has.
    fn point(&self) -> Result<(), TrainError> {
        let folder = &self.keeping.folder;
        if let Some(best) = self.best {
            point_at(folder, BEST, &self.checkpoints.place(best.step))?;
        }
        point_at(folder, PUBLISHED, &self.checkpoints.place(self.step))
    }

    pub(super) fn outcome(&self, interrupted: bool) -> RecipeOutcome {
        let published = self.keeping.folder.join(PUBLISHED);
        RecipeOutcome {
            step: self.step,
            steps: self.steps,
            interrupted,
            published: published.exists().then_some(published),
            best: self.best,
        }
    }
}

/// Where a checkpoint has published anything. Replaced in one step.
fn point_at(folder: &Path, name: &str, checkpoint: &Path) -> Result<(), TrainError> {
    if !has_files(&checkpoint.join(PUBLISHED)) {
        return Ok(());
    }
    let link = folder.join(name);
    let begun = folder.join(format!(".{name}.new"));
    let failed = write_failed(&link);
    // Relative: a run may be moved.
    let relative = checkpoint.strip_prefix(folder).unwrap_or(checkpoint);
    let _ = fs_err::remove_file(&begun);
    symlink(relative.join(PUBLISHED), &begun).map_err(&failed)?;
    fs_err::rename(&begun, &link).map_err(&failed)
}
