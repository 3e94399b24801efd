//! A judge whose judgements cost nothing but time.

use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Duration;

use warpsmith_judge::profile::ProfileReport;
use warpsmith_judge::{CheckDepth, Judge, JudgeError};
use warpsmith_schema::{Profile, Status, Submission, Target, Task, Verdict};

/// Says what it is asked to judge and takes as long as it is told, so that the queue is measured and not the judging.
pub(crate) struct Timed {
    pub(crate) takes: Duration,
    pub(crate) seen: Sender<String>,
    /// Each judgement waits for one of these, if there is any.
    pub(crate) until: Option<Receiver<()>>,
}

impl Judge for Timed {
    fn survey(&mut self, _: &Task) -> Result<(), JudgeError> {
        Ok(())
    }

    fn judge(&mut self, task: &Task, _: &Submission) -> Result<Verdict, JudgeError> {
        let _ = self.seen.send(task.name.clone());
        if let Some(until) = &self.until {
            let _ = until.recv();
        }
        thread::sleep(self.takes);
        let device = "cpu".to_owned();
        Ok(Verdict::unreached(
            Status::Passed,
            Target::Cpu,
            Profile::Verify,
            device,
        ))
    }

    fn judge_afresh(&mut self, task: &Task, of: &Submission) -> Result<Verdict, JudgeError> {
        self.judge(task, of)
    }

    fn check(
        &mut self,
        _: &Task,
        _: &Submission,
        _: CheckDepth,
    ) -> Result<Option<Verdict>, JudgeError> {
        Ok(None)
    }

    fn profile(&mut self, _: &Task, _: Option<&Submission>) -> Result<ProfileReport, JudgeError> {
        unreachable!("nothing is profiled here")
    }

    fn replacement(&self) -> Result<Box<dyn Judge>, JudgeError> {
        unreachable!("nothing panics here")
    }
}
