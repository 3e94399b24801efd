//! What every recipe does around its steps.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::checkpoint::{Checkpoint, Checkpoints, PUBLISHED, write_failed};
use crate::metrics::{Metrics, Numbers};
use crate::network::{Published, Trainable};
use crate::optimizer::{AdamW, Decline, Schedule, Update};
use crate::{Guard, TrainError};

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
    /// A step was made, of so many.
    fn stepped(&mut self, step: u64, steps: u64, numbers: &Numbers);

    /// Whether the run should stop after the step it is at.
    fn wants_stop(&mut self) -> bool {
        false
    }
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Steps that were made, by whichever process.
    pub step: u64,
    pub steps: u64,
    /// Somebody stopped it; the same command goes on.
    pub interrupted: bool,
    /// What the policy has learnt, where one learns.
    pub published: Option<PathBuf>,
}

/// How quickly a network learns.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    pub peak: f64,
    pub warmup: u64,
    pub decline: Decline,
    pub adamw: AdamW,
}

impl Rates {
    /// The update of a step of so many; `number` counts updates from one.
    pub(super) fn update(&self, step: u64, steps: u64, number: u64) -> Update {
        let schedule = Schedule {
            peak: self.peak,
            warmup: self.warmup,
            steps,
            decline: self.decline,
        };
        Update {
            adamw: self.adamw,
            rate: schedule.rate(step),
            step: number,
        }
    }
}

/// States of networks, by name.
pub(super) type States = BTreeMap<String, BTreeMap<String, Tensor>>;

/// A run under way.
pub(super) struct Progress<'a> {
    keeping: &'a Keeping,
    checkpoints: Checkpoints,
    metrics: Metrics,
    guard: Guard,
    /// Steps that were made.
    pub(super) step: u64,
    pub(super) steps: u64,
}

/// What there is to keep after a step.
pub(super) struct Kept<'a> {
    pub(super) networks: &'a [(&'static str, &'a dyn Trainable)],
    /// Further tensors to keep.
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) memory: Value,
    pub(super) published: Option<&'a dyn Fn() -> Result<Published, TrainError>>,
}

/// What a run had kept beside its networks.
pub(super) struct Recalled {
    pub(super) tensors: BTreeMap<String, Tensor>,
    pub(super) memory: Value,
}

/// Tensors of a recipe's own are kept under this name.
const OWN: &str = "recipe";

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
        let (mut step, mut recalled) = (0, None);
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
            step = found.step;
            // A process may have been killed before it could point there.
            point_at(&keeping.folder, &checkpoints.place(step))?;
            recalled = Some(Recalled {
                tensors: found.networks.remove(OWN).unwrap_or_default(),
                memory: found.memory["recipe"].take(),
            });
        }
        let progress = Self {
            metrics: Metrics::open(&keeping.folder, step)?,
            keeping,
            checkpoints,
            guard,
            step,
            steps,
        };
        Ok((progress, recalled))
    }

    /// Counts a step: a line of metrics, a look at those that should not rise, a checkpoint where one is due. True where
    /// the run is to stop.
    pub(super) fn stepped(
        &mut self,
        numbers: &Numbers,
        guarded: &[&'static str],
        kept: &Kept<'_>,
        watch: &mut dyn Watch,
    ) -> Result<bool, TrainError> {
        self.step += 1;
        self.metrics.append(self.step, numbers)?;
        watch.stepped(self.step, self.steps, numbers);
        for name in guarded {
            let value = numbers.get(name).copied();
            if let Some(reason) = value.and_then(|value| self.guard.hear(name, value)) {
                return Err(TrainError::Diverged {
                    step: self.step,
                    reason,
                    good: self.checkpoints.last()?,
                });
            }
        }
        let stop = self.step < self.steps && watch.wants_stop();
        let due = self.step.is_multiple_of(self.keeping.every.max(1));
        if due || stop || self.step == self.steps {
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
            memory: json!({ "guard": self.guard, "recipe": kept.memory }),
        };
        let origin = &self.keeping.origin;
        let place = self.checkpoints.save(&checkpoint, &mut |folder| {
            kept.published
                .map_or(Ok(()), |publish| publish()?.save(origin, folder))
        })?;
        point_at(&self.keeping.folder, &place)
    }

    pub(super) fn outcome(&self, interrupted: bool) -> Outcome {
        let published = self.keeping.folder.join(PUBLISHED);
        Outcome {
            step: self.step,
            steps: self.steps,
            interrupted,
            published: published.exists().then_some(published),
        }
    }
}

/// The run's `published` leads to what its last checkpoint has, where that is anything. Replaced in one step.
fn point_at(folder: &Path, checkpoint: &Path) -> Result<(), TrainError> {
    let published = fs_err::read_dir(checkpoint.join(PUBLISHED));
    if published.is_ok_and(|mut files| files.next().is_none()) {
        return Ok(());
    }
    let link = folder.join(PUBLISHED);
    let begun = folder.join(".published.new");
    let failed = write_failed(&link);
    // Relative: a run may be moved.
    let relative = checkpoint.strip_prefix(folder).unwrap_or(checkpoint);
    let _ = fs_err::remove_file(&begun);
    symlink(relative.join(PUBLISHED), &begun).map_err(&failed)?;
    fs_err::rename(&begun, &link).map_err(&failed)
}
