//! The queue in front of the judges, and what became of its jobs.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use warpsmith_judge::Judge;
use warpsmith_schema::{FORMAT, Failure, FailureKind, Submission, Task, Verdict};

use super::fair_queue::FairQueue;
use super::job::{Job, JobStatus, Received};
use super::metrics::{Counts, Moment};
use crate::client::Client;

/// The most jobs that can be asked about. Those that are over go first; their evidence stays as long as its quota allows.
const MAX_KEPT: usize = 16_384;

#[derive(Default)]
pub(crate) struct Jobs {
    state: Mutex<State>,
    submitted: Condvar,
    /// Turns true once no more jobs are taken.
    draining: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    waiting: FairQueue,
    jobs: HashMap<String, Entry>,
    /// In the order they came.
    order: VecDeque<String>,
    counts: Counts,
    judges: usize,
    judging: usize,
    draining: bool,
}

struct Entry {
    client: Client,
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
    /// How long it waited although a judge was free.
    picked_up: Duration,
    /// Turns true for those who wait once it is over.
    over: watch::Sender<bool>,
}

type Work = (Arc<Task>, Submission);

enum Progress {
    Waiting,
    Judging,
    Over(Result<Arc<Verdict>, Failure>),
    Cancelled,
}

/// A job whose client waits for it. Who leaves has it taken back, if no judge has begun with it.
pub(crate) struct Held<'a> {
    jobs: &'a Jobs,
    client: &'a Client,
    id: &'a str,
}

impl Held<'_> {
    /// The client knows the job's id from now on.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // One that is over, or being judged, is left alone.
        let _ = self.jobs.cancel(self.client, self.id);
    }
}

/// Why a job was not taken or not cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobRefusal {
    /// Too many of this client are waiting.
    Full,
    /// The server comes to its end.
    Draining,
    Unknown,
    /// It is being judged, or over.
    TooLate,
}

/// The code of what a server that ends says to those who wait.
pub(crate) const DRAINING: &str = "draining";

/// What those are told whose submissions a server that ends has not begun with.
pub(crate) fn drained_failure() -> Failure {
    Failure {
        kind: FailureKind::Infrastructure,
        code: DRAINING.to_owned(),
        message: "the server ends and has not begun with this submission".to_owned(),
        hint: Some("send it again: to another server, or here once it is back".to_owned()),
    }
}

impl Jobs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a submission in and gives the job's id.
    pub(crate) fn submit(
        &self,
        client: &Client,
        task: Arc<Task>,
        received: Received,
    ) -> Result<String, JobRefusal> {
        let bytes = task.source.len() + received.bytes();
        let mut state = self.state();
        if let Err(refusal) = state.takes(client, bytes) {
            state.counts.refused(refusal);
            return Err(refusal);
        }
        let id = format!("{:032x}", rand::random::<u128>());
        let entry = Entry {
            client: client.clone(),
            name: task.name.clone(),
            work: Some((task, received.submission)),
            unusable: received.unusable,
            progress: Progress::Waiting,
            came: Instant::now(),
            begun: None,
            ended: None,
            picked_up: Duration::ZERO,
            over: watch::Sender::new(false),
        };
        state.jobs.insert(id.clone(), entry);
        state.waiting.push(client, id.clone(), bytes);
        state.order.push_back(id.clone());
        state.forget_oldest();
        drop(state);
        self.submitted.notify_one();
        Ok(id)
    }

    /// Whether a submission would be taken now. Nothing is counted.
    pub(crate) fn takes(
        &self,
        client: &Client,
        task: &Task,
        received: &Received,
    ) -> Result<(), JobRefusal> {
        let bytes = task.source.len() + received.bytes();
        self.state().takes(client, bytes)
    }

    /// A job of this client.
    #[cfg(test)]
    pub(crate) fn get(&self, client: &Client, id: &str) -> Option<Job> {
        let state = self.state();
        let entry = state.jobs.get(id)?;
        client.may_see(&entry.client).then(|| entry.job(id))
    }

    /// The job once it is over, or as it stands after `limit`.
    pub(crate) async fn wait(&self, client: &Client, id: &str, limit: Duration) -> Option<Job> {
        let mut over = {
            let state = self.state();
            let entry = state.jobs.get(id)?;
            if !client.may_see(&entry.client) {
                return None;
            }
            if entry.is_over() {
                return Some(entry.job(id));
            }
            entry.over.subscribe()
        };
        // Where the job was forgotten, the look below says so.
        let _ = tokio::time::timeout(limit, over.wait_for(|over| *over)).await;
        let mut state = self.state();
        let entry = state.jobs.get(id)?;
        let overhead = entry.overhead();
        let job = entry.job(id);
        if let Some(overhead) = overhead {
            state.counts.overhead.observe(overhead);
        }
        Some(job)
    }

    /// Takes the job back where what is returned is dropped.
    pub(crate) fn hold<'a>(&'a self, client: &'a Client, id: &'a str) -> Held<'a> {
        Held {
            jobs: self,
            client,
            id,
        }
    }

    /// How many jobs wait, and the latest of those that the client may see.
    pub(crate) fn list(&self, client: &Client, limit: usize) -> (usize, Vec<Job>) {
        let state = self.state();
        let all = state.order.iter().rev();
        let seen = all.filter_map(|id| Some((id, state.jobs.get(id)?)));
        let jobs = seen
            .filter(|(_, entry)| client.may_see(&entry.client))
            .take(limit)
            .map(|(id, entry)| entry.job(id));
        (state.waiting.len(), jobs.collect())
    }

    /// Cancels a job that no judge has begun with.
    pub(crate) fn cancel(&self, client: &Client, id: &str) -> Result<Job, JobRefusal> {
        let mut state = self.state();
        let found = state.jobs.get_mut(id);
        let Some(entry) = found.filter(|entry| client.may_see(&entry.client)) else {
            return Err(JobRefusal::Unknown);
        };
        if !matches!(entry.progress, Progress::Waiting) {
            return Err(JobRefusal::TooLate);
        }
        let over = entry.end(Progress::Cancelled);
        let job = entry.job(id);
        let owner = entry.client.clone();
        state.waiting.remove(&owner, id);
        state.counts.cancelled += 1;
        drop(state);
        over.send_replace(true);
        Ok(job)
    }

    /// Sends away what waits and takes nothing more. Judges end what they are at and leave.
    pub(crate) fn drain(&self) {
        let mut state = self.state();
        state.draining = true;
        let mut sent_away = Vec::new();
        while let Some(id) = state.waiting.pop() {
            let failure = drained_failure();
            state.counts.ended(Err(&failure));
            if let Some(entry) = state.jobs.get_mut(&id) {
                sent_away.push(entry.end(Progress::Over(Err(failure))));
            }
        }
        drop(state);
        for over in sent_away {
            over.send_replace(true);
        }
        self.draining.send_replace(true);
        self.submitted.notify_all();
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Returns once no more jobs are taken.
    pub(crate) async fn until_draining(&self) {
        let mut draining = self.draining.subscribe();
        // Its sender lives as long as `self`.
        let _ = draining.wait_for(|draining| *draining).await;
    }

    /// In Prometheus' text format.
    pub(crate) fn metrics(&self, gpus: Vec<(u32, Option<f64>)>) -> String {
        let state = self.state();
        let waiting = state.waiting.by_client().into_iter();
        let now = Moment {
            waiting: waiting
                .map(|(client, count)| (client.name().to_owned(), count))
                .collect(),
            judging: state.judging,
            judges: state.judges,
            draining: state.draining,
            gpus,
        };
        state.counts.text(&now)
    }

    /// Has a judge work through the jobs until no more are taken.
    pub(crate) fn serve(&self, mut judge: Box<dyn Judge>) {
        self.state().judges += 1;
        let mut panicked = false;
        let mut free_since = Instant::now();
        while let Some((id, task, submission)) = self.next(free_since) {
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
            free_since = Instant::now();
            self.end(&id, judged);
        }
        self.state().judges -= 1;
    }

    fn next(&self, free_since: Instant) -> Option<(String, Arc<Task>, Submission)> {
        let mut state = self.state();
        loop {
            if let Some(id) = state.waiting.pop()
                && let Some(entry) = state.jobs.get_mut(&id)
                && let Some((task, submission)) = entry.work.take()
            {
                let now = Instant::now();
                entry.progress = Progress::Judging;
                entry.begun = Some(now);
                entry.picked_up = now - entry.came.max(free_since);
                let waited = now - entry.came;
                state.judging += 1;
                state.counts.waiting.observe(waited);
                return Some((id, task, submission));
            }
            if state.waiting.len() == 0 {
                if state.draining {
                    return None;
                }
                state = self
                    .submitted
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn end(&self, id: &str, judged: Result<Verdict, Failure>) {
        let mut state = self.state();
        state.judging -= 1;
        state.counts.ended(judged.as_ref());
        let Some(entry) = state.jobs.get_mut(id) else {
            return;
        };
        let unusable = entry.unusable.take();
        let judged = judged.map(|mut verdict| {
            verdict.reason = unusable.or(verdict.reason);
            Arc::new(verdict)
        });
        let took = entry.begun.map(|begun| begun.elapsed());
        let over = entry.end(Progress::Over(judged));
        if let Some(took) = took {
            state.counts.judging.observe(took);
        }
        drop(state);
        // Whoever is woken wants the lock at once, and may take this thread's core for it.
        over.send_replace(true);
    }
}

impl State {
    fn takes(&self, client: &Client, bytes: usize) -> Result<(), JobRefusal> {
        if self.draining {
            Err(JobRefusal::Draining)
        } else if self.waiting.has_place(client, bytes) {
            Ok(())
        } else {
            Err(JobRefusal::Full)
        }
    }

    fn forget_oldest(&mut self) {
        while self.order.len() > MAX_KEPT {
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

    /// Gives what tells those who wait, for when the lock is no longer held.
    #[must_use]
    fn end(&mut self, progress: Progress) -> watch::Sender<bool> {
        self.progress = progress;
        self.work = None;
        self.ended = Some(Instant::now());
        self.over.clone()
    }

    /// What the queue has added, up to now, to a job that was judged.
    fn overhead(&self) -> Option<Duration> {
        match (&self.progress, self.begun, self.ended) {
            (Progress::Over(_), Some(_), Some(ended)) => Some(self.picked_up + ended.elapsed()),
            _ => None,
        }
    }

    fn job(&self, id: &str) -> Job {
        let end = self.ended.unwrap_or_else(Instant::now);
        let begun = self.begun.unwrap_or(end);
        let (status, verdict, failure) = match &self.progress {
            Progress::Waiting => (JobStatus::Waiting, None, None),
            Progress::Judging => (JobStatus::Judging, None, None),
            Progress::Over(Ok(verdict)) => (JobStatus::Judged, Some(verdict.clone()), None),
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

#[cfg(test)]
mod tests;
