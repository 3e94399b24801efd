//! The judge for trainers and tools in other languages: submissions in, verdicts out, over HTTP.
//!
//! A submission becomes a job ([`jobs`]), which waits for one of a few threads that each own a judge. The client may wait for
//! it or come back. [`openenv`] is the same judge as an environment with episodes.

mod fair_queue;
mod heartbeat;
mod job;
mod jobs;
mod metrics;
mod openenv;
mod rate;
mod routes;
#[cfg(test)]
pub(crate) mod timed;
mod trainers;

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{io, thread};

use tokio::time::sleep;
use warpsmith_judge::Judge;
use warpsmith_schema::{Target, Task};
use warpsmith_tasks::{TaskError, load};

use crate::problem::Problem;
use job::{GivenTask, KnownTask, told_apart};
pub(crate) use job::{Job, JobList, JudgeRequest};
pub(crate) use jobs::{JobRefusal, Jobs, drained_failure};
pub(crate) use routes::{MAX_LISTED, MAX_WAIT_SECONDS, routes};

/// Who judges, and what.
pub struct JudgeService {
    /// They work side by side. Lazy ones cost nothing until the first submission comes.
    pub judges: Vec<Box<dyn Judge>>,
    pub tasks: ServedTasks,
    /// What is judged on, so that clients who have kernels for both send the right ones.
    pub target: Target,
}

/// What clients may have judged.
pub struct ServedTasks {
    /// Judged by name. An episode whose client names none is about one of these.
    pub tasks: Vec<Arc<Task>>,
    /// Whether clients may bring tasks of their own. A task is not a candidate: it runs outside the sandbox, as this process
    /// does, so this trusts clients with everything that this user may do.
    pub client_tasks: bool,
    /// What those who write kernels are told.
    pub instructions: String,
}

/// The jobs, and the threads of their judges, which end once no more are taken.
pub(crate) struct Judging {
    pub(crate) jobs: Arc<Jobs>,
    threads: Vec<JoinHandle<()>>,
}

/// How often it is looked whether judges have ended.
const LOOK: Duration = Duration::from_millis(50);

/// Starts a thread for each judge.
pub(crate) fn start(judges: Vec<Box<dyn Judge>>) -> io::Result<Judging> {
    let jobs = Arc::new(Jobs::default());
    let threads = judges.into_iter().enumerate().map(|(number, judge)| {
        let jobs = jobs.clone();
        thread::Builder::new()
            .name(format!("judge {number}"))
            .spawn(move || jobs.serve(judge))
    });
    let threads = threads.collect::<io::Result<_>>()?;
    Ok(Judging { jobs, threads })
}

impl Judging {
    /// Sends away what waits, and returns once what was being judged has its verdict and no judge's process is left.
    pub(crate) async fn drain(&self) {
        self.jobs.drain();
        while !self.threads.iter().all(JoinHandle::is_finished) {
            sleep(LOOK).await;
        }
    }
}

impl ServedTasks {
    /// The task that a client means.
    fn find(&self, given: &GivenTask) -> Result<Arc<Task>, TaskRefusal> {
        match given {
            GivenTask::Known(KnownTask { id }) => {
                let found = self.tasks.iter().find(|task| task.id == *id);
                found
                    .cloned()
                    .ok_or_else(|| TaskRefusal::Unknown(id.clone()))
            }
            GivenTask::Own(own) => match own.complaint() {
                Some(complaint) => Err(TaskRefusal::Malformed(complaint)),
                None if self.client_tasks => Ok(Arc::new(own.task())),
                None => Err(TaskRefusal::NotTrusted),
            },
            GivenTask::Path(given) if self.client_tasks => {
                let loaded = load(&given.path);
                let loaded = loaded.map_err(TaskRefusal::Unreadable)?;
                Ok(Arc::new(told_apart(loaded)))
            }
            GivenTask::Path(_) => Err(TaskRefusal::NotTrusted),
        }
    }
}

/// Why a client's task is not judged.
enum TaskRefusal {
    Malformed(String),
    Unknown(String),
    NotTrusted,
    /// There is none at the path that was given.
    Unreadable(TaskError),
}

impl TaskRefusal {
    fn message(&self) -> String {
        match self {
            Self::Malformed(complaint) => complaint.clone(),
            Self::Unknown(id) => format!("there is no task `{id}` here"),
            Self::NotTrusted => "this server judges its own tasks only".to_owned(),
            Self::Unreadable(error) => error.to_string(),
        }
    }
}

impl From<TaskRefusal> for Problem {
    fn from(refusal: TaskRefusal) -> Self {
        match &refusal {
            TaskRefusal::Malformed(complaint) => Self::bad_request(complaint),
            TaskRefusal::Unknown(id) => Self::unknown_task(id),
            TaskRefusal::NotTrusted => Self::not_trusted(&refusal.message()),
            TaskRefusal::Unreadable(error) => Self::unreadable_task(error),
        }
    }
}
