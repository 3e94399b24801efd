//! The threads that run episodes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use warpsmith_judge::{CANCELLED, Judge};
use warpsmith_schema::{EpisodeId, EventKind, Failure, FailureKind, Task};

use crate::context::{PendingEpisode, RunContext, locked};
use crate::episode::run_episode;
use crate::queued_judge::QueuedJudge;

impl RunContext {
    /// Runs one pending episode after the other.
    pub(crate) fn work(&self) {
        while self.control.goes_on() && !self.deadline_has_passed() {
            let Some(next) = locked(&self.pending).pop_front() else {
                break;
            };
            self.running.fetch_add(1, Ordering::SeqCst);
            let id = next.id.clone();
            let ran = catch_unwind(AssertUnwindSafe(|| self.survey_and_run(next)));
            self.running.fetch_sub(1, Ordering::SeqCst);
            match ran.unwrap_or_else(|_| Err(Failure::panicked())) {
                Ok(()) => self.control.episode_succeeded(),
                Err(failure) => self.note(&id, failure),
            }
        }
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }

    fn deadline_has_passed(&self) -> bool {
        let deadline = self.kind.deadline();
        deadline.is_some_and(|deadline| Instant::now() > deadline)
    }

    fn survey_and_run(&self, next: PendingEpisode) -> Result<(), Failure> {
        let PendingEpisode { task, id, before } = next;
        if self.is_left_out(&id.task) {
            return Ok(());
        }
        if let Some(survey) = self.surveys.get(&id.task) {
            let mut known = locked(survey);
            let result = match &*known {
                Some(result) => result.clone(),
                None => self.survey(&id, &task),
            };
            // What is not the task's fault may be better the next time.
            let lasting = result.as_ref().err().is_none_or(is_tasks_fault);
            *known = lasting.then(|| result.clone());
            result?;
        }
        run_episode(self, &task, &id, before)
    }

    fn survey(&self, id: &EpisodeId, task: &Arc<Task>) -> Result<(), Failure> {
        let mut judge = QueuedJudge::new(self.queue.clone(), id.clone(), task.clone());
        judge.survey(task).map_err(|error| error.failure())?;
        self.recorder.write(EventKind::TaskAccepted {
            task: id.task.clone(),
        })
    }

    fn is_left_out(&self, task: &str) -> bool {
        locked(&self.left_out).iter().any(|(one, _)| one == task)
    }

    /// Notes that an episode did not come to its end, and what that means for the others.
    fn note(&self, id: &EpisodeId, failure: Failure) {
        if failure.code == CANCELLED {
            return;
        }
        if is_tasks_fault(&failure) {
            return self.leave_out(&id.task, failure);
        }
        let written = self.recorder.write(EventKind::InfrastructureFailed {
            episode: Some(id.clone()),
            failure: failure.clone(),
            retry_in_seconds: None,
        });
        *locked(&self.last_failure) = Some(failure.clone());
        let hopeless =
            failure.kind == FailureKind::Config || ["store", "io"].contains(&failure.code.as_str());
        match written {
            Err(unwritten) => self.control.fail(&unwritten),
            Ok(()) if hopeless => self.control.fail(&failure),
            Ok(()) => self.control.episode_failed(&failure),
        }
    }

    pub(crate) fn leave_out(&self, task: &str, why: Failure) {
        let mut left_out = locked(&self.left_out);
        if left_out.iter().any(|(one, _)| one == task) {
            return;
        }
        let written = self.recorder.write(EventKind::TaskSkipped {
            task: task.to_owned(),
            reason: why.clone(),
        });
        left_out.push((task.to_owned(), why));
        if let Err(unwritten) = written {
            self.control.fail(&unwritten);
        }
    }
}

fn is_tasks_fault(failure: &Failure) -> bool {
    failure.kind == FailureKind::Task
}
