//! What the threads of a run share.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpsmith_agent::StartingPoint;
use warpsmith_model::policy::SharedPolicy;
use warpsmith_schema::{EpisodeId, Failure, Task, Trajectory};

use crate::EpisodeKind;
use crate::control::RunControl;
use crate::meter::Meter;
use crate::plan::WatchEpisodes;
use crate::queue::JudgeQueue;
use crate::recorder::EventRecorder;

/// Whether a task can be judged, once that is known.
pub(crate) type SurveyResult = Mutex<Option<Result<(), Failure>>>;

pub(crate) struct RunContext {
    pub(crate) policy: Arc<dyn SharedPolicy>,
    pub(crate) queue: Arc<JudgeQueue>,
    pub(crate) recorder: Arc<EventRecorder>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) control: Arc<RunControl>,
    pub(crate) watch: Option<WatchEpisodes>,
    pub(crate) kind: EpisodeKind,
    pub(crate) start: Option<Arc<StartingPoint>>,
    pub(crate) workspaces: PathBuf,
    pub(crate) pending: Mutex<VecDeque<PendingEpisode>>,
    /// By task; empty where tasks are not surveyed.
    pub(crate) surveys: HashMap<String, SurveyResult>,
    pub(crate) left_out: Mutex<Vec<(String, Failure)>>,
    pub(crate) last_failure: Mutex<Option<Failure>>,
    /// Episode threads that have not ended.
    pub(crate) alive: AtomicU32,
    /// Episode threads that have an episode.
    pub(crate) running: AtomicU32,
}

pub(crate) struct PendingEpisode {
    pub(crate) task: Arc<Task>,
    pub(crate) id: EpisodeId,
    pub(crate) before: Option<Trajectory>,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
