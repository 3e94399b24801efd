//! A run's queue as one episode sees it: a judge like any other.

use std::sync::Arc;

use warpsmith_judge::profile::ProfileReport;
use warpsmith_judge::{CheckDepth, Judge, JudgeError};
use warpsmith_schema::{EpisodeId, Submission, Task, Verdict};

use crate::queue::{JudgeCall, JudgeQueue, JudgeReply};

#[derive(Clone)]
pub(crate) struct QueuedJudge {
    queue: Arc<JudgeQueue>,
    episode: EpisodeId,
    /// What the episode is about, shared with the queue.
    task: Arc<Task>,
}

impl QueuedJudge {
    pub(crate) fn new(queue: Arc<JudgeQueue>, episode: EpisodeId, task: Arc<Task>) -> Self {
        Self {
            queue,
            episode,
            task,
        }
    }

    fn call(&self, task: &Task, call: JudgeCall) -> Result<JudgeReply, JudgeError> {
        let other = (*task != *self.task).then(|| Arc::new(task.clone()));
        let task = other.as_ref().unwrap_or(&self.task);
        let result = self.queue.call(&self.episode, task, call);
        result.map_err(JudgeError::Around)
    }

    fn verdict(&self, task: &Task, call: JudgeCall) -> Result<Verdict, JudgeError> {
        match self.call(task, call)? {
            JudgeReply::Verdict(verdict) => Ok(*verdict),
            other => Err(unexpected(&other)),
        }
    }
}

impl Judge for QueuedJudge {
    fn survey(&mut self, task: &Task) -> Result<(), JudgeError> {
        self.call(task, JudgeCall::Survey).map(drop)
    }

    fn judge(&mut self, task: &Task, submission: &Submission) -> Result<Verdict, JudgeError> {
        self.verdict(task, JudgeCall::Judge(submission.clone()))
    }

    fn judge_afresh(
        &mut self,
        task: &Task,
        submission: &Submission,
    ) -> Result<Verdict, JudgeError> {
        self.verdict(task, JudgeCall::JudgeAfresh(submission.clone()))
    }

    fn check(
        &mut self,
        task: &Task,
        submission: &Submission,
        depth: CheckDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        match self.call(task, JudgeCall::Check(submission.clone(), depth))? {
            JudgeReply::Checked(verdict) => Ok(verdict.map(|verdict| *verdict)),
            other => Err(unexpected(&other)),
        }
    }

    fn profile(
        &mut self,
        task: &Task,
        submission: Option<&Submission>,
    ) -> Result<ProfileReport, JudgeError> {
        match self.call(task, JudgeCall::Profile(submission.cloned()))? {
            JudgeReply::Profiled(report) => Ok(*report),
            other => Err(unexpected(&other)),
        }
    }

    fn replacement(&self) -> Result<Box<dyn Judge>, JudgeError> {
        Ok(Box::new(self.clone()))
    }
}

fn unexpected(reply: &JudgeReply) -> JudgeError {
    JudgeError::Infrastructure {
        code: "queue",
        message: format!("a judge replied to another call: {reply:?}"),
        hint: None,
    }
}
