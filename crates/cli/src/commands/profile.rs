//! `warpsmith profile`

use clap::Args;
use warpsmith_agent::render_profile;
use warpsmith_judge::profile::{ProfileRequest, profile};

use crate::args::{IsolationChoice, MachineArgs};
use crate::engine::{Engine, choose};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::interrupt;
use crate::printer::Printer;
use crate::source::Source;

/// Say where the time goes, by operator and kernel, against the machine's roofline
///
/// Exit code 0: profiled. 1: the solution did not build or run. 2: wrong usage or a broken task. 3: this machine.
#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// A `KernelBench` module, `FILE.jsonl#level1/19`, or an example's name
    task: String,
    /// A folder with `model_new.py` and `kernels/`, or one file; else the task alone
    solution: Option<String>,
    /// Run compute-sanitizer on the solution
    #[arg(long, requires = "solution")]
    sanitize: bool,
    /// What to do where a required protection cannot be had
    #[arg(long, value_enum, default_value_t)]
    isolation: IsolationChoice,
    #[command(flatten)]
    machine: MachineArgs,
}

pub(crate) fn run(args: &ProfileArgs, printer: &Printer) -> Result<Exit, Stop> {
    let source = Source::given(&args.task, args.solution.as_deref())?;
    let task = source.task()?;
    if args.solution.is_some() {
        source.solution(choose(args.machine.target, None).0)?;
    }
    let engine = Engine::prepare(&args.machine, printer)?;
    let solution = match args.solution {
        Some(_) => Some(source.solution(engine.target)?),
        None => None,
    };
    let report = profile(&ProfileRequest {
        task,
        solution,
        target: engine.target,
        device: args.machine.device,
        python: engine.python,
        caches: engine.caches,
        sanitize: args.sanitize,
        isolation: args.isolation.into(),
    })?;
    if interrupt::happened() {
        return Err(Stop::interrupted());
    }
    if printer.json() {
        printer.object(&report)?;
    } else {
        let text = render_profile(&report);
        printer.data(&format!("{}\n", text.trim_end()))?;
    }
    let failed = report
        .solution
        .is_some_and(|solution| solution.failure.is_some());
    Ok(if failed { Exit::NO } else { Exit::DONE })
}
