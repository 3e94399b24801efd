//! What a run is to do, and with what.

use std::sync::Arc;
use std::time::Instant;

use warpsmith_agent::{AgentSettings, EpisodeProgress, SingleSettings, StartingPoint};
use warpsmith_judge::Judge;
use warpsmith_model::policy::SharedPolicy;
use warpsmith_schema::{EpisodeId, EpisodeMode, Failure, RunHeader, Task};

/// What is to be done.
#[derive(Debug, Clone)]
pub struct RolloutPlan {
    pub tasks: Vec<Arc<Task>>,
    /// Episodes of each task.
    pub samples: u32,
    pub kind: EpisodeKind,
    /// Episodes that run at the same time.
    pub concurrency: usize,
    /// What every episode starts from, where that is not nothing.
    pub start: Option<Arc<StartingPoint>>,
    /// Whether a judge looks at each task before the policy is asked about it. Else a task that cannot be judged is found out
    /// by its first submission.
    pub survey: bool,
    /// Tasks of the plan that are known beforehand not to be judgeable here. They are listed like those found out later.
    pub left_out: Vec<(String, Failure)>,
    /// What the log says of the run.
    pub head: RunHeader,
}

/// One of the two kinds of episode, and how it is run.
#[derive(Debug, Clone)]
pub enum EpisodeKind {
    Single(SingleSettings),
    Agent(AgentSettings),
}

impl EpisodeKind {
    pub fn mode(&self) -> EpisodeMode {
        match self {
            Self::Single(_) => EpisodeMode::Single,
            Self::Agent(_) => EpisodeMode::Agent,
        }
    }

    /// When the policy is no longer asked. Episodes that have not begun by then are left for another time.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Single(settings) => settings.deadline,
            Self::Agent(settings) => settings.limits.deadline,
        }
    }
}

impl RolloutPlan {
    /// All episodes of a task come one after the other: a judge that has the task loaded, and a model that has read its
    /// prompt, are faster that way.
    pub(crate) fn episodes(&self) -> impl Iterator<Item = (Arc<Task>, EpisodeId)> {
        self.tasks.iter().flat_map(|task| {
            (1..=self.samples).map(|sample| {
                let id = EpisodeId {
                    task: task.id.clone(),
                    sample,
                };
                (task.clone(), id)
            })
        })
    }
}

/// Sees what happens inside episodes, as it happens, on whichever thread an episode has.
pub type WatchEpisodes = Arc<dyn Fn(&EpisodeId, &EpisodeProgress<'_>) + Send + Sync>;

/// What a run works with.
pub struct RolloutResources<'a> {
    pub policy: Arc<dyn SharedPolicy>,
    /// As many as may work at the same time. They are taken while the run lasts, and are back when it has ended.
    pub judges: &'a mut Vec<Box<dyn Judge>>,
    /// Asks the driver how busy the device is, from 0 to 1.
    pub device_busy: Box<dyn Fn() -> Option<f64> + Send>,
    /// For a person who waits. Everything that counts is in the log.
    pub watch: Option<WatchEpisodes>,
    pub stop: fn() -> StopRequest,
}

/// What whoever started the run wants of it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopRequest {
    Continue,
    /// Finish what is being judged; leave the rest for another time.
    Drain,
    /// Stop at once. What is being judged was killed, and its verdict means nothing.
    Abort,
}
