//! The queue in front of the judges, and what became of its jobs.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use warpsmith_judge::Judge;
use warpsmith_schema::{FORMAT, Failure, Submission, Task, Verdict};

use super::job::{Job, JobStatus, Received};

/// The most jobs that wait. Whoever comes later is asked to come again.
const MAX_WAITING: usize = 256;
/// The most jobs that are over and can still be asked about. Their evidence stays as long as its quota allows.
const MAX_KEPT: usize = 10_000;

#[derive(Default)]
pub(crate) struct Jobs {
    state: Mutex<State>,
    submitted: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<String>,
    jobs: HashMap<String, Entry>,
    /// In the order they came.
    order: VecDeque<String>,
}

struct Entry {
    /// The task's name.
    name: String,
    /// Until a judge has it or it is cancelled: what is kept longer is small.
    work: Option<Work>,
    /// Why there was nothing in what came. It is the verdict's reason.
    unusable: Option<String>,
    progress: Progress,
    came: Instant,
    begun: Option<Instant>,
    ended: Option<Instant>,
    /// Tells those who wait that something has changed.
    changed: watch::Sender<()>,
}

type Work = (Arc<Task>, Submission);

enum Progress {
    Waiting,
    Judging,
    Over(Result<Box<Verdict>, Failure>),
    Cancelled,
}

/// Why a job was not taken or not cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobRefusal {
    /// Too many are waiting.
    Full,
    Unknown,
    /// It is being judged, or over.
    TooLate,
}

impl Jobs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a submission in and gives the job's id.
    pub(crate) fn submit(&self, task: Arc<Task>, received: Received) -> Result<String, JobRefusal> {
        let mut state = self.state();
        if state.waiting.len() >= MAX_WAITING {
            return Err(JobRefusal::Full);
        }
        let id = format!("{:032x}", rand::random::<u128>());
        let entry = Entry {
            name: task.name.clone(),
            work: Some((task, received.submission)),
            unusable: received.unusable,
            progress: Progress::Waiting,
            came: Instant::now(),
            begun: None,
            ended: None,
            changed: watch::Sender::new(()),
        };
        state.jobs.insert(id.clone(), entry);
        state.waiting.push_back(id.clone());
        state.order.push_back(id.clone());
        state.forget_oldest();
        drop(state);
        self.submitted.notify_one();
        Ok(id)
    }

    pub(crate) fn get(&self, id: &str) -> Option<Job> {
        self.state().jobs.get(id).map(|entry| entry.job(id))
    }

    /// The job once it is over, or as it stands after `limit`.
    pub(crate) async fn wait(&self, id: &str, limit: Duration) -> Option<Job> {
        let mut changed = self.state().jobs.get(id)?.changed.subscribe();
        let over = async {
            loop {
                let job = self.get(id);
                if job.as_ref().is_none_or(|job| job.status.is_over()) {
                    return job;
                }
                // Where the job was forgotten, the next look says so.
                let _ = changed.changed().await;
            }
        };
        match tokio::time::timeout(limit, over).await {
            Ok(job) => job,
            Err(_) => self.get(id),
        }
    }

    /// Jobs that wait, and the latest of all.
    pub(crate) fn list(&self, limit: usize) -> (usize, Vec<Job>) {
        let state = self.state();
        let latest = state.order.iter().rev().take(limit);
        let jobs = latest.filter_map(|id| Some(state.jobs.get(id)?.job(id)));
        (state.waiting.len(), jobs.collect())
    }

    /// Cancels a job that no judge has begun with.
    pub(crate) fn cancel(&self, id: &str) -> Result<Job, JobRefusal> {
        let mut state = self.state();
        let Some(entry) = state.jobs.get_mut(id) else {
            return Err(JobRefusal::Unknown);
        };
        if !matches!(entry.progress, Progress::Waiting) {
            return Err(JobRefusal::TooLate);
        }
        entry.progress = Progress::Cancelled;
        entry.work = None;
        entry.ended = Some(Instant::now());
        entry.changed.send_replace(());
        let job = entry.job(id);
        state.waiting.retain(|waiting| waiting != id);
        Ok(job)
    }

    /// Has a judge work through the jobs, for ever.
    pub(crate) fn serve(&self, mut judge: Box<dyn Judge>) {
        let mut panicked = false;
        loop {
            let (id, task, submission) = self.next();
            let judged = catch_unwind(AssertUnwindSafe(|| {
                if panicked {
                    judge = judge.replacement()?;
                    panicked = false;
                }
                judge.judge(&task, &submission)
            }));
            let judged = if let Ok(judged) = judged {
                judged.map_err(|error| error.failure())
            } else {
                // Nobody knows what state it is in: the next submission goes to another.
                panicked = true;
                Err(Failure::panicked())
            };
            self.end(&id, judged);
        }
    }

    fn next(&self) -> (String, Arc<Task>, Submission) {
        let mut state = self.state();
        loop {
            if let Some(id) = state.waiting.pop_front()
                && let Some(entry) = state.jobs.get_mut(&id)
                && let Some((task, submission)) = entry.work.take()
            {
                entry.progress = Progress::Judging;
                entry.begun = Some(Instant::now());
                entry.changed.send_replace(());
                return (id, task, submission);
            }
            if state.waiting.is_empty() {
                state = self
                    .submitted
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn end(&self, id: &str, judged: Result<Verdict, Failure>) {
        if let Some(entry) = self.state().jobs.get_mut(id) {
            let unusable = entry.unusable.take();
            entry.progress = Progress::Over(judged.map(|mut verdict| {
                verdict.reason = unusable.or(verdict.reason);
                Box::new(verdict)
            }));
            entry.ended = Some(Instant::now());
            entry.changed.send_replace(());
        }
    }
}

impl State {
    fn forget_oldest(&mut self) {
        while self.order.len() > MAX_KEPT + MAX_WAITING {
            let over = |id: &String| self.jobs.get(id).is_none_or(Entry::is_over);
            let Some(place) = self.order.iter().position(over) else {
                return;
            };
            if let Some(id) = self.order.remove(place) {
                self.jobs.remove(&id);
            }
        }
    }
}

impl Entry {
    fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    fn job(&self, id: &str) -> Job {
        let end = self.ended.unwrap_or_else(Instant::now);
        let begun = self.begun.unwrap_or(end);
        let (status, verdict, failure) = match &self.progress {
            Progress::Waiting => (JobStatus::Waiting, None, None),
            Progress::Judging => (JobStatus::Judging, None, None),
            Progress::Over(Ok(verdict)) => (JobStatus::Judged, Some(*verdict.clone()), None),
            Progress::Over(Err(failure)) => (JobStatus::Failed, None, Some(failure.clone())),
            Progress::Cancelled => (JobStatus::Cancelled, None, None),
        };
        Job {
            format: FORMAT,
            id: id.to_owned(),
            task: self.name.clone(),
            status,
            waited_seconds: (begun - self.came).as_secs_f64(),
            judging_seconds: (end - begun).as_secs_f64(),
            verdict,
            failure,
        }
    }
}
