//! The queue in front of the judges, and what became of its jobs.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use warpsmith_rollout::Judging;
use warpsmith_schema::{FORMAT, Failure, Task, Verdict};

use super::MakeJudge;
use super::job::{Job, JobStatus};

/// More than this many do not wait: who comes later is asked to come again.
const MOST_WAITING: usize = 256;
/// Jobs that are over and can still be asked about. Their evidence stays as long as its quota allows.
const MOST_KEPT: usize = 10_000;

#[derive(Default)]
pub(crate) struct Jobs {
    state: Mutex<State>,
    work: Condvar,
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
    /// Until a judge has it or it is taken back: what is kept longer is small.
    brought: Option<Brought>,
    progress: Progress,
    came: Instant,
    begun: Option<Instant>,
    ended: Option<Instant>,
    /// Tells those who wait that something has changed.
    changed: watch::Sender<()>,
}

type Brought = (Arc<Task>, BTreeMap<String, String>);

enum Progress {
    Waiting,
    Judging,
    Over(Result<Box<Verdict>, Failure>),
    Cancelled,
}

/// Why a job was not taken or not cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Declined {
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
    pub(crate) fn submit(
        &self,
        task: Arc<Task>,
        files: BTreeMap<String, String>,
    ) -> Result<String, Declined> {
        let mut state = self.state();
        if state.waiting.len() >= MOST_WAITING {
            return Err(Declined::Full);
        }
        let id = format!("{:032x}", rand::random::<u128>());
        let entry = Entry {
            name: task.name.clone(),
            brought: Some((task, files)),
            progress: Progress::Waiting,
            came: Instant::now(),
            begun: None,
            ended: None,
            changed: watch::Sender::new(()),
        };
        state.jobs.insert(id.clone(), entry);
        state.waiting.push_back(id.clone());
        state.order.push_back(id.clone());
        state.forget_the_oldest();
        drop(state);
        self.work.notify_one();
        Ok(id)
    }

    pub(crate) fn get(&self, id: &str) -> Option<Job> {
        self.state().jobs.get(id).map(|entry| entry.job(id))
    }

    /// The job once it is over, or as it is when the time is.
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

    /// Takes a job back that no judge has begun with.
    pub(crate) fn cancel(&self, id: &str) -> Result<Job, Declined> {
        let mut state = self.state();
        let Some(entry) = state.jobs.get_mut(id) else {
            return Err(Declined::Unknown);
        };
        if !matches!(entry.progress, Progress::Waiting) {
            return Err(Declined::TooLate);
        }
        entry.progress = Progress::Cancelled;
        entry.brought = None;
        entry.ended = Some(Instant::now());
        entry.changed.send_replace(());
        let job = entry.job(id);
        state.waiting.retain(|waiting| waiting != id);
        Ok(job)
    }

    /// A judge's working life.
    pub(crate) fn serve(&self, number: usize, make: &MakeJudge) {
        let mut judge = None;
        loop {
            let (id, task, files) = self.next();
            let judged = catch_unwind(AssertUnwindSafe(|| {
                judge_one(&mut judge, || make(number), &task, &files)
            }));
            let judged = judged.unwrap_or_else(|_| {
                // Whatever state it is in, the next submission gets another.
                judge = None;
                Err(Failure::panicked())
            });
            self.end(&id, judged);
        }
    }

    fn next(&self) -> (String, Arc<Task>, BTreeMap<String, String>) {
        let mut state = self.state();
        loop {
            if let Some(id) = state.waiting.pop_front()
                && let Some(entry) = state.jobs.get_mut(&id)
                && let Some((task, files)) = entry.brought.take()
            {
                entry.progress = Progress::Judging;
                entry.begun = Some(Instant::now());
                entry.changed.send_replace(());
                return (id, task, files);
            }
            if state.waiting.is_empty() {
                state = self
                    .work
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn end(&self, id: &str, judged: Result<Verdict, Failure>) {
        if let Some(entry) = self.state().jobs.get_mut(id) {
            entry.progress = Progress::Over(judged.map(Box::new));
            entry.ended = Some(Instant::now());
            entry.changed.send_replace(());
        }
    }
}

impl State {
    fn forget_the_oldest(&mut self) {
        while self.order.len() > MOST_KEPT + MOST_WAITING {
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

fn judge_one(
    judge: &mut Option<Box<dyn Judging>>,
    make: impl FnOnce() -> Result<Box<dyn Judging>, Failure>,
    task: &Task,
    files: &BTreeMap<String, String>,
) -> Result<Verdict, Failure> {
    let judge = match judge {
        Some(judge) => judge,
        None => judge.insert(make()?),
    };
    judge.judge(task, files).map_err(|error| error.failure())
}
