//! A run as its folder tells it.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use warpsmith_schema::{
    CountedAttempt, EpisodeId, Event, EventKind, StartAuthor, Trajectory, Verdict,
};
use warpsmith_store::{EventLog, Remeasured, StoreError, event_log};

use crate::compared::Compared;
use crate::search::SearchHistory;
use crate::training::{TRAINING, TrainingStep, training_steps};

/// Why a run cannot be reported.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("`{}` is not a run's folder: it has neither `{EVENTS}` nor `{TRAINING}`", folder.display())]
    NotARun { folder: PathBuf },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("failed to write `{}`", folder.display())]
    Export {
        folder: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// What a run left.
#[derive(Debug, Default)]
pub struct Run {
    /// The folder's own, also where a link such as `latest` led to it.
    pub name: String,
    pub folder: PathBuf,
    /// Of every episode that ended.
    pub trajectories: Vec<Trajectory>,
    /// Tasks that could not be judged, and why.
    pub left_out: BTreeMap<String, String>,
    /// Which part of a split a task is in, `train` or `test`, where there is one.
    pub parts: BTreeMap<String, String>,
    /// What shapes were divided by. Its results are not comparable to KernelBench.
    pub scale: Option<u32>,
    /// Which attempt of an episode is its result.
    pub counts: CountedAttempt,
    /// What the policy started from (`optimize`).
    pub start: Option<(StartAuthor, Verdict)>,
    /// What was measured afresh. The attempts of `trajectories` have it already.
    pub remeasured: Remeasured,
    /// What was judged once more beside other modes of `torch.compile`.
    pub compared: Compared,
    /// Empty where nothing was searched for (`evolve`).
    pub search: SearchHistory,
    /// Empty where nothing was trained.
    pub training: Vec<TrainingStep>,
}

const EVENTS: &str = "events.jsonl";

/// Whether a folder is a run's.
pub fn is_run(folder: &Path) -> Result<bool, ReportError> {
    Ok(event_log(folder)?.is_file() || folder.join(TRAINING).is_file())
}

/// Reads a run's folder, also while the run is under way.
pub fn read(folder: &Path) -> Result<Run, ReportError> {
    let events = event_log(folder)?;
    if !is_run(folder)? {
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
    let mut ended = HashSet::new();
    EventLog::for_each_document(&events, |event: Event| run.take(event.event, &mut ended))?;
    for trajectory in &mut run.trajectories {
        run.remeasured.apply_to(trajectory);
    }
    run.trajectories.sort_by_key(EpisodeId::of);
    for one in &run.trajectories {
        run.left_out.remove(&one.task.id);
    }
    run.training = training_steps(&folder)?;
    run.folder = folder;
    Ok(run)
}

impl Run {
    /// Takes up what a report shows. Where an episode ends twice the first end counts, as it does for the run.
    fn take(&mut self, event: EventKind, ended: &mut HashSet<EpisodeId>) {
        let Some(event) = self.search.take(event) else {
            return;
        };
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
            EventKind::StartJudged {
                author, verdict, ..
            } => self.start = Some((author, *verdict)),
            EventKind::Remeasured {
                task,
                submission,
                round,
                verdict,
            } => self.remeasured.add(task, submission, round, *verdict),
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
            EventKind::EpisodeEnded { trajectory } if ended.insert(EpisodeId::of(&trajectory)) => {
                self.trajectories.push(*trajectory);
            }
            _ => {}
        }
    }
}
