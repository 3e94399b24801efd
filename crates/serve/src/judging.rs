//! The judge for trainers and tools in other languages: submissions in, verdicts out, over HTTP.
//!
//! A submission becomes a job ([`jobs`]), which waits for one of a few threads that each own a judge. Whoever asked may wait
//! for it or come back. [`openenv`] is the same judge as an environment with episodes.

mod job;
mod jobs;
mod openenv;
mod rate;
mod routes;

use std::sync::Arc;
use std::{io, thread};

use warpsmith_rollout::Judging;
use warpsmith_schema::{Failure, Task};

use job::{GivenTask, KnownTask};
pub(crate) use job::{Job, JobList, JudgeRequest};
pub(crate) use jobs::Jobs;
pub(crate) use routes::{MOST_LISTED, MOST_WAIT, routes};

/// Makes the judge of this number, with the first submission that needs it: who only looks at runs never starts PyTorch.
pub type MakeJudge = Arc<dyn Fn(usize) -> Result<Box<dyn Judging>, Failure> + Send + Sync>;

/// What is judged, by how many, and what episodes are about.
#[derive(Clone)]
pub struct Court {
    pub make: MakeJudge,
    pub judges: usize,
    /// What can be judged by name, and what episodes are about whose client names none.
    pub tasks: Vec<Arc<Task>>,
    /// Whether clients may bring tasks of their own. A task is not a candidate: it is run as this process is, outside the
    /// sandbox, so this trusts them with everything that this user may do.
    pub client_tasks: bool,
    /// What those who write kernels are told.
    pub instructions: String,
}

impl Court {
    /// The task that a client means.
    fn task(&self, given: &GivenTask) -> Result<Arc<Task>, Unfit> {
        match given {
            GivenTask::Known(KnownTask { id }) => {
                let found = self.tasks.iter().find(|task| task.id == *id);
                found.cloned().ok_or_else(|| Unfit::Unknown(id.clone()))
            }
            GivenTask::Own(own) => match own.complaint() {
                Some(complaint) => Err(Unfit::Complaint(complaint)),
                None if self.client_tasks => Ok(Arc::new(own.task())),
                None => Err(Unfit::NotTrusted),
            },
        }
    }

    pub(crate) fn open(&self) -> io::Result<Arc<Jobs>> {
        let jobs = Arc::new(Jobs::default());
        for number in 0..self.judges.max(1) {
            let (jobs, make) = (jobs.clone(), self.make.clone());
            thread::Builder::new()
                .name(format!("judge {number}"))
                .spawn(move || jobs.serve(number, &make))?;
        }
        Ok(jobs)
    }
}

/// Why a client's task is not judged.
enum Unfit {
    Complaint(String),
    Unknown(String),
    NotTrusted,
}

impl Unfit {
    fn message(&self) -> String {
        match self {
            Self::Complaint(complaint) => complaint.clone(),
            Self::Unknown(id) => format!("there is no task `{id}` here"),
            Self::NotTrusted => "this server judges its own tasks only".to_owned(),
        }
    }
}
