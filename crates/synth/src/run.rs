//! A run: candidates through the filters until the set is full.
//!
//! This thread composes, compares with benchmarks and writes down what became of each candidate. Workers screen and
//! compile on all cores. One thread times what they let through, alone: on a GPU under its lease while the workers go on,
//! on a CPU while they pause. What was written down is never done again, so a run can be killed at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use warpsmith_judge::{Judge, JudgeError, TaskSource};
use warpsmith_machine::Lease;
use warpsmith_sandbox::Isolation;
use warpsmith_schema::Target;
use warpsmith_tasks::Benchmark;

use crate::candidate::Candidate;
use crate::compose::{Composer, Unmade};
use crate::filter::{Containment, Dropped, Facts, Worker, WorkerError, Workshop};
use crate::grammar::Size;
use crate::mix::{Group, Mix};
use crate::record::{Fate, Record, Row};

/// Candidates are composed until so many of each task wanted have been tried.
const CANDIDATES_A_TASK: u64 = 60;
/// So many wait before workers pause for them to be timed: pausing costs the rest of what is being compiled.
const TIMED_TOGETHER: usize = 8;
const LEASE_PATIENCE: Duration = Duration::from_mins(10);
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
    /// Tries tasks out as it will later judge them; `None` leaves that out.
    pub judge: Option<Judge>,
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
    #[error("could not lease the device")]
    Lease(#[source] std::io::Error),
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
}

impl Progress {
    fn note(&mut self, record: &Record) {
        self.tried.insert(record.index);
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
}

/// From a thread to the one that writes down.
enum Done {
    Filtered(Box<Candidate>, Result<Row, Dropped>),
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
        judge,
        excluded,
        lease,
        wish,
    } = means;
    let mut progress = Progress::default();
    let mut own = Benchmark::default();
    for record in before {
        progress.note(record);
        if let Fate::Kept(row) = &record.fate
            && let Ok(structure) = warpsmith_tasks::Structure::of(&row.code)
        {
            own.insert(row.name.clone(), structure);
        }
    }
    let quotas = plan.mix.quotas(plan.count);
    let composed_by = composer.name();
    let gate = RwLock::new(());
    thread::scope(|scope| {
        let (to_workers, for_workers) = channel::<Box<Candidate>>();
        let (to_timer, for_timer) = channel::<Screened>();
        let (to_main, for_main) = channel::<Done>();
        let queue = Arc::new(Mutex::new(for_workers));
        let gate = &gate;
        for number in 0..plan.workers.max(1) {
            let (to_timer, to_main) = (to_timer.clone(), to_main.clone());
            let bench = Bench {
                workshop,
                isolation,
                number,
                gate: (plan.target == Target::Cpu).then_some(gate),
            };
            let queue = Arc::clone(&queue);
            scope.spawn(move || bench.work(&queue, &to_timer, &to_main));
        }
        drop(to_timer);
        let timer = Timer {
            plan,
            workshop,
            isolation,
            judge,
            lease,
            gate: (plan.target == Target::Cpu).then_some(gate),
            composer: composed_by,
        };
        let from_timer = to_main.clone();
        scope.spawn(move || timer.work(&for_timer, &from_timer));
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
            if ended.is_ok() || wish() != Wish::Abandon {
                main.hear(&mut feed, done).ok();
            }
        }
        ended
    })?;
    Ok(progress)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where candidates come from.
struct Feed<'a> {
    plan: &'a Plan,
    quotas: &'a BTreeMap<Group, usize>,
    composer: &'a mut dyn Composer,
    excluded: &'a Benchmark,
    next: u64,
    in_hand: BTreeMap<Group, usize>,
}

impl Feed<'_> {
    fn in_hand(&self) -> usize {
        self.in_hand.values().sum()
    }

    /// Whether another one of this group could still be of use.
    fn wanted(&self, group: Group, progress: &Progress) -> bool {
        let quota = self.quotas.get(&group).copied().unwrap_or(0);
        let kept = progress.kept.get(&group).copied().unwrap_or(0);
        let in_hand = self.in_hand.get(&group).copied().unwrap_or(0);
        // Not all that are in hand will be kept.
        in_hand < 3 * quota.saturating_sub(kept)
    }

    /// The next candidate worth running, or what became of one that is not.
    fn next(&mut self, progress: &Progress, own: &Benchmark) -> Result<Next, SynthError> {
        let limit = CANDIDATES_A_TASK * (self.plan.count as u64).max(20);
        while self.next < limit {
            let index = self.next;
            self.next += 1;
            if progress.tried.contains(&index) {
                continue;
            }
            let Some(group) = self.plan.mix.group(self.plan.seed, index) else {
                continue;
            };
            if !self.wanted(group, progress) {
                continue;
            }
            let record = |fate, nearest| Record {
                index,
                group,
                nearest,
                fate,
            };
            let mut candidate = match self.composer.compose(index, group) {
                Ok(candidate) => candidate,
                Err(Unmade::Nothing) => continue,
                Err(Unmade::Nonsense(dropped)) => {
                    return Ok(Next::Over(record(Fate::Dropped(dropped), None)));
                }
                Err(Unmade::Failed(error)) => return Err(SynthError::Composer(error)),
            };
            candidate.nearest = self.excluded.nearest(&candidate.structure);
            if let Some(near) = candidate.nearest.as_ref().filter(|near| near.is_twin()) {
                let detail = format!("{} of `{}`", near.similarity, near.id);
                let dropped = Dropped::new("in_benchmark", detail);
                return Ok(Next::Over(record(Fate::Dropped(dropped), candidate.nearest)));
            }
            if let Some(near) = own.twin(&candidate.structure) {
                let dropped = Dropped::new("near_duplicate", format!("of `{}`", near.id));
                return Ok(Next::Over(record(Fate::Dropped(dropped), candidate.nearest)));
            }
            *self.in_hand.entry(group).or_default() += 1;
            return Ok(Next::Run(Box::new(candidate)));
        }
        Ok(Next::Exhausted)
    }
}

enum Next {
    Run(Box<Candidate>),
    Over(Record),
    Exhausted,
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
        let mut exhausted = false;
        while self.progress.kept() < feed.plan.count {
            if (self.wish)() != Wish::GoOn {
                return Err(SynthError::Interrupted);
            }
            if !exhausted && feed.in_hand() < most_in_hand {
                match feed.next(self.progress, self.own)? {
                    Next::Run(candidate) => drop(to_workers.send(candidate)),
                    Next::Over(record) => self.record(&record)?,
                    // Quotas may be waiting for what is in hand.
                    Next::Exhausted if feed.in_hand() > 0 => exhausted = true,
                    Next::Exhausted => {
                        let (tried, kept) = (self.progress.tried.len() as u64, self.progress.kept());
                        return Err(SynthError::Exhausted(tried, kept, feed.plan.count));
                    }
                }
                while let Ok(done) = for_main.try_recv() {
                    self.hear(feed, done)?;
                }
                continue;
            }
            match for_main.recv_timeout(GLANCE) {
                Ok(done) => {
                    self.hear(feed, done)?;
                    exhausted = false;
                }
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
        let quota = feed.quotas.get(&candidate.group).copied().unwrap_or(0);
        let kept = self.progress.kept.get(&candidate.group).copied().unwrap_or(0);
        let fate = match filtered {
            Err(dropped) => Fate::Dropped(dropped),
            // The group was filled while this one was on its way.
            Ok(_) if kept >= quota => Fate::Dropped(Dropped::new("surplus", "")),
            // A twin of it was on its way at the same time.
            Ok(row) => match self.own.twin(&candidate.structure) {
                Some(near) => {
                    Fate::Dropped(Dropped::new("near_duplicate", format!("of `{}`", near.id)))
                }
                None => {
                    self.own.insert(row.name.clone(), candidate.structure.clone());
                    Fate::Kept(Box::new(row))
                }
            },
        };
        self.record(&Record {
            index: candidate.index,
            group: candidate.group,
            nearest: candidate.nearest,
            fate,
        })
    }

    fn record(&mut self, record: &Record) -> Result<(), SynthError> {
        self.progress.note(record);
        (self.write)(record, self.progress).map_err(SynthError::Record)
    }
}

/// What workers let through.
struct Screened {
    candidate: Box<Candidate>,
    agreed: Value,
}

/// A worker's place.
struct Bench<'a> {
    workshop: &'a Workshop,
    isolation: Isolation,
    number: usize,
    gate: Option<&'a RwLock<()>>,
}

impl Bench<'_> {
    fn work(
        &self,
        queue: &Mutex<Receiver<Box<Candidate>>>,
        to_timer: &Sender<Screened>,
        to_main: &Sender<Done>,
    ) {
        let new = |containment| Worker::new(self.workshop, containment, self.isolation, self.number);
        let (mut ours, mut others) = (new(Containment::None), new(Containment::Sandboxed));
        loop {
            let next = locked(queue).recv();
            let Ok(candidate) = next else { return };
            let _open = self.gate.map(|gate| gate.read().unwrap_or_else(PoisonError::into_inner));
            let worker = if candidate.made.ours() { &mut ours } else { &mut others };
            let sent = match filter(worker, &candidate) {
                Ok(Ok(agreed)) => to_timer.send(Screened { candidate, agreed }).is_ok(),
                Ok(Err(dropped)) => to_main.send(Done::Filtered(candidate, Err(dropped))).is_ok(),
                Err(error) => {
                    drop(to_main.send(Done::Failed(error.into())));
                    false
                }
            };
            if !sent {
                return;
            }
        }
    }
}

/// The cheap filters, then the compiler.
fn filter(
    worker: &mut Worker<'_>,
    candidate: &Candidate,
) -> Result<Result<Value, Dropped>, WorkerError> {
    let code = candidate.made.code(Size::REDUCED);
    let graph = candidate.made.graph_value(Size::REDUCED);
    if let Err(dropped) = worker.screen(&code, graph.as_ref())? {
        return Ok(Err(dropped));
    }
    worker.agree(&code)
}

/// The thread that times.
struct Timer<'a> {
    plan: &'a Plan,
    workshop: &'a Workshop,
    isolation: Isolation,
    judge: Option<Judge>,
    lease: String,
    gate: Option<&'a RwLock<()>>,
    composer: String,
}

impl Timer<'_> {
    fn work(mut self, for_timer: &Receiver<Screened>, to_main: &Sender<Done>) {
        let number = self.plan.workers.max(1);
        let new = |containment| Worker::new(self.workshop, containment, self.isolation, number);
        let (mut ours, mut others) = (new(Containment::None), new(Containment::Sandboxed));
        while let Ok(first) = for_timer.recv() {
            let mut together = vec![first];
            while together.len() < TIMED_TOGETHER {
                match for_timer.recv_timeout(Duration::from_secs(2)) {
                    Ok(next) => together.push(next),
                    Err(_) => break,
                }
            }
            let timed = {
                let _alone = self.gate.map(|gate| gate.write().unwrap_or_else(PoisonError::into_inner));
                let lease = Lease::take(&self.lease, LEASE_PATIENCE);
                match lease {
                    Ok(_lease) => self.time_all(together, &mut ours, &mut others),
                    Err(error) => Err(SynthError::Lease(error)),
                }
            };
            let told = match timed {
                Ok(timed) => timed
                    .into_iter()
                    .try_for_each(|(screened, timed)| self.tell(screened, timed, to_main)),
                Err(error) => Err(error),
            };
            if let Err(error) = told {
                drop(to_main.send(Done::Failed(error)));
                return;
            }
        }
    }

    fn time_all<'w>(
        &self,
        together: Vec<Screened>,
        ours: &mut Worker<'w>,
        others: &mut Worker<'w>,
    ) -> Result<Vec<(Screened, Result<Timed, Dropped>)>, SynthError> {
        let mut all = Vec::new();
        for screened in together {
            let worker = if screened.candidate.made.ours() { &mut *ours } else { &mut *others };
            let timed = self.fit(worker, &screened.candidate)?;
            all.push((screened, timed));
        }
        Ok(all)
    }

    /// Looks for the size whose time falls into the window.
    fn fit(
        &self,
        worker: &mut Worker<'_>,
        candidate: &Candidate,
    ) -> Result<Result<Timed, Dropped>, SynthError> {
        let (least, most) = self.plan.window_ms;
        let made = &candidate.made;
        let mut size = match self.plan.target {
            Target::Cpu => Size::USUAL_ON_CPU,
            Target::Cuda => Size::USUAL_ON_GPU,
        };
        let mut tried = BTreeSet::new();
        loop {
            tried.insert(size);
            let bytes = made.bytes(size);
            let timed = if bytes.is_some_and(|bytes| bytes > self.plan.memory_bytes) {
                Err(Dropped::new("too_much_memory", format!("{} bytes", bytes.unwrap_or(0))))
            } else {
                worker.time(&made.code(size), most)?
            };
            // Too large is like too long: a smaller size may do.
            let (next, why) = match timed {
                Err(dropped) if dropped.reason == "too_much_memory" => (size.smaller(), dropped),
                Err(dropped) => return Ok(Err(dropped)),
                Ok(facts) => {
                    let eager_ms = facts["eager_ms"].as_f64().unwrap_or(f64::INFINITY);
                    let peak = facts["peak_bytes"].as_u64().or(bytes).unwrap_or(0);
                    let told = format!("{eager_ms:.2} ms in size {}", size.number());
                    if peak > self.plan.memory_bytes {
                        (size.smaller(), Dropped::new("too_much_memory", format!("{peak} bytes")))
                    } else if eager_ms < least {
                        (size.larger(), Dropped::new("too_short", told))
                    } else if eager_ms > most {
                        (size.smaller(), Dropped::new("too_long", told))
                    } else {
                        return Ok(Ok(Timed { size, eager_ms, bytes: peak }));
                    }
                }
            };
            match next.filter(|next| made.has_sizes() && !tried.contains(next)) {
                Some(next) => size = next,
                None => return Ok(Err(why)),
            }
        }
    }

    /// Has the judge look at it, and passes it on.
    fn tell(
        &mut self,
        screened: Screened,
        timed: Result<Timed, Dropped>,
        to_main: &Sender<Done>,
    ) -> Result<(), SynthError> {
        let candidate = screened.candidate;
        let result = match timed {
            Err(dropped) => Err(dropped),
            Ok(timed) => self.survey(&candidate, &timed)?.map(|surveyed| {
                let facts = Facts {
                    eager_ms: timed.eager_ms,
                    bytes: timed.bytes,
                    compile_error: screened.agreed["compile_error"].as_f64().unwrap_or(0.0),
                    compile_seconds: screened.agreed["compile_seconds"].as_f64().unwrap_or(0.0),
                    surveyed,
                };
                self.row(&candidate, &timed, facts)
            }),
        };
        drop(to_main.send(Done::Filtered(candidate, result)));
        Ok(())
    }

    /// Only our own tasks: the judge runs a task outside the sandbox.
    fn survey(
        &mut self,
        candidate: &Candidate,
        timed: &Timed,
    ) -> Result<Result<bool, Dropped>, SynthError> {
        let Some(judge) = self.judge.as_mut().filter(|_| candidate.made.ours()) else {
            return Ok(Ok(false));
        };
        let task = TaskSource {
            name: candidate.name.clone(),
            source: candidate.made.code(timed.size),
        };
        match judge.survey(&task) {
            Ok(()) => Ok(Ok(true)),
            Err(JudgeError::Task { code, message }) => {
                Ok(Err(Dropped::new(&format!("judge_{code}"), message)))
            }
            Err(error) => Err(SynthError::Judge(error)),
        }
    }

    fn row(&self, candidate: &Candidate, timed: &Timed, facts: Facts) -> Row {
        let made = &candidate.made;
        Row {
            ops: candidate.seeds.clone(),
            data_source: candidate.group.data_source(),
            code: made.code(timed.size),
            name: candidate.name.clone(),
            graph: made.graph(timed.size),
            composer: self.composer.clone(),
            seed: self.plan.seed,
            index: candidate.index,
            size: made.has_sizes().then(|| timed.size.number()),
            target: self.plan.target,
            device: self.plan.device.clone(),
            facts,
            nearest: candidate.nearest.clone(),
        }
    }
}

struct Timed {
    size: Size,
    eager_ms: f64,
    bytes: u64,
}
