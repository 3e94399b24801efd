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
    /// Tasks of episodes whose client names none.
    pub tasks: Vec<Arc<Task>>,
    /// What those who write kernels are told.
    pub instructions: String,
}

impl Court {
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
