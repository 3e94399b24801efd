//! `warpsmith optimize`

mod result;
mod settings;
mod show;
mod story;
mod words;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use clap::Args;
use warpsmith_agent::StartingPoint;
use warpsmith_judge::{Judge, LocalJudge};
use warpsmith_machine::SharedDevice;
use warpsmith_rollout::optimize::{
    Conclusion, PackageOptions, StartContext, StartProgress, StartRequest, StartTuning, conclude,
    ends_episodes, import,
};
use warpsmith_rollout::{History, RolloutOutcome, RolloutPlan, RolloutResources};
use warpsmith_schema::{
    CountedAttempt, Failure, FailureKind, Message, PlannedTask, RunHeader, Task, Trajectory,
};
use warpsmith_store::RunFolder;
use warpsmith_tasks::{capture, variants, with_inputs};

use crate::args::{Positive, ProfileChoice};
use crate::commands::report::require_folder;
use crate::config::ConfigArgs;
use crate::engine::Engine;
use crate::episodes::episode_kind;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::policy::{PolicyContext, PolicySpec, Weights};
use crate::printer::Printer;
use crate::runs::{judge_below, say_where, stop_request};
use crate::source::Source;
use crate::tuning::TuningShow;
use crate::{examples, interrupt};
use result::OptimizeReport;
use settings::OptimizeSettings;
use show::Show;
pub(crate) use show::verdict_line;

/// Write a faster module; no argument: an embedded example
///
/// The compiler writes one first, which is judged; then the policy tries to be faster (`--start`). Exit code 0: done, and what lies in `result/` is correct. 1: below `--require-speedup`. 2: wrong usage or a broken
/// task. 3: this machine.
#[derive(Debug, Args)]
pub(crate) struct OptimizeArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    /// A `KernelBench` module, a folder with `model.py`, `FILE.jsonl#level1/19`, or an example's name
    task: Option<String>,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A page with each kernel beside the lines it replaces
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Exit 1 below this speed-up
    ///
    /// Over `torch.compile` where that was measured, else over eager; in the solution's own precision class.
    #[arg(long, value_name = "X")]
    require_speedup: Option<Positive>,
    #[command(flatten)]
    settings: OptimizeSettings,
}

pub(crate) fn run(args: &OptimizeArgs, printer: &Printer) -> Result<Exit, Stop> {
    let resolved = args.config.resolve(&args.settings)?;
    let settings = &resolved.settings;
    settings.episodes.check()?;
    if let Some(exit) = args.config.print(settings, printer)? {
        return Ok(exit);
    }
    if settings.episodes.judging.profile == ProfileChoice::Verify {
        let message = "profile `verify` times nothing, and `optimize` looks for the fastest";
        let hint = "use `--profile rl` for quick times, `full` for exact ones".to_owned();
        return Err(Stop::config("config", message, Some(hint)));
    }
    if let Some(page) = &args.html {
        require_folder(page)?;
    }
    let source = match &args.task {
        Some(task) => Source::given(task, None)?,
        None => Source::example(examples::DEFAULT)?,
    };
    let mut task = source.task()?;
    if let Some(inputs) = &settings.inputs {
        task = with_inputs(&task, inputs)?;
    }
    // A wrong name or a broken script should not cost an installation of PyTorch.
    let asked = &settings.episodes;
    let spec = PolicySpec::parse(&asked.policy, &asked.base_url, asked.model_options())?;
    // Weights may take minutes to arrive. Where there is nothing to judge before the policy is asked, they come meanwhile.
    let early = settings.starts_from_nothing().then(|| {
        let (spec, printer) = (spec.clone(), printer.clone());
        thread::spawn(move || spec.load_weights(&printer))
    });
    let engine = Engine::prepare(&asked.judging.machine, printer)?;
    // The compiler writes kernels for each shape; other solutions are one for all of them.
    let mut shapes = if settings.starts_from_compiler() {
        variants(task, &engine.python)?
    } else {
        vec![task]
    };
    let task = shapes.remove(0);
    let decided = settings.decided(&spec, engine.target)?;
    let request = decided.start(engine.target)?;
    if let Some(idle) = decided.episodes.idle(&resolved.said) {
        printer.note(&idle);
    }
    let folder = settings::folder(args.out.as_deref(), &task, spec.kind, &decided, &request)?;
    say_where(&folder, args.out.as_deref(), printer);

    let samples = decided.samples();
    let ended = History::read(folder.path())?.ended.len() as u32;
    if folder.resumed() {
        printer.note(&format!("resumed: {ended} of {samples} samples had ended"));
    }
    let judging_options = decided.episodes.judging.judging_options();
    let config = engine.options(judging_options);
    let mut judge = judge_below(config.clone(), folder.path().join("evidence"))?;
    if request == StartRequest::Nothing && args.task.is_none() && !folder.resumed() {
        judge_example(&source, &task, &mut judge, &engine, printer)?;
    }
    // Before any weights: a result does not wait for them.
    let mut context = StartContext {
        folder: &folder,
        task: &task,
        target: engine.target,
        capture: &|task| capture(task, &engine.python, &engine.caches),
        judge: &mut judge,
        precision: decided.episodes.precision.into(),
        tuning: StartTuning {
            folder: &engine.caches.tuning(),
            device: &engine.device_name(),
            torch: &engine.python.torch.version,
            budget: decided.episodes.tuning_budget(),
            stop: &interrupt::happened,
        },
    };
    let mut tuning = TuningShow::new(printer);
    let mut on_progress = |what: StartProgress<'_>| match what {
        StartProgress::Tuning(event) => tuning.hear(event),
        other => {
            tuning.finish();
            printer.note(&show::start(&other));
        }
    };
    let started = context.start(request, &mut on_progress)?;
    let mut package = PackageOptions {
        guard: decided.guard,
        shapes: Vec::new(),
    };
    for (number, shape) in shapes.iter().enumerate() {
        printer.note(&format!("shape {}:", number + 2));
        context.task = shape;
        let further = context.start(StartRequest::Compiler, &mut on_progress)?;
        package.shapes.push(further.faster());
    }
    if interrupt::happened() {
        return Err(Stop::interrupted());
    }
    let mut judges: Vec<Box<dyn Judge>> = vec![Box::new(judge)];
    let mut failure = None;
    if ended < samples {
        let episodes = Episodes {
            task: &task,
            folder: &folder,
            decided: &decided,
            engine: &engine,
            spec: &spec,
            start: started.starting_point(),
        };
        let weights = match early {
            Some(loading) => loading
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => spec.load_weights(printer),
        };
        match weights {
            Ok(weights) => failure = episodes.play(weights, &mut judges, printer)?,
            // There is a result without it.
            Err(Stop(why)) if started.passed().is_some() && is_ours(&why) => {
                printer.note(&format!("no policy was asked: {}", why.message));
            }
            Err(stop) => return Err(stop),
        }
    }
    if interrupt::happened() {
        return Err(Stop::interrupted());
    }
    let Some(judge) = judges.first_mut() else {
        return Err(Stop::interrupted());
    };
    let outcome = conclude(
        &folder,
        &task,
        started.passed(),
        judge.as_mut(),
        Conclusion {
            failure: failure.as_ref(),
            package: &package,
            on_round: &mut |round| printer.note(&show::final_round(round)),
        },
    )?;
    let unanswered = failure.filter(|_| !answered(&outcome.trajectories));
    if let (Some(why), false) = (&unanswered, outcome.improved()) {
        return Err(never_answered(why, &outcome.result));
    }
    let imported = outcome.improved().then(|| {
        printer.note("importing the result in a fresh process");
        import(&outcome.result, &task, &package, &config)
    });
    let imported = imported.transpose()?;
    let report = OptimizeReport {
        task: &task,
        start: &started,
        outcome: &outcome,
        imported: imported.as_ref(),
        package: &package,
        unanswered: unanswered.as_ref(),
        samples,
        run: folder.path(),
    };
    report.print(printer)?;
    if let Some(path) = &args.html {
        story::write(path, &report, &engine)?;
        printer.note(&format!("page: {}", path.display()));
    }
    Ok(result::exit(
        &outcome,
        args.require_speedup.map(f64::from),
        printer,
    ))
}

/// Whether the policy ever said anything.
fn answered(trajectories: &[Trajectory]) -> bool {
    let messages = trajectories.iter().flat_map(|one| &one.messages);
    messages
        .into_iter()
        .any(|message| matches!(message, Message::Assistant { .. }))
}

/// Nobody tried, and nothing else made it faster: that is no answer about the module.
fn never_answered(why: &Failure, result: &Path) -> Stop {
    Stop(Failure {
        kind: FailureKind::Infrastructure,
        message: format!(
            "the policy never answered: {}; the original module lies in {}",
            why.message,
            result.display()
        ),
        ..why.clone()
    })
}

/// Whether this program or machine failed, not what it was given.
fn is_ours(failure: &Failure) -> bool {
    failure.kind == FailureKind::Infrastructure
}

/// Shows what an embedded example can be: its own solution, judged before the model is asked.
fn judge_example(
    source: &Source,
    task: &Task,
    judge: &mut LocalJudge,
    engine: &Engine,
    printer: &Printer,
) -> Result<(), Stop> {
    printer.note("judging the example's own solution, written by hand: about a minute where its baselines are new");
    let judged = judge.judge_unrecorded(task, &source.solution(engine.target)?)?;
    printer.note(&format!("  {}", show::verdict_line(&judged.verdict)));
    Ok(())
}

/// The rollout of one task.
struct Episodes<'a> {
    task: &'a Task,
    folder: &'a RunFolder,
    decided: &'a OptimizeSettings,
    engine: &'a Engine,
    spec: &'a PolicySpec,
    start: Option<Arc<StartingPoint>>,
}

impl Episodes<'_> {
    /// Why some have no end, where that leaves a result nevertheless.
    fn play(
        &self,
        weights: Option<Weights>,
        judges: &mut Vec<Box<dyn Judge>>,
        printer: &Printer,
    ) -> Result<Option<Failure>, Stop> {
        let outcome = self.run(weights, judges, printer)?;
        if interrupt::happened() {
            return Err(Stop::interrupted());
        }
        if let Some((_, why)) = outcome.left_out.into_iter().next() {
            return Err(Stop(why));
        }
        match outcome.failure {
            Some(failure) if !ends_episodes(&failure) => Err(Stop(failure)),
            failure => Ok(failure),
        }
    }

    fn run(
        &self,
        weights: Option<Weights>,
        judges: &mut Vec<Box<dyn Judge>>,
        printer: &Printer,
    ) -> Result<RolloutOutcome, Stop> {
        let (episodes, samples) = (&self.decided.episodes, self.decided.samples());
        // The clock runs from here, with everything loaded.
        let limit = self.decided.time_limit();
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let kind = episode_kind(episodes, self.spec.kind, self.engine, deadline);
        let context = PolicyContext {
            tasks: std::slice::from_ref(self.task),
            engine: self.engine,
            mode: kind.mode(),
            tuned: None,
        };
        let guest = SharedDevice::open(&self.engine.lease())?;
        let policy = self.spec.share(weights, context, guest, printer)?;
        let judging_options = episodes.judging.judging_options();
        let head = RunHeader {
            verb: "optimize".to_owned(),
            resumed: self.folder.resumed(),
            policy: policy.version().clone(),
            target: self.engine.target,
            device: self.engine.device_name(),
            mode: kind.mode(),
            profile: judging_options.profile,
            compile_mode: judging_options.compile_mode,
            tasks: vec![PlannedTask::of(self.task, None)],
            samples,
            counts: CountedAttempt::Best,
            scale: None,
            settings: settings::config(self.decided, self.spec.kind)?
                .into_iter()
                .collect(),
        };
        let plan = RolloutPlan {
            tasks: vec![Arc::new(self.task.clone())],
            samples,
            kind,
            concurrency: self.spec.concurrency(judges.len()),
            start: self.start.clone(),
            survey: false,
            left_out: Vec::new(),
            head,
        };
        let show = Arc::new(Show::new(printer, samples));
        let watching = show.clone();
        let resources = RolloutResources {
            policy,
            judges,
            device_busy: Box::new(|| None),
            watch: Some(Arc::new(move |episode, progress| {
                watching.progress(episode, progress);
            })),
            stop: stop_request,
        };
        let outcome = warpsmith_rollout::run(self.folder, plan, resources, &mut |event, gauges| {
            show.hear(event, gauges);
        });
        show.finish();
        Ok(outcome?)
    }
}
