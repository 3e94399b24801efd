//! The log of measurements: one line each, appended and flushed at once.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use fs_err::{self as fs, OpenOptions};
use serde::{Deserialize, Serialize};
use warpsmith_compiler::{MeasuredTime, SolutionFiles, TunedSolution, TuningVariant};
use warpsmith_schema::{OpGraph, Target};

use super::ComparedTimes;
use crate::RolloutError;

/// What times of variants depend on besides their text; all of it names the log.
#[derive(Debug, Clone, Copy)]
pub struct TuningKey<'a> {
    /// With all shapes and types.
    pub graph: &'a OpGraph,
    pub target: Target,
    pub device: &'a str,
    pub torch: &'a str,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum TuningRecord {
    MeasuredTime {
        kernels: String,
        changes: Vec<String>,
        us: f64,
        #[serde(flatten)]
        baselines: Option<BaselineTimes>,
    },
    Failed {
        kernels: String,
        changes: Vec<String>,
        reason: String,
    },
    Compared {
        usual: String,
        tuned: String,
        changes: Vec<String>,
        tried: usize,
        usual_us: f64,
        tuned_us: f64,
    },
}

/// Measurements of variants of one graph on one device.
#[derive(Debug)]
pub struct TuningLog {
    path: PathBuf,
    known: HashMap<String, MeasuredTime>,
    compared: HashMap<(String, String), ComparedTimes>,
    baselines: Option<BaselineTimes>,
}

/// What variants are compared with besides each other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct BaselineTimes {
    pub eager_us: f64,
    pub compile_us: Option<f64>,
}

/// Kernels alone: the module around them may have another comment.
pub(super) fn hash(files: &SolutionFiles) -> String {
    let mut hasher = blake3::Hasher::new();
    for (path, text) in files
        .iter()
        .filter(|(path, _)| path.starts_with("kernels/"))
    {
        hasher.update(path.as_bytes()).update(b"\0");
        hasher.update(text.as_bytes()).update(b"\0");
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

impl TuningLog {
    /// Reads what is there. A line that a killed process left unfinished is no measurement.
    pub fn open(folder: &Path, key: TuningKey<'_>) -> Result<Self, RolloutError> {
        let mut hasher = blake3::Hasher::new();
        // Lines of the graph are no part of what is computed.
        let mut graph = key.graph.clone();
        graph.values.iter_mut().for_each(|value| value.line = None);
        let graph =
            serde_json::to_vec(&graph).map_err(|error| RolloutError::Tuning(error.into()))?;
        for part in [
            graph.as_slice(),
            key.target.name().as_bytes(),
            key.device.as_bytes(),
            key.torch.as_bytes(),
        ] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let name = &hasher.finalize().to_hex()[..32];
        let mut log = Self {
            path: folder.join(format!("{name}.jsonl")),
            known: HashMap::new(),
            compared: HashMap::new(),
            baselines: None,
        };
        if log.path.exists() {
            let text = fs::read_to_string(&log.path).map_err(RolloutError::Tuning)?;
            for record in text
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
            {
                log.take(record);
            }
        }
        Ok(log)
    }

    fn take(&mut self, record: TuningRecord) {
        match record {
            TuningRecord::MeasuredTime {
                kernels,
                us,
                baselines,
                ..
            } => {
                self.known.insert(kernels, MeasuredTime::Us(us));
                self.baselines = baselines.or(self.baselines);
            }
            TuningRecord::Failed {
                kernels, reason, ..
            } => {
                self.known.insert(kernels, MeasuredTime::Failed { reason });
            }
            TuningRecord::Compared {
                usual,
                tuned,
                usual_us,
                tuned_us,
                ..
            } => {
                let times = ComparedTimes { usual_us, tuned_us };
                self.compared.insert((usual, tuned), times);
            }
        }
    }

    /// Whether anything was measured.
    pub fn is_known(&self) -> bool {
        !self.known.is_empty()
    }

    pub(super) fn known(&self, files: &SolutionFiles) -> Option<MeasuredTime> {
        self.known.get(&hash(files)).cloned()
    }

    /// Of the latest measurement.
    pub(super) fn baselines(&self) -> Option<BaselineTimes> {
        self.baselines
    }

    pub(super) fn compared(&self, key: &(String, String)) -> Option<ComparedTimes> {
        self.compared.get(key).copied()
    }

    pub(super) fn keep(
        &mut self,
        variant: &TuningVariant,
        measured: &MeasuredTime,
        baselines: Option<BaselineTimes>,
    ) -> Result<(), RolloutError> {
        let (kernels, changes) = (hash(&variant.files), variant.changes.clone());
        match measured {
            MeasuredTime::Us(us) => self.append(TuningRecord::MeasuredTime {
                kernels,
                changes,
                us: *us,
                baselines,
            }),
            MeasuredTime::Failed { reason } => self.append(TuningRecord::Failed {
                kernels,
                changes,
                reason: reason.clone(),
            }),
            MeasuredTime::Stopped => Ok(()),
        }
    }

    pub(super) fn keep_comparison(
        &mut self,
        (usual, tuned): (String, String),
        found: &TunedSolution,
        times: ComparedTimes,
    ) -> Result<(), RolloutError> {
        self.append(TuningRecord::Compared {
            usual,
            tuned,
            changes: found.best.changes.clone(),
            tried: found.tried,
            usual_us: times.usual_us,
            tuned_us: times.tuned_us,
        })
    }

    fn append(&mut self, record: TuningRecord) -> Result<(), RolloutError> {
        let line =
            serde_json::to_string(&record).map_err(|error| RolloutError::Tuning(error.into()))?;
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(RolloutError::Tuning)?;
        }
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.path)
            .map_err(RolloutError::Tuning)?;
        // A line of its own even after one that was cut off; one write, so that two processes do not mix theirs.
        file.write_all(format!("\n{line}\n").as_bytes())
            .map_err(RolloutError::Tuning)?;
        self.take(record);
        Ok(())
    }
}
