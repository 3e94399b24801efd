//! `warpsmith optimize`

mod court;
mod finals;
mod journal;
mod package;
mod result;
mod settings;
mod show;

use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use clap::Args;
use warpsmith_agent::{AgentLimits, AgentSettings, Sample, Watch, run_agent, run_single};
use warpsmith_judge::LocalJudge;
use warpsmith_model::policy::Policy;
use warpsmith_rollout::Way;
use warpsmith_schema::Task;
use warpsmith_store::RunFolder;

use crate::args::Positive;
use crate::config::ConfigArgs;
use crate::engine::Engine;
use crate::episodes::way;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::policy::Wanted;
use crate::printer::Printer;
use crate::source::{Source, judged};
use crate::{examples, interrupt};
use court::Bench;
use journal::Journal;
use result::Outcome;
use settings::OptimizeSettings;
use show::Show;

/// Have a policy write a faster module; no argument: an embedded example
///
/// Exit code 0: done, and what lies in `result/` is correct. 1: below `--require-speedup`. 2: wrong usage or a broken
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
    let source = match &args.task {
        Some(task) => Source::given(task, None)?,
        None => Source::example(examples::DEFAULT)?,
    };
    let task = source.task()?;
    // A wrong name or a broken script should not cost an installation of PyTorch.
    let asked = &settings.episodes;
    let machine = &asked.judging.machine;
    let wanted = Wanted::parse(&asked.policy, &asked.base_url, asked.means())?;
    // Weights may take minutes to arrive: PyTorch, the judge, a first verdict and an error do not wait for them.
    let arriving = {
        let (wanted, printer) = (wanted.clone(), printer.clone());
        thread::spawn(move || wanted.fetch(&printer))
    };
    let engine = Engine::prepare(machine, printer)?;
    let decided = settings.decided(wanted.kind, engine.target);
    if let Some(idle) = decided.episodes.idle(&resolved.said) {
        printer.note(&idle);
    }
    let run = settings::folder(args.out.as_deref(), &task, wanted.kind, &decided)?;
    let place = run.path().display();
    printer.note(&match &args.out {
        Some(_) => format!("run: {place}"),
        None => format!("run: {place} (to go on after an interruption: `--out {place}`)"),
    });

    let samples = decided.episodes.samples.into();
    let mut journal = Journal::open(&run, samples)?;
    let missing = journal.missing(samples);
    if run.resumed() {
        let ended = samples as usize - missing.len();
        printer.note(&format!("resumed: {ended} of {samples} samples had ended"));
    }
    let mut judge = LocalJudge::start(engine.options(decided.episodes.judging.manner()))?;
    if args.task.is_none() && !run.resumed() {
        by_hand(&source, &task, &mut judge, &engine, printer)?;
    }
    let judging = &decided.episodes.judging;
    let mut bench = Bench::new(&mut judge, &task, &run, judging, &engine, &journal);
    if !missing.is_empty() {
        let weighty = arriving
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let way = way(&decided.episodes, wanted.kind, &engine, decided.wall());
        let mut policy = match weighty {
            Some(policy) => policy,
            None => wanted.ready(&task, (engine.target, way.mode()), journal.replies())?,
        };
        let mut show = Show::new(printer, &mut journal, samples);
        episodes(
            &way,
            policy.as_mut(),
            &mut bench,
            (&task, &run),
            missing,
            &mut show,
        )?;
    }
    if interrupt::happened() {
        return Err(Stop::interrupted());
    }
    let winner = finals::choose(journal.trajectories(), &mut bench, printer)?;
    let trajectories = journal.trajectories().collect();
    let outcome = Outcome::of(&task, trajectories, samples, winner, run.path())?;
    outcome.report(run.path(), printer)?;
    Ok(outcome.exit(args.require_speedup.map(f64::from), printer))
}

/// What an embedded example can be: its own solution, judged while the model is still on its way.
fn by_hand(
    source: &Source,
    task: &Task,
    judge: &mut LocalJudge,
    engine: &Engine,
    printer: &Printer,
) -> Result<(), Stop> {
    printer.note("judging the example's own solution, written by hand: about a minute where its baselines are new");
    let found = judge.judge(&judged(task), &source.solution(engine.target)?)?;
    if interrupt::happened() {
        return Err(Stop::interrupted());
    }
    printer.note(&format!("  {}", show::line(&found.verdict)));
    Ok(())
}

/// Runs what is missing: side by side where an episode is a few replies, one after the other where each is a loop with a
/// workspace of its own.
fn episodes(
    way: &Way,
    policy: &mut dyn Policy,
    bench: &mut Bench<'_>,
    (task, run): (&Task, &RunFolder),
    missing: Vec<Sample>,
    show: &mut Show<'_>,
) -> Result<(), Stop> {
    let settings = match way {
        Way::Single(settings) => {
            return Ok(run_single(policy, bench, task, settings, missing, show)?);
        }
        Way::Agent(settings) => settings,
    };
    let begun = Instant::now();
    for sample in missing {
        let number = sample.number;
        let wall = settings.limits.wall;
        let left = wall.map(|wall| wall.saturating_sub(begun.elapsed()));
        if show.interrupted() || left.is_some_and(|left| left.is_zero()) {
            break;
        }
        let folder = run.path().join("workspaces").join(format!("{number:02}"));
        let limits = AgentLimits {
            wall: left,
            ..settings.limits
        };
        let settings = AgentSettings {
            limits,
            ..settings.clone()
        };
        run_agent(policy, bench, task, &folder, &settings, sample, show)?;
        // The next would fare no better now. The same command goes on with them later.
        if show.journal.policy_failed(number) {
            break;
        }
    }
    Ok(())
}
