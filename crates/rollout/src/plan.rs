use std::sync::Arc;

use warpsmith_agent::{AgentSettings, Settings};
use warpsmith_model::policy::SharedPolicy;
use warpsmith_schema::{EpisodeId, EpisodeMode, Failure, RunHeader, Task};

use crate::Judging;

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Plan {
    pub tasks: Vec<Arc<Task>>,
    /// Episodes of each task.
    pub samples: u32,
    pub way: Way,
    /// Episodes that run at the same time.
    pub at_once: usize,
    /// Whether a judge looks at each task before anybody is asked about it. Else a task that cannot be judged is found out
    /// by its first submission.
    pub survey: bool,
    /// Tasks of the plan that are known beforehand not to be judgeable here. They are listed like those found out later.
    pub left_out: Vec<(String, Failure)>,
    /// What the log says of the run.
    pub head: RunHeader,
}

/// One of the two kinds of episode.
#[derive(Debug, Clone)]
pub enum Way {
    Single(Settings),
    Agent(AgentSettings),
}

impl Way {
    pub fn mode(&self) -> EpisodeMode {
        match self {
            Self::Single(_) => EpisodeMode::Single,
            Self::Agent(_) => EpisodeMode::Agent,
        }
    }
}

impl Plan {
    /// All of a task's episodes one after the other: a judge that has the task loaded, and a model that has read its
    /// prompt, are the quicker for it.
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

/// With what it is done.
pub struct Means {
    pub policy: Arc<dyn SharedPolicy>,
    /// As many as may be at work at the same time.
    pub judges: Vec<Box<dyn Judging>>,
    /// Asks the driver how busy the device is, from 0 to 1.
    pub device_busy: Box<dyn Fn() -> Option<f64> + Send>,
    pub wish: fn() -> StopRequest,
}

/// What whoever started the run wants of it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopRequest {
    GoOn,
    /// What is being judged is judged to its end; the rest is left for another time.
    Drain,
    /// At once. What is being judged was killed and its verdict is none.
    Abandon,
}
