//! `warpsmith optimize`

mod court;
mod package;
mod policy;
mod result;
mod settings;
mod show;

use std::path::PathBuf;
use std::thread;

use clap::{Args, ValueEnum};
use warpsmith_agent::{run_agent, run_single};
use warpsmith_judge::Judge;
use warpsmith_model::policy::{Policy, Sampling};
use warpsmith_schema::{Ending, Task, Trajectory};
use warpsmith_store::{EventLog, RunFolder};

use crate::args::{IsolationChoice, MachineArgs, ProfileChoice};
use crate::engine::{Engine, Manner};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::source::{Source, judged};
use crate::{examples, interrupt};
use court::Bench;
use policy::Wanted;
use result::Outcome;
use settings::Way;
use show::Show;

/// Have a policy write a faster module; no argument: an embedded example
///
/// Exit code 0: done, and what lies in `result/` is correct. 1: below `--require-speedup`. 2: wrong usage or a broken
/// task. 3: this machine.
#[derive(Debug, Args)]
pub(crate) struct OptimizeArgs {
    /// A `KernelBench` module, `FILE.jsonl#level1/19`, or an example's name
    task: Option<String>,
    /// Who writes: `local:MODEL`, `openai:MODEL` or `script:FILE`
    #[arg(long, value_name = "POLICY", default_value = policy::DEFAULT)]
    policy: String,
    /// Where an `openai:` policy is served, up to `/chat/completions`
    #[arg(
        long,
        value_name = "URL",
        env = "OPENAI_BASE_URL",
        default_value = "https://api.openai.com/v1"
    )]
    base_url: String,
    /// One reply and repairs, or a loop of tool calls; else `agent` for `openai:` and `single` for others
    #[arg(long, value_enum)]
    mode: Option<ModeChoice>,
    /// Attempts after a failed one, each told what was wrong (`single`)
    #[arg(long, value_name = "N", default_value_t = 2)]
    repairs: u32,
    /// Most replies of the policy (`agent`); else 8 for a small model and 40 for a large one
    #[arg(long, value_name = "N")]
    turns: Option<u32>,
    /// Most tokens of the conversation (`agent`), old tool output left out first; else 8192 and 131072
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
    /// How the policy calls tools (`agent`); else `json` for `openai:` and `fenced` for others
    #[arg(long, value_enum)]
    wire: Option<WireChoice>,
    /// Ask no more after this long
    #[arg(long, value_name = "M", value_parser = minutes)]
    minutes: Option<f64>,
    /// How freely to sample; 0 takes the likeliest token
    #[arg(long, value_name = "T", default_value_t = Sampling::default().temperature)]
    temperature: f32,
    /// Makes sampling repeatable, where a policy can
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Most tokens of one reply
    #[arg(long, value_name = "N", default_value_t = Sampling::default().max_tokens)]
    max_tokens: u32,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Exit 1 below this speed-up over `torch.compile` (eager where that has no time)
    #[arg(long, value_name = "X")]
    require_speedup: Option<f64>,
    /// Do not measure `torch.compile`
    #[arg(long)]
    no_compile: bool,
    /// How thoroughly attempts are judged
    #[arg(long, value_enum, default_value_t)]
    profile: ProfileChoice,
    /// What to do where a required protection cannot be had
    #[arg(long, value_enum, default_value_t)]
    isolation: IsolationChoice,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ModeChoice {
    /// One reply with all files, then repairs
    Single,
    /// A loop of tool calls in a workspace
    Agent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WireChoice {
    /// By the interface's own tool calls
    Json,
    /// By headings and fenced blocks in the text
    Fenced,
}

fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes < 1e6 => Ok(minutes),
        _ => Err("a number of minutes above 0".to_owned()),
    }
}

const TRAJECTORIES: &str = "trajectories";

pub(crate) fn run(args: &OptimizeArgs, printer: &Printer) -> Result<Exit, Stop> {
    let source = match &args.task {
        Some(task) => Source::given(task, None)?,
        None => Source::example(examples::DEFAULT)?,
    };
    let task = source.task()?;
    // A wrong name or a broken script should not cost an installation of PyTorch.
    let wanted = Wanted::parse(args)?;
    // Weights may take minutes to arrive: PyTorch, the judge, a first verdict and an error do not wait for them.
    let arriving = {
        let (wanted, printer) = (wanted.clone(), printer.clone());
        thread::spawn(move || wanted.open(&printer))
    };
    let engine = Engine::prepare(&args.machine, printer)?;
    let way = Way::of(args, &wanted, &engine);
    let run = settings::folder(args, &task, &way)?;
    printer.note(&format!("run: {}", run.path().display()));

    let compile_mode = (!args.no_compile).then(|| "default".to_owned());
    let mut judge = Judge::start(engine.options(Manner {
        profile: args.profile.into(),
        isolation: args.isolation.into(),
        compile_mode: compile_mode.clone(),
        seed: None,
    }))?;
    if args.task.is_none() {
        by_hand(&source, &task, &mut judge, &engine, printer)?;
    }
    let mut bench = Bench::new(&mut judge, &task, &run, compile_mode, &engine, args);
    let trajectory = if let Some(done) = finished(&run)? {
        printer.note("resumed: the policy had finished");
        done
    } else {
        let mut policy = arriving
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let trajectory = episode(&way, policy.as_mut(), &mut bench, &task, &run, printer)?;
        run.log(TRAJECTORIES)?.append(&trajectory)?;
        trajectory
    };
    if interrupt::happened() {
        return Err(Stop::interrupted());
    }
    let outcome = Outcome::reach(&trajectory, &mut bench, run.path())?;
    outcome.report(&task, &trajectory, run.path(), printer)?;
    Ok(outcome.exit(args.require_speedup))
}

/// What an embedded example can be: its own solution, judged while the model is still on its way.
fn by_hand(
    source: &Source,
    task: &Task,
    judge: &mut Judge,
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

/// The trajectory of a run that had come to its end.
fn finished(run: &RunFolder) -> Result<Option<Trajectory>, Stop> {
    let path = run.path().join(format!("{TRAJECTORIES}.jsonl"));
    Ok(EventLog::read::<Trajectory>(&path)?
        .events
        .into_iter()
        .rfind(|before| before.ending != Ending::Interrupted))
}

fn episode(
    way: &Way,
    policy: &mut dyn Policy,
    bench: &mut Bench<'_>,
    task: &Task,
    run: &RunFolder,
    printer: &Printer,
) -> Result<Trajectory, Stop> {
    let mut show = Show::new(printer);
    Ok(match way {
        Way::Single(settings) => run_single(policy, bench, task, settings, &mut show)?,
        Way::Agent(settings) => {
            let workspace = run.path().join("workspace");
            run_agent(policy, bench, task, &workspace, settings, &mut show)?
        }
    })
}
