//! A run as its folder tells it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use warpsmith_schema::{CountedAttempt, Event, EventKind, Trajectory};
use warpsmith_store::{EventLog, StoreError};

use crate::TrainingStep;
use crate::compared::Compared;

/// Why a run cannot be reported.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("`{}` is not a run's folder: it has none of `{ENDED}`, `{EVENTS}` and `{TRAINING}`", folder.display())]
    NotARun { folder: PathBuf },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a run left.
#[derive(Debug, Default)]
pub struct Run {
    /// The folder's own, also where a link such as `latest` led to it.
    pub name: String,
    pub folder: PathBuf,
    /// The latest of each episode.
    pub trajectories: Vec<Trajectory>,
    /// Tasks that could not be judged, and why.
    pub left_out: BTreeMap<String, String>,
    /// Which part of a split a task is in, `train` or `test`, where there is one.
    pub parts: BTreeMap<String, String>,
    /// What shapes were divided by. Such a run is none of the benchmark.
    pub scale: Option<u32>,
    /// Which attempt of an episode is its result.
    pub counts: CountedAttempt,
    /// What was judged once more beside other modes of `torch.compile`.
    pub compared: Compared,
    /// Empty where nothing was trained.
    pub training: Vec<TrainingStep>,
}

const ENDED: &str = "trajectories.jsonl";
const EVENTS: &str = "events.jsonl";
const TRAINING: &str = "metrics.jsonl";

/// Reads a run's folder, also while the run is under way.
pub fn read(folder: &Path) -> Result<Run, ReportError> {
    let has = |name: &&str| folder.join(name).is_file();
    if ![ENDED, EVENTS, TRAINING].iter().any(has) {
        return Err(ReportError::NotARun {
            folder: folder.to_path_buf(),
        });
    }
    let folder = fs_err::canonicalize(folder).map_err(|source| StoreError::Read {
        path: folder.to_path_buf(),
        source,
    })?;
    let mut run = Run {
        name: folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned(),
        ..Run::default()
    };
    // `optimize` writes a trajectory a line, other verbs events.
    run.trajectories = EventLog::read_documents(&folder.join(ENDED))?.lines;
    EventLog::for_each_document(&folder.join(EVENTS), |event: Event| run.hear(event.event))?;
    run.trajectories = latest(run.trajectories);
    for one in &run.trajectories {
        run.left_out.remove(&one.task.id);
    }
    let training = EventLog::read_lines::<Value>(&folder.join(TRAINING))?.lines;
    run.training = training.iter().filter_map(TrainingStep::of).collect();
    run.folder = folder;
    Ok(run)
}

impl Run {
    /// Takes up what a report shows.
    fn hear(&mut self, event: EventKind) {
        match event {
            EventKind::RunStarted { run } => {
                self.scale = run.scale;
                self.counts = run.counts;
                let parts = run.tasks.into_iter();
                let parts = parts.filter_map(|task| Some((task.id, task.part?.name().to_owned())));
                self.parts.extend(parts);
            }
            EventKind::TaskSkipped { task, reason: why } => {
                self.left_out.insert(task, why.message);
            }
            EventKind::CompileModeCompared {
                task,
                mode,
                verdict,
            } => {
                self.compared
                    .entry(mode)
                    .or_default()
                    .insert(task, *verdict);
            }
            EventKind::EpisodeEnded { trajectory } => self.trajectories.push(*trajectory),
            _ => {}
        }
    }
}

/// An episode that was gone on with was written twice: the later line counts.
fn latest(trajectories: Vec<Trajectory>) -> Vec<Trajectory> {
    let mut latest = BTreeMap::new();
    for one in trajectories {
        let policy = (
            one.policy.name.clone(),
            one.policy.hash.clone(),
            one.policy.step,
        );
        latest.insert((one.task.id.clone(), one.sample, policy), one);
    }
    latest.into_values().collect()
}
