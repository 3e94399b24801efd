//! A run: threads for episodes and for judges, and one that looks after them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use warpsmith_model::policy::SharedPolicy;
use warpsmith_schema::{
    EpisodeId, Event, EventKind, Failure, FailureKind, RunHeader, RunMetrics, Task, Trajectory,
};
use warpsmith_store::RunFolder;

use crate::docket::{Docket, Question};
use crate::episode::play;
use crate::fate::Fate;
use crate::journal::{CANCELLED, Journal};
use crate::meter::Meter;
use crate::{EVENTS, History, Means, Plan, RolloutError, StopRequest, Tally, Way};

/// How often the watcher is told how things stand, and how often the log is.
const LOOK: Duration = Duration::from_millis(200);
const LOOK_AT_DEVICE: Duration = Duration::from_secs(1);
const MEASURE: Duration = Duration::from_secs(10);
/// How long episodes that are not waiting for a reply may take to write down what they were told.
const SETTLE: Duration = Duration::from_secs(3);

/// What a run came to.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub tally: Tally,
    /// Tasks that cannot be judged here, and why.
    pub left_out: Vec<(String, Failure)>,
    pub planned: u32,
    /// Episodes of judgeable tasks without an end.
    pub unfinished: u32,
    pub gauges: RunMetrics,
    pub interrupted: bool,
    /// Why it stopped early; or, where it did not, the last failure of ours that cost an episode its end.
    pub failure: Option<Failure>,
}

/// What the threads of a run share.
pub(crate) struct Shared {
    pub(crate) policy: Arc<dyn SharedPolicy>,
    pub(crate) docket: Docket,
    pub(crate) journal: Arc<Journal>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) fate: Arc<Fate>,
    pub(crate) way: Way,
    pub(crate) workspaces: PathBuf,
    pending: Mutex<VecDeque<Pending>>,
    /// Whether a task can be judged, once that is known. Empty where nobody is to find out beforehand.
    surveys: HashMap<String, Mutex<Option<Result<(), Failure>>>>,
    left_out: Mutex<Vec<(String, Failure)>>,
    last_failure: Mutex<Option<Failure>>,
    /// Episode threads that are at work, and those that have an episode.
    alive: AtomicU32,
    running: AtomicU32,
}

struct Pending {
    task: Arc<Task>,
    id: EpisodeId,
    before: Option<Trajectory>,
}

/// Runs what is missing of a plan in a folder. `on_event` hears every event and, now and then, how the gauges stand.
pub fn run(
    folder: &RunFolder,
    plan: Plan,
    means: Means,
    on_event: &mut dyn FnMut(Option<&Event>, &RunMetrics),
) -> Result<Outcome, RolloutError> {
    let mut ids = BTreeSet::new();
    if let Some(task) = plan.tasks.iter().find(|task| !ids.insert(&task.id)) {
        return Err(RolloutError::SameTask {
            id: task.id.clone(),
        });
    }
    let mut history = History::read(folder.path())?;
    // Behind the same name may be other weights by now, or another script.
    if let Some(head) = history.head.take()
        && head.policy != plan.head.policy
    {
        return Err(RolloutError::OtherPolicy {
            before: Box::new(head.policy),
            now: Box::new(plan.head.policy),
        });
    }
    let (heard, events) = channel();
    let journal = Arc::new(Journal::new(folder.log(EVENTS)?, heard));
    let fate = Arc::new(Fate::new(means.wish));
    let meter = Arc::new(Meter::new(means.judges.len()));
    let known_before: Vec<(String, Failure)> = plan
        .left_out
        .iter()
        .filter(|(task, _)| history.left_out.iter().all(|(one, _)| one != task))
        .cloned()
        .collect();
    let mut left_out = history.left_out.clone();
    left_out.extend(known_before.clone());
    let pending = pending(&plan, &left_out, &mut history, means.policy.as_ref());
    let surveys = plan.survey.then(|| surveys(&plan, &history));
    let shared = Arc::new(Shared {
        docket: Docket::new(
            std::mem::take(&mut history.verdicts),
            journal.clone(),
            meter.clone(),
            fate.clone(),
            matches!(plan.way, Way::Single(_)) && means.policy.rests(),
        ),
        policy: means.policy,
        journal,
        meter,
        fate,
        way: plan.way.clone(),
        workspaces: folder.path().join("workspaces"),
        pending: Mutex::new(pending),
        surveys: surveys.unwrap_or_default(),
        left_out: Mutex::new(std::mem::take(&mut history.left_out)),
        last_failure: Mutex::new(None),
        alive: AtomicU32::new(0),
        running: AtomicU32::new(0),
    });
    let begun = shared.journal.write(EventKind::RunStarted {
        run: Box::new(RunHeader {
            resumed: folder.resumed(),
            ..plan.head.clone()
        }),
    });
    if let Err(failure) = begun {
        shared.fate.end(&failure);
    }
    for (task, why) in known_before {
        shared.leave_out(&task, why);
    }
    let mut judges = Vec::new();
    for (number, judge) in means.judges.into_iter().enumerate() {
        let shared = shared.clone();
        let name = format!("judge-{}", number + 1);
        judges.push(spawn(name, move || shared.docket.serve(judge))?);
    }
    let mut players = Vec::new();
    for number in 1..=plan.at_once.min(locked(&shared.pending).len()) {
        shared.alive.fetch_add(1, Ordering::SeqCst);
        let shared = shared.clone();
        let name = format!("episode-{number}");
        players.push(spawn(name, move || shared.work())?);
    }
    let device = watch_device(shared.clone(), means.device_busy)?;
    let mut watcher = Watcher {
        shared: &shared,
        events,
        planned: plan.samples * plan.tasks.len() as u32,
        tally: history.tally,
        on_event,
    };
    watcher.look_after();
    // Judges end with what they are at; episodes that wait for a reply are left behind.
    shared.docket.close();
    for judge in judges {
        let _ = judge.join();
    }
    if shared.alive.load(Ordering::SeqCst) == 0 {
        for player in players {
            let _ = player.join();
        }
    }
    watcher.hear();
    let outcome = watcher.outcome(plan.samples, means.wish);
    shared.journal.close();
    shared.fate.finish();
    let _ = device.join();
    Ok(outcome)
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(work)
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Episodes without an end, those of left-out tasks aside.
fn pending(
    plan: &Plan,
    left_out: &[(String, Failure)],
    history: &mut History,
    policy: &dyn SharedPolicy,
) -> VecDeque<Pending> {
    let left_out: BTreeSet<&String> = left_out.iter().map(|(task, _)| task).collect();
    let kind = (plan.way.mode(), plan.head.target);
    plan.episodes()
        .filter(|(_, id)| !left_out.contains(&id.task))
        .filter_map(|(task, id)| {
            if history.ended.contains(&id) {
                return None;
            }
            let before = history.take_underway(&id, &task, kind, policy.version());
            Some(Pending { task, id, before })
        })
        .collect()
}

fn surveys(plan: &Plan, history: &History) -> HashMap<String, Mutex<Option<Result<(), Failure>>>> {
    let known = |id: &String| history.surveyed.contains(id).then_some(Ok(()));
    let of = |task: &Arc<Task>| (task.id.clone(), Mutex::new(known(&task.id)));
    plan.tasks.iter().map(of).collect()
}

fn watch_device(
    shared: Arc<Shared>,
    look: Box<dyn Fn() -> Option<f64> + Send>,
) -> io::Result<JoinHandle<()>> {
    spawn("device".to_owned(), move || {
        let mut looked = Instant::now();
        while !shared.fate.finished() {
            if looked.elapsed() >= LOOK_AT_DEVICE {
                shared.meter.device_looked_at(look());
                looked = Instant::now();
            }
            thread::sleep(LOOK);
        }
    })
}

impl Shared {
    /// An episode thread's working life.
    fn work(&self) {
        while self.fate.goes_on() {
            let Some(next) = locked(&self.pending).pop_front() else {
                break;
            };
            self.running.fetch_add(1, Ordering::SeqCst);
            let id = next.id.clone();
            let played = catch_unwind(AssertUnwindSafe(|| self.survey_and_play(next)));
            self.running.fetch_sub(1, Ordering::SeqCst);
            match played.unwrap_or_else(|_| Err(Failure::panicked())) {
                Ok(()) => self.fate.went_well(),
                Err(failure) => self.note(&id, failure),
            }
        }
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }

    fn survey_and_play(&self, next: Pending) -> Result<(), Failure> {
        let Pending { task, id, before } = next;
        if self.is_left_out(&id.task) {
            return Ok(());
        }
        if let Some(survey) = self.surveys.get(&id.task) {
            let mut known = locked(survey);
            let fits = match &*known {
                Some(fits) => fits.clone(),
                None => self.survey(&id, &task),
            };
            // What is not the task's fault may be better the next time.
            let lasting = fits.as_ref().err().is_none_or(is_tasks_fault);
            *known = lasting.then(|| fits.clone());
            fits?;
        }
        play(self, &task, &id, before)
    }

    fn survey(&self, id: &EpisodeId, task: &Arc<Task>) -> Result<(), Failure> {
        self.docket.ask(id, task, Question::Survey)?;
        self.journal.write(EventKind::TaskAccepted {
            task: id.task.clone(),
        })
    }

    fn is_left_out(&self, task: &str) -> bool {
        locked(&self.left_out).iter().any(|(one, _)| one == task)
    }

    /// An episode that did not come to its end, and what that means for the others.
    fn note(&self, id: &EpisodeId, failure: Failure) {
        if failure.code == CANCELLED {
            return;
        }
        if is_tasks_fault(&failure) {
            return self.leave_out(&id.task, failure);
        }
        let written = self.journal.write(EventKind::InfrastructureFailed {
            episode: Some(id.clone()),
            failure: failure.clone(),
            retry_in_seconds: None,
        });
        *locked(&self.last_failure) = Some(failure.clone());
        let hopeless =
            failure.kind == FailureKind::Config || ["store", "io"].contains(&failure.code.as_str());
        match written {
            Err(unwritten) => self.fate.end(&unwritten),
            Ok(()) if hopeless => self.fate.end(&failure),
            Ok(()) => self.fate.failed(&failure),
        }
    }

    fn leave_out(&self, task: &str, why: Failure) {
        let mut left_out = locked(&self.left_out);
        if left_out.iter().any(|(one, _)| one == task) {
            return;
        }
        let written = self.journal.write(EventKind::TaskSkipped {
            task: task.to_owned(),
            reason: why.clone(),
        });
        left_out.push((task.to_owned(), why));
        if let Err(unwritten) = written {
            self.fate.end(&unwritten);
        }
    }
}

fn is_tasks_fault(failure: &Failure) -> bool {
    failure.kind == FailureKind::Task
}

struct Watcher<'a> {
    shared: &'a Shared,
    events: Receiver<Arc<Event>>,
    planned: u32,
    tally: Tally,
    on_event: &'a mut dyn FnMut(Option<&Event>, &RunMetrics),
}

impl Watcher<'_> {
    /// Until all episodes are over, or everything is at rest that must not be cut short.
    fn look_after(&mut self) {
        let mut measured = Instant::now();
        let mut at_rest_since = None;
        while self.shared.alive.load(Ordering::SeqCst) > 0 {
            self.hear();
            if measured.elapsed() >= MEASURE {
                measured = Instant::now();
                self.measure();
            }
            if !self.shared.fate.goes_on() {
                self.shared.docket.close();
                if self.shared.docket.load().1 > 0 {
                    at_rest_since = None;
                } else {
                    let since = *at_rest_since.get_or_insert_with(Instant::now);
                    let alive = self.shared.alive.load(Ordering::SeqCst);
                    if alive == self.shared.meter.asking() || since.elapsed() > SETTLE {
                        return;
                    }
                }
            }
            if let Ok(event) = self.events.recv_timeout(LOOK) {
                self.take(&event);
            }
        }
    }

    fn hear(&mut self) {
        while let Ok(event) = self.events.try_recv() {
            self.take(&event);
        }
        let gauges = self.gauges();
        (self.on_event)(None, &gauges);
    }

    fn take(&mut self, event: &Event) {
        if let EventKind::EpisodeEnded { trajectory } = &event.event {
            self.tally.add(trajectory);
        }
        let gauges = self.gauges();
        (self.on_event)(Some(event), &gauges);
    }

    fn gauges(&self) -> RunMetrics {
        let (queue, _) = self.shared.docket.load();
        self.shared.meter.gauges(RunMetrics {
            episodes_planned: self.planned,
            episodes_ended: self.tally.episodes,
            episodes_running: self.shared.running.load(Ordering::SeqCst),
            judge_queue: queue as u32,
            ..RunMetrics::default()
        })
    }

    /// What cannot be written here could not be written by others either, and they end the run.
    fn measure(&self) {
        let gauges = self.gauges();
        let _ = self
            .shared
            .journal
            .write(EventKind::MetricsSampled { metrics: gauges });
        let _ = self.shared.journal.sync();
    }

    fn outcome(&mut self, samples: u32, wish: fn() -> StopRequest) -> Outcome {
        self.measure();
        let left_out = locked(&self.shared.left_out).clone();
        let tasks = &self.tally.tasks;
        let of_left_out = left_out.iter().map(|(task, _)| {
            let ended = tasks.get(task).map_or(0, |task| task.episodes);
            samples.saturating_sub(ended)
        });
        let missing = self.planned.saturating_sub(self.tally.episodes);
        let unfinished = missing.saturating_sub(of_left_out.sum());
        let interrupted = wish() != StopRequest::GoOn;
        let last = locked(&self.shared.last_failure).clone();
        let last = last.filter(|_| unfinished > 0 && !interrupted);
        let failure = self.shared.fate.fatal().or(last);
        let _ = self.shared.journal.write(EventKind::RunEnded {
            unfinished,
            interrupted,
            failure: failure.clone(),
        });
        let _ = self.shared.journal.sync();
        self.hear();
        Outcome {
            left_out,
            planned: self.planned,
            unfinished,
            gauges: self.gauges(),
            tally: self.tally.clone(),
            interrupted,
            failure,
        }
    }
}
