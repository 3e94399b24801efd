//! Runs of many episodes: what `rollout` and `bench` have in common.

mod settings;
mod show;
mod summary;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use warpsmith_judge::{Cancellation, EvidencePlace, Judge, JudgeConfig, JudgePool, LocalJudge};
use warpsmith_machine::{SharedDevice, gpu_clocks};
use warpsmith_rollout::{
    RolloutOutcome, RolloutPlan, RolloutResources, StopRequest, compare_baselines,
};
use warpsmith_schema::{
    CONFIG_FORMAT, CountedAttempt, Failure, PlannedTask, RunHeader, SplitPart, Target, Task,
    TaskSetIdentity,
};
use warpsmith_store::RunFolder;

use crate::args::Count;
use crate::engine::{Engine, JudgingOptions};
use crate::episodes::{episode_kind, without_sources};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::fleet::FleetArgs;
use crate::interrupt;
use crate::policy::{Kind, PolicyContext, PolicySpec};
use crate::printer::Printer;
use crate::tuning::TuningRun;

pub(crate) use settings::RunSettings;
use show::Show;

/// Judges side by side where a GPU is what they share; on a CPU one compiling would disturb another's timing.
const JUDGES_ON_A_GPU: u32 = 4;

/// What is to be run.
pub(crate) struct Job<'a> {
    pub(crate) verb: &'static str,
    pub(crate) tasks: Vec<Task>,
    /// Those among them that cannot be judged here, as far as that is known beforehand.
    pub(crate) left_out: Vec<(String, Failure)>,
    pub(crate) settings: &'a RunSettings,
    /// Attempts after a failed one where nothing is said.
    pub(crate) repairs: u32,
    pub(crate) fleet: &'a FleetArgs,
    /// All settings of the verb, by name.
    pub(crate) config: Map<String, Value>,
    pub(crate) said: &'a BTreeSet<String>,
    pub(crate) out: Option<&'a Path>,
    pub(crate) survey: bool,
    pub(crate) part: &'a dyn Fn(&Task) -> Option<SplitPart>,
    pub(crate) counts: CountedAttempt,
    pub(crate) scale: Option<u32>,
    /// Further modes of `torch.compile` to compare the best submissions with.
    pub(crate) baselines: Vec<String>,
}

/// A run as far as it came.
pub(crate) struct Played {
    head: RunHeader,
    outcome: RolloutOutcome,
    pub(crate) folder: PathBuf,
}

pub(crate) fn run(job: &Job<'_>, printer: &Printer) -> Result<Exit, Stop> {
    let played = play(job, printer)?;
    summary::report(&played.head, &played.outcome, &played.folder, printer)?;
    played.whole()?;
    Ok(Exit::DONE)
}

/// Without a word of what came of it on stdout.
pub(crate) fn play(job: &Job<'_>, printer: &Printer) -> Result<Played, Stop> {
    let settings = job.settings;
    let machine = &settings.episodes.judging.machine;
    let episodes = &settings.episodes;
    let spec = PolicySpec::parse(
        &episodes.policy,
        &episodes.base_url,
        episodes.model_options(),
    )?;
    let isolation = episodes.judging.isolation.into();
    let engine = Engine::prepare_for(job.fleet, machine, isolation, printer)?;
    let decided = episodes.decided(&spec, engine.target, job.repairs)?;
    if let Some(idle) = decided.idle(job.said) {
        printer.note(&idle);
    }
    let mut config = without_sources(job.config.clone(), spec.kind);
    if let Value::Object(episodes) = serde_json::to_value(&decided)? {
        config.extend(without_sources(episodes, spec.kind));
    }
    // How many at a time decides how long it takes, not what comes out.
    config.remove("concurrency");
    config.remove("judges");
    let folder = folder(job, &config, &spec)?;
    say_where(&folder, job.out, printer);

    let judging_options = decided.judging.judging_options();
    let compile_mode = judging_options.compile_mode.clone();
    let device = engine.device_name();
    let mut judges = judges(&engine, &judging_options, settings.judges, &folder)?;
    let tasks: Vec<Arc<Task>> = job.tasks.iter().cloned().map(Arc::new).collect();
    let kind = episode_kind(&decided, spec.kind, &engine, None);
    let mut tuned = HashMap::new();
    if let (Kind::Compiler, Some(judge)) = (spec.kind, judges.first_mut()) {
        let tuning = TuningRun {
            tasks: &job.tasks,
            engine: &engine,
            budget: decided.tuning_budget(),
            precision: decided.precision.into(),
            folder: folder.path(),
        };
        tuned = tuning.tune(judge.as_mut(), printer)?;
    }
    let context = PolicyContext {
        tasks: &job.tasks,
        engine: &engine,
        mode: kind.mode(),
        tuned: Some(&tuned),
    };
    let policy = spec.shared(context, SharedDevice::open(&engine.lease())?, printer)?;
    let head = RunHeader {
        verb: job.verb.to_owned(),
        resumed: folder.resumed(),
        policy: policy.version().clone(),
        target: engine.target,
        device,
        mode: kind.mode(),
        profile: judging_options.profile,
        compile_mode,
        tasks: planned(job),
        samples: decided.samples.into(),
        counts: job.counts,
        scale: job.scale,
        settings: config.into_iter().collect::<BTreeMap<_, _>>(),
    };
    let concurrency = settings
        .concurrency
        .map_or(spec.concurrency(judges.len()), |count| {
            u32::from(count) as usize
        });
    let plan = RolloutPlan {
        tasks: tasks.clone(),
        samples: decided.samples.into(),
        kind,
        concurrency,
        start: None,
        survey: job.survey,
        left_out: job.left_out.clone(),
        head: head.clone(),
    };
    let gpu = (engine.target == Target::Cuda && engine.fleet.is_none()).then_some(machine.device);
    let resources = RolloutResources {
        policy,
        judges: &mut judges,
        device_busy: Box::new(move || Some(gpu_clocks(gpu?)?.utilization_percent? / 100.0)),
        watch: None,
        stop: stop_request,
    };
    interrupt::drain_first();
    let mut show = Show::new(printer, job.tasks.len());
    let outcome = warpsmith_rollout::run(&folder, plan, resources, &mut |event, gauges| {
        show.hear(event, gauges);
    })?;
    show.finish();
    if !outcome.interrupted && outcome.failure.is_none() {
        for mode in &job.baselines {
            compare_with(mode, &judging_options, &engine, &folder, &tasks, printer)?;
        }
    }
    Ok(Played {
        head,
        outcome,
        folder: folder.path().to_path_buf(),
    })
}

pub(crate) fn stop_request() -> StopRequest {
    match (interrupt::killing(), interrupt::happened()) {
        (true, _) => StopRequest::Abort,
        (false, true) => StopRequest::Drain,
        (false, false) => StopRequest::Continue,
    }
}

/// Everything that decides what a run does names it: the same again resumes, another is refused with the difference.
fn folder(
    job: &Job<'_>,
    config: &Map<String, Value>,
    spec: &PolicySpec,
) -> Result<RunFolder, Stop> {
    let mut config = config.clone();
    config.insert("format".to_owned(), json!(CONFIG_FORMAT));
    config.insert("verb".to_owned(), json!(job.verb));
    config.insert("tasks".to_owned(), json!(TaskSetIdentity::of(&job.tasks)));
    let config = Value::Object(config);
    Ok(match job.out {
        Some(out) => RunFolder::at(out, &config)?,
        None => RunFolder::create_or_resume("runs".as_ref(), job.verb, spec.name(), &config)?,
    })
}

pub(crate) fn say_where(folder: &RunFolder, out: Option<&Path>, printer: &Printer) {
    // Stages of a pipeline are no runs of their own.
    if interrupt::resume_in(folder.path()) && out.is_some() {
        // Where it cannot be written, it is missed and nothing else.
        let _ = folder.become_latest("runs".as_ref());
    }
    let place = folder.path().display();
    printer.note(&match out {
        Some(_) if folder.resumed() => format!("run: {place}, resumed"),
        Some(_) => format!("run: {place}"),
        None => format!("run: {place} (to go on after an interruption: `--out {place}`)"),
    });
}

/// Judges side by side where nobody says how many.
pub(crate) fn usual_judges(target: Target) -> u32 {
    match target {
        Target::Cuda => JUDGES_ON_A_GPU,
        Target::Cpu => 1,
    }
}

pub(crate) fn judges(
    engine: &Engine,
    judging_options: &JudgingOptions,
    judge_count: Option<Count>,
    folder: &RunFolder,
) -> Result<Vec<Box<dyn Judge>>, Stop> {
    if let Some(fleet) = &engine.fleet {
        let count = match judge_count {
            Some(count) => u32::from(count) as usize,
            None => fleet.usual_judges()?,
        };
        let judge = || fleet.judge(judging_options, folder, folder.path().join("evidence"));
        return Ok(std::iter::repeat_with(judge).take(count).collect());
    }
    let count = judge_count.map_or(usual_judges(engine.target), u32::from);
    let options = JudgeConfig {
        pool: Some(JudgePool::of(count as usize)),
        ..engine.options(judging_options.clone())
    };
    (0..count)
        .map(|_| {
            let judge = judge_below(options.clone(), folder.path().join("evidence"))?;
            Ok(Box::new(judge) as Box<dyn Judge>)
        })
        .collect()
}

/// One judge of a run, whose evidence goes to a place of its own.
pub(crate) fn judge_apart(
    engine: &Engine,
    judging_options: &JudgingOptions,
    folder: &RunFolder,
    evidence: PathBuf,
) -> Result<Box<dyn Judge>, Stop> {
    match &engine.fleet {
        Some(fleet) => Ok(fleet.judge(judging_options, folder, evidence)),
        None => Ok(Box::new(judge_below(
            engine.options(judging_options.clone()),
            evidence,
        )?)),
    }
}

/// A judge whose evidence goes below this folder of a run.
pub(crate) fn judge_below(config: JudgeConfig, folder: PathBuf) -> Result<LocalJudge, Stop> {
    let config = JudgeConfig {
        pool: config.pool.or_else(|| Some(JudgePool::of(1))),
        ..config
    };
    Ok(LocalJudge::start(config)?
        .keeping_evidence(EvidencePlace::ByHash {
            folder,
            quota: None,
        })
        .cancelled_by(Cancellation::when(interrupt::killing)))
}

fn planned(job: &Job<'_>) -> Vec<PlannedTask> {
    let tasks = job.tasks.iter();
    tasks
        .map(|task| PlannedTask::of(task, (job.part)(task)))
        .collect()
}

fn compare_with(
    mode: &str,
    judging_options: &JudgingOptions,
    engine: &Engine,
    folder: &RunFolder,
    tasks: &[Arc<Task>],
    printer: &Printer,
) -> Result<(), Stop> {
    printer.note(&format!("measuring torch.compile, mode {mode}"));
    let judging_options = JudgingOptions {
        compile_mode: Some(mode.to_owned()),
        ..judging_options.clone()
    };
    let place = folder.path().join("compared").join(mode);
    let mut judge = judge_apart(engine, &judging_options, folder, place)?;
    let failed = compare_baselines(folder, tasks, mode, judge.as_mut(), stop_request)?;
    if interrupt::happened() {
        return Err(Stop::interrupted());
    }
    failed.map_or(Ok(()), |failure| Err(Stop(failure)))
}

impl Played {
    /// Whether every episode has its end, and if not, why.
    pub(crate) fn whole(&self) -> Result<(), Stop> {
        let outcome = &self.outcome;
        if outcome.interrupted {
            return Err(Stop::interrupted());
        }
        if let Some(failure) = &outcome.failure {
            let mut failure = failure.clone();
            failure.message = format!(
                "{} of {} episodes have no end: {}",
                outcome.unfinished, outcome.planned, failure.message
            );
            return Err(Stop(failure));
        }
        match outcome.left_out.first() {
            Some((_, why)) if outcome.left_out.len() == self.head.tasks.len() => {
                Err(Stop(why.clone()))
            }
            _ => Ok(()),
        }
    }
}
