//! A run: candidates through the filters until the set is full.
//!
//! This thread composes, compares with benchmarks and writes down what became of each candidate. Workers screen and
//! compile on all cores. What they let through is timed under the device's lease, and on a CPU while workers and judges
//! pause. Judges try out what fits. What was written down is never done again, so a run can be
//! killed at any moment.

mod feed;
mod screening;
mod surveying;
mod timing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use warpsmith_decontaminate::{FingerprintIndex, Structure};
use warpsmith_judge::{Judge, JudgeError};
use warpsmith_sandbox::Isolation;
use warpsmith_schema::Target;

use crate::candidate::TaskCandidate;
use crate::compose::TaskComposer;
use crate::filter::{FilterEnvironment, FilterError, FilterRejection};
use crate::mix::{TaskGroup, TaskMix};
use crate::record::{CandidateOutcome, CandidateRecord, SynthRow};
use feed::{CandidateFeed, NextCandidate};
use screening::{ScreenedCandidate, ScreeningWorker};
use surveying::Surveyor;
use timing::{TimedCandidate, Timer};

/// So many wait before workers pause for them to be timed: pausing costs the rest of what is being compiled.
const TIMING_BATCH: usize = 8;
/// One has the device, the others make their tasks or look at what came out.
const TIMERS_ON_A_GPU: usize = 4;
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// What is wanted.
#[derive(Debug, Clone)]
pub struct SynthPlan {
    pub seed: u64,
    pub count: usize,
    pub mix: TaskMix,
    /// Milliseconds of an eager call, least and most.
    pub window_ms: (f64, f64),
    pub memory_bytes: u64,
    pub target: Target,
    /// What it is called, for the rows.
    pub device: String,
    pub workers: usize,
}

/// What a run works with.
pub struct SynthResources<'a> {
    pub composer: &'a mut dyn TaskComposer,
    pub environment: &'a FilterEnvironment,
    pub isolation: Isolation,
    /// They try tasks out as they will later judge them; without any that is left out.
    pub judges: Vec<Box<dyn Judge>>,
    /// Tasks that none of the set may be a near-duplicate of.
    pub excluded: FingerprintIndex,
    /// The name under which the device is leased.
    pub lease: String,
    /// Whether to stop, and whether at once.
    pub stop_requested: fn() -> SynthStopRequest,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SynthStopRequest {
    GoOn,
    /// Finish what is in hand.
    Drain,
    /// What is in hand was killed and means nothing.
    Abandon,
}

/// Why a run stopped early. What it had written down stays.
#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    #[error("the filters cannot be run")]
    Filter(#[from] FilterError),
    #[error("the judge failed")]
    Judge(#[source] JudgeError),
    #[error("the composer failed")]
    Composer(#[source] warpsmith_model::policy::PolicyError),
    #[error("{0} candidates were tried and the set is still not full: {1} of {2} tasks")]
    Exhausted(u64, usize, usize),
    /// Whoever writes records down failed, and has said how.
    #[error("{}", .0.message)]
    Record(warpsmith_schema::Failure),
    #[error("interrupted")]
    Interrupted,
}

/// Every record so far, counted.
#[derive(Debug, Clone, Default)]
pub struct SynthProgress {
    pub kept: BTreeMap<TaskGroup, usize>,
    pub dropped: BTreeMap<String, usize>,
    pub tried: BTreeSet<u64>,
    tried_of: BTreeMap<TaskGroup, usize>,
}

impl SynthProgress {
    fn note(&mut self, record: &CandidateRecord) {
        self.tried.insert(record.index);
        *self.tried_of.entry(record.group).or_default() += 1;
        match &record.outcome {
            CandidateOutcome::Kept(_) => *self.kept.entry(record.group).or_default() += 1,
            CandidateOutcome::Dropped(dropped) => {
                *self.dropped.entry(dropped.reason.clone()).or_default() += 1;
            }
        }
    }

    pub fn kept(&self) -> usize {
        self.kept.values().sum()
    }

    fn kept_of(&self, group: TaskGroup) -> usize {
        self.kept.get(&group).copied().unwrap_or(0)
    }
}

/// From a thread to the one that writes down.
enum FilterResult {
    Filtered(Box<TaskCandidate>, Result<Box<SynthRow>, FilterRejection>),
    Failed(SynthError),
}

/// Runs until the set is full. `before` is what the log holds already; `write` appends to it.
pub fn run(
    plan: &SynthPlan,
    resources: SynthResources<'_>,
    before: &[CandidateRecord],
    write: &mut dyn FnMut(
        &CandidateRecord,
        &SynthProgress,
    ) -> Result<(), warpsmith_schema::Failure>,
) -> Result<SynthProgress, SynthError> {
    let SynthResources {
        composer,
        environment: workshop,
        isolation,
        judges,
        excluded,
        lease,
        stop_requested: stop_request,
    } = resources;
    let mut progress = SynthProgress::default();
    let mut own = FingerprintIndex::default();
    for record in before {
        progress.note(record);
        if let CandidateOutcome::Kept(row) = &record.outcome
            && let Ok(structure) = Structure::of(&row.task.code)
        {
            own.insert(row.task.id.clone(), structure);
        }
    }
    let quotas = plan.mix.quotas(plan.count);
    let composed_by = composer.name();
    let gates = (RwLock::new(()), RwLock::new(()));
    thread::scope(|scope| {
        let (to_workers, for_workers) = channel::<Box<TaskCandidate>>();
        let (to_timer, for_timer) = channel::<ScreenedCandidate>();
        let (to_main, for_main) = channel::<FilterResult>();
        let (to_surveyors, for_surveyors) = channel::<TimedCandidate>();
        let queue = Arc::new(Mutex::new(for_workers));
        let fitting = Arc::new(Mutex::new(for_surveyors));
        // What is timed on a CPU is timed alone. Two gates, so that workers go on while the timer waits for a judge. On a GPU
        // timers and judges keep out of each other's way by the lease, and what workers launch is small.
        let closing = |gate| (plan.target == Target::Cpu).then_some(gate);
        let (gate, judges_gate) = (closing(&gates.0), closing(&gates.1));
        for number in 0..plan.workers.max(1) {
            let (to_timer, to_main) = (to_timer.clone(), to_main.clone());
            let bench = ScreeningWorker {
                workshop,
                isolation,
                number,
                gate,
            };
            let queue = Arc::clone(&queue);
            scope.spawn(move || bench.work(&queue, &to_timer, &to_main));
        }
        drop(to_timer);
        let screened = Arc::new(Mutex::new(for_timer));
        let timers = match plan.target {
            Target::Cpu => 1,
            Target::Cuda => TIMERS_ON_A_GPU,
        };
        for timer in 0..timers {
            let timer = Timer {
                plan,
                workshop,
                isolation,
                number: plan.workers.max(1) + timer,
                lease: &lease,
                gate,
                judges_gate,
            };
            let queue = Arc::clone(&screened);
            let (to_surveyors, to_main) = (to_surveyors.clone(), to_main.clone());
            scope.spawn(move || timer.work(&queue, &to_surveyors, &to_main));
        }
        drop(to_surveyors);
        let mut judges: Vec<Option<Box<dyn Judge>>> = judges.into_iter().map(Some).collect();
        if judges.is_empty() {
            judges.push(None);
        }
        for judge in judges {
            let surveyor = Surveyor {
                plan,
                judge,
                gate: judges_gate,
                composer: composed_by.clone(),
            };
            let (queue, to_main) = (Arc::clone(&fitting), to_main.clone());
            scope.spawn(move || surveyor.work(&queue, &to_main));
        }
        drop(to_main);

        let mut feed = CandidateFeed {
            plan,
            quotas: &quotas,
            composer,
            excluded: &excluded,
            next: 0,
            in_hand: BTreeMap::new(),
        };
        let mut main = Coordinator {
            progress: &mut progress,
            kept_tasks: &mut own,
            write,
            stop_requested: stop_request,
        };
        let ended = main.run(&mut feed, &to_workers, &for_main);
        // Nothing waits any more, so workers and timer end; what they still have in hand is written down.
        drop(to_workers);
        while locked(&queue).try_recv().is_ok() {}
        while let Ok(done) = for_main.recv() {
            main.receive(&mut feed, done).ok();
        }
        ended
    })?;
    Ok(progress)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that composes and writes down.
struct Coordinator<'a> {
    progress: &'a mut SynthProgress,
    kept_tasks: &'a mut FingerprintIndex,
    write: &'a mut dyn FnMut(
        &CandidateRecord,
        &SynthProgress,
    ) -> Result<(), warpsmith_schema::Failure>,
    stop_requested: fn() -> SynthStopRequest,
}

impl Coordinator<'_> {
    fn run(
        &mut self,
        feed: &mut CandidateFeed<'_>,
        to_workers: &Sender<Box<TaskCandidate>>,
        for_main: &Receiver<FilterResult>,
    ) -> Result<(), SynthError> {
        let most_in_hand = 4 * feed.plan.workers.max(1) + 2 * TIMING_BATCH;
        while self.progress.kept() < feed.plan.count {
            if (self.stop_requested)() != SynthStopRequest::GoOn {
                return Err(SynthError::Interrupted);
            }
            let room = feed.in_hand() < most_in_hand;
            let next = if room {
                feed.next(self.progress, self.kept_tasks)?
            } else {
                NextCandidate::Wait
            };
            let wait = match next {
                NextCandidate::Run(candidate) => {
                    drop(to_workers.send(candidate));
                    Duration::ZERO
                }
                NextCandidate::Dropped(record) => {
                    self.record(&record)?;
                    Duration::ZERO
                }
                NextCandidate::Exhausted if feed.in_hand() == 0 => {
                    let (tried, kept) = (self.progress.tried.len() as u64, self.progress.kept());
                    return Err(SynthError::Exhausted(tried, kept, feed.plan.count));
                }
                NextCandidate::Wait | NextCandidate::Exhausted => POLL_INTERVAL,
            };
            match for_main.recv_timeout(wait) {
                Ok(done) => self.receive(feed, done)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(SynthError::Interrupted),
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        feed: &mut CandidateFeed<'_>,
        done: FilterResult,
    ) -> Result<(), SynthError> {
        let (candidate, filtered) = match done {
            FilterResult::Filtered(candidate, filtered) => (candidate, filtered),
            FilterResult::Failed(error) => return Err(error),
        };
        if let Some(in_hand) = feed.in_hand.get_mut(&candidate.group) {
            *in_hand = in_hand.saturating_sub(1);
        }
        if (self.stop_requested)() == SynthStopRequest::Abandon {
            return Err(SynthError::Interrupted);
        }
        let (group, progress) = (candidate.group, &*self.progress);
        let full = progress.kept() >= feed.plan.count || feed.is_full(group, progress);
        let outcome = match filtered {
            Err(dropped) => CandidateOutcome::Dropped(dropped),
            // The group was filled while this one was on its way.
            Ok(_) if full => CandidateOutcome::Dropped(FilterRejection::new("surplus", "")),
            Ok(row) => {
                // A near-duplicate was screened at the same time.
                if let Some(near) = self.kept_tasks.near_duplicate(&candidate.structure) {
                    CandidateOutcome::Dropped(FilterRejection::new(
                        "near_duplicate",
                        format!("of `{}`", near.id),
                    ))
                } else {
                    self.kept_tasks
                        .insert(row.task.id.clone(), candidate.structure.clone());
                    CandidateOutcome::Kept(row)
                }
            }
        };
        self.record(&CandidateRecord {
            index: candidate.index,
            group: candidate.group,
            nearest: candidate.nearest,
            seconds: candidate.seconds,
            outcome,
        })
    }

    fn record(&mut self, record: &CandidateRecord) -> Result<(), SynthError> {
        self.progress.note(record);
        (self.write)(record, self.progress).map_err(SynthError::Record)
    }
}
