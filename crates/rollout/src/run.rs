//! A run: threads for episodes and for judges, and one that looks after them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use warpsmith_model::policy::SharedPolicy;
use warpsmith_schema::{Event, EventKind, Failure, RunHeader, RunMetrics, Task};
use warpsmith_store::RunFolder;

use crate::context::{PendingEpisode, RunContext, SurveyResult, locked};
use crate::control::RunControl;
use crate::meter::Meter;
use crate::monitor::{Monitor, RolloutOutcome};
use crate::queue::{JudgeQueue, Phases};
use crate::recorder::EventRecorder;
use crate::{EpisodeKind, History, RolloutError, RolloutPlan, RolloutResources};

const POLL: Duration = Duration::from_millis(200);
const SAMPLE_DEVICE_EVERY: Duration = Duration::from_secs(1);

/// Runs what is missing of a plan in a folder. `on_event` hears every event and, now and then, how the gauges stand.
pub fn run(
    folder: &RunFolder,
    plan: RolloutPlan,
    resources: RolloutResources<'_>,
    on_event: &mut dyn FnMut(Option<&Event>, &RunMetrics),
) -> Result<RolloutOutcome, RolloutError> {
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
    let (listener, events) = channel();
    let recorder = Arc::new(EventRecorder::new(folder.events()?, Some(listener)));
    let control = Arc::new(RunControl::new(resources.stop));
    let meter = Arc::new(Meter::new(resources.judges.len()));
    let known_before: Vec<(String, Failure)> = plan
        .left_out
        .iter()
        .filter(|(task, _)| history.left_out.iter().all(|(one, _)| one != task))
        .cloned()
        .collect();
    let mut left_out = history.left_out.clone();
    left_out.extend(known_before.clone());
    let pending = pending(&plan, &left_out, &mut history, resources.policy.as_ref());
    let surveys = plan.survey.then(|| surveys(&plan, &history));
    let alternates = matches!(plan.kind, EpisodeKind::Single(_)) && resources.policy.rests();
    let queue = JudgeQueue::new(
        std::mem::take(&mut history.verdicts),
        recorder.clone(),
        meter.clone(),
        control.clone(),
        if alternates {
            Phases::Alternating
        } else {
            Phases::Overlapping
        },
    );
    let context = Arc::new(RunContext {
        policy: resources.policy,
        queue: Arc::new(queue),
        recorder,
        meter,
        control,
        watch: resources.watch,
        kind: plan.kind.clone(),
        start: plan.start.clone(),
        workspaces: folder.path().join("workspaces"),
        pending: Mutex::new(pending),
        surveys: surveys.unwrap_or_default(),
        left_out: Mutex::new(std::mem::take(&mut history.left_out)),
        last_failure: Mutex::new(None),
        alive: AtomicU32::new(0),
        running: AtomicU32::new(0),
    });
    let begun = context.recorder.write(EventKind::RunStarted {
        run: Box::new(RunHeader {
            resumed: folder.resumed(),
            ..plan.head.clone()
        }),
    });
    if let Err(failure) = begun {
        context.control.fail(&failure);
    }
    for (task, why) in known_before {
        context.leave_out(&task, why);
    }
    let mut judge_threads = Vec::new();
    for (number, judge) in resources.judges.drain(..).enumerate() {
        let queue = context.queue.clone();
        let name = format!("judge-{}", number + 1);
        judge_threads.push(spawn(name, move || queue.serve(judge))?);
    }
    let mut episode_threads = Vec::new();
    for number in 1..=plan.concurrency.min(locked(&context.pending).len()) {
        context.alive.fetch_add(1, Ordering::SeqCst);
        let context = context.clone();
        let name = format!("episode-{number}");
        episode_threads.push(spawn(name, move || context.work())?);
    }
    let device = watch_device(context.clone(), resources.device_busy)?;
    let mut monitor = Monitor {
        context: &context,
        events,
        planned: plan.samples * plan.tasks.len() as u32,
        tally: history.tally,
        on_event,
    };
    monitor.watch();
    // Judges finish what they are at; episodes that wait for a reply are left behind.
    context.queue.close();
    for thread in judge_threads {
        resources.judges.extend(thread.join());
    }
    if context.alive.load(Ordering::SeqCst) == 0 {
        for thread in episode_threads {
            let _ = thread.join();
        }
    }
    monitor.hear();
    let outcome = monitor.outcome(plan.samples, resources.stop);
    context.recorder.close();
    context.control.finish();
    let _ = device.join();
    Ok(outcome)
}

fn spawn<T: Send + 'static>(
    name: String,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name).spawn(work)
}

/// Episodes without an end, except those of left-out tasks.
fn pending(
    plan: &RolloutPlan,
    left_out: &[(String, Failure)],
    history: &mut History,
    policy: &dyn SharedPolicy,
) -> VecDeque<PendingEpisode> {
    let left_out: BTreeSet<&String> = left_out.iter().map(|(task, _)| task).collect();
    let kind = (plan.kind.mode(), plan.head.target);
    plan.episodes()
        .filter(|(_, id)| !left_out.contains(&id.task))
        .filter_map(|(task, id)| {
            if history.ended.contains(&id) {
                return None;
            }
            let before = history.take_underway(&id, &task, kind, policy.version());
            Some(PendingEpisode { task, id, before })
        })
        .collect()
}

fn surveys(plan: &RolloutPlan, history: &History) -> HashMap<String, SurveyResult> {
    let known = |id: &String| history.surveyed.contains(id).then_some(Ok(()));
    let survey = |task: &Arc<Task>| (task.id.clone(), Mutex::new(known(&task.id)));
    plan.tasks.iter().map(survey).collect()
}

fn watch_device(
    context: Arc<RunContext>,
    busy: Box<dyn Fn() -> Option<f64> + Send>,
) -> io::Result<JoinHandle<()>> {
    spawn("device".to_owned(), move || {
        let mut sampled = Instant::now();
        while !context.control.finished() {
            if sampled.elapsed() >= SAMPLE_DEVICE_EVERY {
                context.meter.device_sampled(busy());
                sampled = Instant::now();
            }
            thread::sleep(POLL);
        }
    })
}
