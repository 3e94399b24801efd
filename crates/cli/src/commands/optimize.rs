//! `warpsmith optimize`

mod court;
mod policy;
mod result;
mod show;

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use warpsmith_agent::{Settings, run_single};
use warpsmith_judge::Judge;
use warpsmith_model::policy::Sampling;
use warpsmith_schema::{Ending, FORMAT, Mode, Profile, Task, Trajectory};
use warpsmith_store::{EventLog, RunFolder};

use crate::args::{IsolationChoice, MachineArgs};
use crate::engine::{Engine, Manner};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::source::Source;
use crate::{examples, interrupt};
use court::Bench;
use policy::Wanted;
use result::Outcome;
use show::Show;

/// Have a policy write a faster module; no argument: an embedded example
///
/// Exit code 0: done, and what lies in `result/` is correct. 1: below `--require-speedup`. 2: wrong usage or a broken
/// task. 3: this machine.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct OptimizeArgs {
    /// A `KernelBench` module, `FILE.jsonl#level1/19`, or an example's name
    task: Option<String>,
    /// Who writes: `local:MODEL`, `openai:MODEL` or `script:FILE`
    #[arg(long, value_name = "POLICY")]
    policy: String,
    /// Where an `openai:` policy is served, up to `/chat/completions`
    #[arg(
        long,
        value_name = "URL",
        env = "OPENAI_BASE_URL",
        default_value = "https://api.openai.com/v1"
    )]
    base_url: String,
    /// Attempts after a failed one, each told what was wrong
    #[arg(long, value_name = "N", default_value_t = 2)]
    repairs: u32,
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
    /// What to do where a required protection cannot be had
    #[arg(long, value_enum, default_value_t)]
    isolation: IsolationChoice,
    #[command(flatten)]
    machine: MachineArgs,
}

const TRAJECTORIES: &str = "trajectories";

pub(crate) fn run(args: &OptimizeArgs, printer: &Printer) -> Result<Exit, Stop> {
    let source = match &args.task {
        Some(task) => Source::given(task, None)?,
        None => Source::example(examples::DEFAULT)?,
    };
    let task = source.task()?;
    // A wrong name or a broken script should not cost an installation of PyTorch.
    let wanted = Wanted {
        name: &args.policy,
        base_url: &args.base_url,
        offline: args.machine.python.offline,
    };
    let mut policy = policy::open(&wanted, printer)?;
    let engine = Engine::prepare(&args.machine, printer)?;
    let settings = Settings {
        target: engine.target,
        repairs: args.repairs,
        sampling: Sampling {
            temperature: args.temperature,
            seed: args.seed,
            max_tokens: args.max_tokens,
            ..Sampling::default()
        },
    };
    let run = folder(args, &task, &settings)?;
    printer.note(&format!("run: {}", run.path().display()));
    let path = run.path().join(format!("{TRAJECTORIES}.jsonl"));
    let done = EventLog::read::<Trajectory>(&path)?
        .events
        .into_iter()
        .rfind(|before| before.ending != Ending::Interrupted);

    let compile_mode = (!args.no_compile).then(|| "default".to_owned());
    let mut judge = Judge::start(engine.options(Manner {
        profile: Profile::Full,
        isolation: args.isolation.into(),
        compile_mode: compile_mode.clone(),
        seed: None,
    }))?;
    let mut bench = Bench::new(&mut judge, &task, run.path(), compile_mode);
    let trajectory = if let Some(done) = done {
        printer.note("resumed: the policy had finished");
        done
    } else {
        let mut show = Show::new(printer);
        let trajectory = run_single(policy.as_mut(), &mut bench, &task, &settings, &mut show)
            .map_err(|error| bench.stopped(error))?;
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

/// Everything that decides what a run does names it: the same again resumes, another is refused with the difference.
fn folder(args: &OptimizeArgs, task: &Task, settings: &Settings) -> Result<RunFolder, Stop> {
    let sampling = settings.sampling;
    let config = json!({
        "format": FORMAT, "verb": "optimize", "task": task.name, "source": task.source, "mode": Mode::Single,
        "policy": args.policy, "base_url": args.base_url, "target": settings.target, "repairs": settings.repairs,
        "temperature": sampling.temperature, "seed": sampling.seed, "max_tokens": sampling.max_tokens,
        "compile": !args.no_compile,
    });
    Ok(match &args.out {
        Some(out) => RunFolder::at(out, &config)?,
        None => RunFolder::create_or_resume("runs".as_ref(), "optimize", &task.name, &config)?,
    })
}
