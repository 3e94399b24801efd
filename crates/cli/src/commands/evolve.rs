//! `warpsmith evolve`

mod result;
mod settings;
mod show;

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use warpsmith_judge::{Judge, JudgeError};
use warpsmith_machine::SharedDevice;
use warpsmith_rollout::optimize::{PackageOptions, import, write_result};
use warpsmith_schema::{
    CountedAttempt, EpisodeMode, PlannedTask, PolicyVersion, Profile, RunHeader, Task,
};
use warpsmith_search::{
    SearchLimit, SearchPlan, SearchPolicy, SearchResources, SearchStart, compiled_candidates,
    search,
};
use warpsmith_tasks::capture;

use crate::args::Positive;
use crate::config::ConfigArgs;
use crate::engine::Engine;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::fleet::FleetArgs;
use crate::interrupt;
use crate::policy::PolicyContext;
use crate::printer::Printer;
use crate::runs::{judge_apart, judges, say_where, stop_request, usual_judges};
use crate::source::Source;
use result::EvolveReport;
use settings::EvolveSettings;
use show::Show;

/// Search for the fastest kernel of a module
///
/// Starts from the compiler's solutions, changes their parameters and asks policies, and judges every candidate. The best few are
/// measured afresh, in turn, and only that is reported. Without `--policy` no model is needed. The same command with the same
/// `--out` goes on where the search stopped, also with larger limits. Exit code 0: done, and what lies in `result/` is correct.
/// 1: below `--require-speedup`.
#[derive(Debug, Args)]
pub(crate) struct EvolveArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    /// A `KernelBench` module, a folder with `model.py`, `FILE.jsonl#level1/19`, or an example's name
    task: String,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Exit 1 below this speed-up
    ///
    /// Over `torch.compile` where that was measured, else over eager; in the solution's own precision class, by the lower end of
    /// the interval.
    #[arg(long, value_name = "X")]
    require_speedup: Option<Positive>,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    settings: EvolveSettings,
}

pub(crate) fn run(args: &EvolveArgs, printer: &Printer) -> Result<Exit, Stop> {
    let resolved = args.config.resolve(&args.settings)?;
    let settings = &resolved.settings;
    if let Some(exit) = args.config.print(settings, printer)? {
        return Ok(exit);
    }
    let task = Source::given(&args.task, None)?.task()?;
    // A wrong name or a broken script should not cost an installation of PyTorch.
    let specs = settings.policies()?;
    let isolation = settings.judging_options(Profile::Rl).isolation;
    let engine = Engine::prepare_for(&args.fleet, &settings.machine, isolation, printer)?;
    let settings = settings.decided(engine.target);
    let (start, absent) = start(&task, &settings, &engine, printer)?;
    if start.solutions.is_empty() && specs.is_empty() {
        return Err(nothing_to_do(absent));
    }
    let judge_count = settings
        .judges
        .map_or(usual_judges(engine.target), u32::from);
    let batch = settings.batch(judge_count as usize);
    let folder = settings::folder(args.out.as_ref(), &task, &settings, batch, &start)?;
    say_where(&folder, args.out.as_deref(), printer);

    let quick = settings.judging_options(Profile::Rl);
    let exact = settings.judging_options(Profile::Full);
    let context = PolicyContext {
        tasks: std::slice::from_ref(&task),
        engine: &engine,
        mode: EpisodeMode::Single,
        tuned: None,
    };
    let mut policies = Vec::new();
    for ((spec, price), name) in specs.into_iter().zip(&settings.policy) {
        let guest = SharedDevice::open(&engine.lease())?;
        policies.push(SearchPolicy {
            name: name.clone(),
            policy: spec.shared(context, guest, printer)?,
            price,
        });
    }
    let judges = judges(&engine, &quick, settings.judges, &folder)?;
    let head = RunHeader {
        verb: "evolve".to_owned(),
        resumed: folder.resumed(),
        policy: version(&policies),
        target: engine.target,
        device: engine.device_name(),
        mode: EpisodeMode::Single,
        profile: Profile::Rl,
        compile_mode: quick.compile_mode.clone(),
        tasks: vec![PlannedTask::of(&task, None)],
        samples: settings.judgements.into(),
        counts: CountedAttempt::Best,
        scale: None,
        settings: settings.config()?.into_iter().collect(),
    };
    let plan = SearchPlan {
        task: Arc::new(task.clone()),
        target: engine.target,
        seed: settings.seed,
        islands: settings.islands.into(),
        migrate_every: settings.migrate_every.into(),
        batch,
        budget: settings.budget(),
        start,
        sampling: settings.sampling(),
        finalists: settings.finalists.into(),
        rounds: settings.rounds.into(),
        head,
    };
    let config = engine.options(exact.clone());
    let finals = folder.path().join("finals");
    let mut final_judge = || -> Result<Box<dyn Judge>, JudgeError> {
        let judge = judge_apart(&engine, &exact, &folder, finals.clone());
        judge.map_err(|stop| JudgeError::Around(stop.0))
    };
    let mut show = Show::new(printer, settings.judgements.into());
    interrupt::drain_first();
    let outcome = search(
        &folder,
        &plan,
        SearchResources {
            policies,
            judges,
            final_judge: &mut final_judge,
            stop: stop_request,
            on_progress: &mut |progress| show.hear(&progress),
        },
    );
    show.finish();
    let outcome = outcome.map_err(|error| {
        if interrupt::happened() {
            Stop::interrupted()
        } else {
            Stop(error.failure())
        }
    })?;
    if outcome.limit == SearchLimit::Interrupted || interrupt::happened() {
        return Err(Stop::interrupted());
    }
    let winner = outcome
        .finals
        .as_ref()
        .and_then(|finals| finals.winner.as_ref());
    let faster = winner.filter(|winner| winner.improves());
    let result = folder.path().join("result");
    let package = PackageOptions::default();
    write_result(
        &result,
        &task,
        faster.map(|winner| &winner.submission),
        &package,
    )?;
    let imported = faster.is_some().then(|| {
        printer.note("importing the result in a fresh process");
        import(&result, &task, &package, &config)
    });
    let imported = imported.transpose()?;
    let report = EvolveReport {
        task: &task,
        outcome: &outcome,
        absent: absent.as_deref(),
        imported: imported.as_ref(),
        result: &result,
        run: folder.path(),
    };
    report.print(printer)?;
    let reached = winner.and_then(|winner| winner.speedup_compile.or(winner.speedup_eager));
    Ok(match args.require_speedup.map(f64::from) {
        Some(required) if !reached.is_some_and(|reached| reached.low >= required) => {
            printer.note(&format!("below --require-speedup {required}"));
            Exit::NO
        }
        _ => Exit::DONE,
    })
}

/// What the search starts from, and why the compiler has nothing where it was asked.
fn start(
    task: &Task,
    settings: &EvolveSettings,
    engine: &Engine,
    printer: &Printer,
) -> Result<(SearchStart, Option<String>), Stop> {
    if !settings.starts_from_compiler() {
        return Ok((settings.own_start(engine.target)?, None));
    }
    let mut task = task.clone();
    if task.graph.is_none() {
        printer.note("capturing the module's graph");
        match capture(&task, &engine.python, &engine.caches) {
            Ok(graph) => task.graph = Some(graph),
            Err(error) => return Ok((SearchStart::default(), Some(error.to_string()))),
        }
    }
    Ok(match compiled_candidates(&task, engine.target) {
        Ok(start) => (start, None),
        Err(reason) => (SearchStart::default(), Some(reason.to_string())),
    })
}

fn nothing_to_do(absent: Option<String>) -> Stop {
    let message = match absent {
        Some(why) => format!(
            "the compiler does not cover this module, so there is nothing to start from: {why}"
        ),
        None => "there is nothing to start from and no policy to write anything".to_owned(),
    };
    let hint = "give `--policy`, or `--start` with the folder of a solution".to_owned();
    Stop::config("no_start", message, Some(hint))
}

/// All policies as one: another set of them is another search.
fn version(policies: &[SearchPolicy]) -> PolicyVersion {
    let versions = policies.iter().map(|one| one.policy.version());
    let names: Vec<&str> = versions
        .clone()
        .map(|version| version.name.as_str())
        .collect();
    let mut hasher = blake3::Hasher::new();
    for version in versions.clone() {
        hasher.update(version.name.as_bytes());
        hasher.update(version.hash.as_deref().unwrap_or_default().as_bytes());
    }
    PolicyVersion {
        name: if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        },
        hash: versions
            .map(|version| version.hash.as_ref())
            .any(|hash| hash.is_some())
            .then(|| hasher.finalize().to_hex().to_string()),
        step: None,
    }
}
