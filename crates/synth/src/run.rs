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

use warpsmith_decontaminate::{Benchmark, Structure};
use warpsmith_judge::{JudgeError, LocalJudge};
use warpsmith_sandbox::Isolation;
use warpsmith_schema::Target;

use crate::candidate::Candidate;
use crate::compose::Composer;
use crate::filter::{Dropped, WorkerError, Workshop};
use crate::mix::{Group, Mix};
use crate::record::{Fate, Record, Row};
use feed::{Feed, Next};
use screening::{Bench, Screened};
use surveying::Surveyor;
use timing::{Fitting, Timer};

/// So many wait before workers pause for them to be timed: pausing costs the rest of what is being compiled.
const TIMED_TOGETHER: usize = 8;
/// One has the device, the others make their tasks or look at what came out.
const TIMERS_ON_A_GPU: usize = 4;
const GLANCE: Duration = Duration::from_millis(200);

/// What is wanted.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub count: usize,
    pub mix: Mix,
    /// Milliseconds of an eager call, least and most.
    pub window_ms: (f64, f64),
    pub memory_bytes: u64,
    pub target: Target,
    /// What it is called, for the rows.
    pub device: String,
    pub workers: usize,
}

/// What a run works with.
pub struct Means<'a> {
    pub composer: &'a mut dyn Composer,
    pub workshop: &'a Workshop,
    pub isolation: Isolation,
    /// They try tasks out as they will later judge them; without any that is left out.
    pub judges: Vec<LocalJudge>,
    /// Tasks that none of the set may be a near-twin of.
    pub excluded: Benchmark,
    /// The name under which the device is leased.
    pub lease: String,
    /// Whether to stop, and whether at once.
    pub wish: fn() -> Wish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
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
    Filter(#[from] WorkerError),
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
pub struct Progress {
    pub kept: BTreeMap<Group, usize>,
    pub dropped: BTreeMap<String, usize>,
    pub tried: BTreeSet<u64>,
    tried_of: BTreeMap<Group, usize>,
}

impl Progress {
    fn note(&mut self, record: &Record) {
        self.tried.insert(record.index);
        *self.tried_of.entry(record.group).or_default() += 1;
        match &record.fate {
            Fate::Kept(_) => *self.kept.entry(record.group).or_default() += 1,
            Fate::Dropped(dropped) => {
                *self.dropped.entry(dropped.reason.clone()).or_default() += 1;
            }
        }
    }

    pub fn kept(&self) -> usize {
        self.kept.values().sum()
    }

    fn kept_of(&self, group: Group) -> usize {
        self.kept.get(&group).copied().unwrap_or(0)
    }
}

/// From a thread to the one that writes down.
enum Done {
    Filtered(Box<Candidate>, Result<Box<Row>, Dropped>),
    Failed(SynthError),
}

/// Runs until the set is full. `before` is what the log holds already; `write` appends to it.
pub fn run(
    plan: &Plan,
    means: Means<'_>,
    before: &[Record],
    write: &mut dyn FnMut(&Record, &Progress) -> Result<(), warpsmith_schema::Failure>,
) -> Result<Progress, SynthError> {
    let Means {
        composer,
        workshop,
        isolation,
        judges,
        excluded,
        lease,
        wish,
    } = means;
    let mut progress = Progress::default();
    let mut own = Benchmark::default();
    for record in before {
        progress.note(record);
        if let Fate::Kept(row) = &record.fate
            && let Ok(structure) = Structure::of(&row.task.code)
        {
            own.insert(row.task.id.clone(), structure);
        }
    }
    let quotas = plan.mix.quotas(plan.count);
    let composed_by = composer.name();
    let gates = (RwLock::new(()), RwLock::new(()));
    thread::scope(|scope| {
        let (to_workers, for_workers) = channel::<Box<Candidate>>();
        let (to_timer, for_timer) = channel::<Screened>();
        let (to_main, for_main) = channel::<Done>();
        let (to_surveyors, for_surveyors) = channel::<Fitting>();
        let queue = Arc::new(Mutex::new(for_workers));
        let fitting = Arc::new(Mutex::new(for_surveyors));
        // What is timed on a CPU is timed alone. Two gates, so that workers go on while the timer waits for a judge. On a GPU
        // timers and judges keep out of each other's way by the lease, and what workers launch is small.
        let closing = |gate| (plan.target == Target::Cpu).then_some(gate);
        let (gate, judges_gate) = (closing(&gates.0), closing(&gates.1));
        for number in 0..plan.workers.max(1) {
            let (to_timer, to_main) = (to_timer.clone(), to_main.clone());
            let bench = Bench {
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
        let mut judges: Vec<Option<LocalJudge>> = judges.into_iter().map(Some).collect();
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

        let mut feed = Feed {
            plan,
            quotas: &quotas,
            composer,
            excluded: &excluded,
            next: 0,
            in_hand: BTreeMap::new(),
        };
        let mut main = Main {
            progress: &mut progress,
            own: &mut own,
            write,
            wish,
        };
        let ended = main.conduct(&mut feed, &to_workers, &for_main);
        // Nothing waits any more, so workers and timer end; what they still have in hand is written down.
        drop(to_workers);
        while locked(&queue).try_recv().is_ok() {}
        while let Ok(done) = for_main.recv() {
            main.hear(&mut feed, done).ok();
        }
        ended
    })?;
    Ok(progress)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that composes and writes down.
struct Main<'a> {
    progress: &'a mut Progress,
    own: &'a mut Benchmark,
    write: &'a mut dyn FnMut(&Record, &Progress) -> Result<(), warpsmith_schema::Failure>,
    wish: fn() -> Wish,
}

impl Main<'_> {
    fn conduct(
        &mut self,
        feed: &mut Feed<'_>,
        to_workers: &Sender<Box<Candidate>>,
        for_main: &Receiver<Done>,
    ) -> Result<(), SynthError> {
        let most_in_hand = 4 * feed.plan.workers.max(1) + 2 * TIMED_TOGETHER;
        while self.progress.kept() < feed.plan.count {
            if (self.wish)() != Wish::GoOn {
                return Err(SynthError::Interrupted);
            }
            let room = feed.in_hand() < most_in_hand;
            let next = if room {
                feed.next(self.progress, self.own)?
            } else {
                Next::Wait
            };
            let wait = match next {
                Next::Run(candidate) => {
                    drop(to_workers.send(candidate));
                    Duration::ZERO
                }
                Next::Over(record) => {
                    self.record(&record)?;
                    Duration::ZERO
                }
                Next::Exhausted if feed.in_hand() == 0 => {
                    let (tried, kept) = (self.progress.tried.len() as u64, self.progress.kept());
                    return Err(SynthError::Exhausted(tried, kept, feed.plan.count));
                }
                Next::Wait | Next::Exhausted => GLANCE,
            };
            match for_main.recv_timeout(wait) {
                Ok(done) => self.hear(feed, done)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(SynthError::Interrupted),
            }
        }
        Ok(())
    }

    fn hear(&mut self, feed: &mut Feed<'_>, done: Done) -> Result<(), SynthError> {
        let (candidate, filtered) = match done {
            Done::Filtered(candidate, filtered) => (candidate, filtered),
            Done::Failed(error) => return Err(error),
        };
        if let Some(in_hand) = feed.in_hand.get_mut(&candidate.group) {
            *in_hand = in_hand.saturating_sub(1);
        }
        if (self.wish)() == Wish::Abandon {
            return Err(SynthError::Interrupted);
        }
        let (group, progress) = (candidate.group, &*self.progress);
        let full = progress.kept() >= feed.plan.count || feed.is_full(group, progress);
        let fate = match filtered {
            Err(dropped) => Fate::Dropped(dropped),
            // The group was filled while this one was on its way.
            Ok(_) if full => Fate::Dropped(Dropped::new("surplus", "")),
            Ok(row) => {
                // A twin of it was on its way at the same time.
                if let Some(near) = self.own.twin(&candidate.structure) {
                    Fate::Dropped(Dropped::new("near_duplicate", format!("of `{}`", near.id)))
                } else {
                    self.own
                        .insert(row.task.id.clone(), candidate.structure.clone());
                    Fate::Kept(row)
                }
            }
        };
        self.record(&Record {
            index: candidate.index,
            group: candidate.group,
            nearest: candidate.nearest,
            spent: candidate.spent,
            fate,
        })
    }

    fn record(&mut self, record: &Record) -> Result<(), SynthError> {
        self.progress.note(record);
        (self.write)(record, self.progress).map_err(SynthError::Record)
    }
}
