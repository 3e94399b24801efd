//! `warpsmith bench-judge`: how long judgements take here. Prints a table; asserts nothing.

mod mutants;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueEnum};
use serde_json::json;
use warpsmith_judge::benchmark::{self, BenchPart, BenchSource, SolvedTask};
use warpsmith_judge::{Cancellation, LocalJudge};
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{FORMAT, Failure, Profile, Rules, Submission, Target, Task};
use warpsmith_tasks::{load_all, load_solution};

use crate::args::{Count, MachineArgs};
use crate::engine::{Engine, JudgingOptions};
use crate::examples;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::interrupt;
use crate::printer::Printer;
use crate::source::Source;

/// Measure how long judgements take on this machine
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct BenchJudgeArgs {
    /// `KernelBench`, for the level-1 tasks that `--solutions` has a solution for; any set with `--mutants`
    #[arg(long, value_name = "FILE")]
    tasks: Option<PathBuf>,
    /// A folder with `solutions.json` (task id to folder) and the folders
    #[arg(long, value_name = "DIR", requires = "tasks")]
    solutions: Option<PathBuf>,
    /// Instead: what share of wrong variants of the tasks the checks before timing refuse
    #[arg(long, requires = "tasks", conflicts_with_all = ["solutions", "parts"])]
    mutants: bool,
    /// With `--mutants`: only so many tasks, drawn by `--seed`
    #[arg(long, value_name = "N", requires = "mutants")]
    limit: Option<Count>,
    /// With `--limit`: which tasks
    #[arg(long, value_name = "S", default_value_t = 0, requires = "mutants")]
    seed: u64,
    /// With `--mutants`: divide large shapes, for small machines
    #[arg(long, value_name = "N", requires = "mutants")]
    scale: Option<Count>,
    /// Which rows to measure
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::value_variants().to_vec())]
    parts: Vec<Part>,
    #[command(flatten)]
    machine: MachineArgs,
}

/// Rows that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A cold process and a new task
    Cold,
    /// A kernel edited, per form
    Edited,
    /// Throughput over our own examples, profile `full`
    Full,
    /// Throughput over the tasks of `--tasks`, profile `full`
    Level1,
    /// One kernel again and again
    Spread,
    /// Throughput with a third wrong, profile `rl`
    Rl,
}

impl From<Part> for BenchPart {
    fn from(part: Part) -> Self {
        match part {
            Part::Cold => Self::Cold,
            Part::Edited => Self::Edited,
            Part::Full => Self::Full,
            Part::Level1 => Self::Level1,
            Part::Spread => Self::Spread,
            Part::Rl => Self::Rl,
        }
    }
}

pub(crate) fn run(args: &BenchJudgeArgs, printer: &Printer) -> Result<Exit, Stop> {
    let engine = Engine::prepare(&args.machine, printer)?;
    let config = engine.options(JudgingOptions {
        profile: Profile::Full,
        rules: Rules::Own,
        isolation: Isolation::Strict,
        compile_mode: Some("default".to_owned()),
        seed: None,
    });
    if let Some(file) = args.tasks.as_deref().filter(|_| args.mutants) {
        return mutants::run(args, file, &engine, LocalJudge::start(config)?, printer);
    }
    if args.tasks.is_some() != args.solutions.is_some() {
        return Err(Stop::config(
            "no_solutions",
            "`--tasks` needs `--solutions` or `--mutants`",
            None,
        ));
    }
    let parts: Vec<BenchPart> = args.parts.iter().map(|part| (*part).into()).collect();
    let source = Examples {
        args,
        target: engine.target,
        printer,
    };
    let cancellation = Cancellation::when(interrupt::happened);
    let found = benchmark::run(&parts, &config, &cancellation, &source)?;
    let (device, cores, noisy) = (&found.device, found.cores, found.noisy);
    let torch = &engine.python.torch.version;
    if printer.json() {
        printer.object(&json!({
            "format": FORMAT, "version": env!("CARGO_PKG_VERSION"), "target": engine.target, "device": device,
            "cores": cores, "torch": torch, "judged_again_for_noise": noisy, "rows": found.rows, "stages": found.stages,
        }))?;
    } else {
        let title = format!(
            "Target {}, {device}, {cores} cores, torch {torch}; {noisy} judged again because the machine was noisy",
            engine.target.name()
        );
        printer.lines(&table::markdown(&title, &found.rows, &found.stages))?;
    }
    Ok(Exit::DONE)
}

/// What is measured: our embedded examples, and the tasks of `--tasks`.
struct Examples<'a> {
    args: &'a BenchJudgeArgs,
    target: Target,
    printer: &'a Printer,
}

impl BenchSource for Examples<'_> {
    fn example(&self, name: &str, target: Target) -> Result<(Task, Submission), Failure> {
        let read = || {
            let source = Source::example(name)?;
            Ok((source.task()?, source.solution(target)?))
        };
        read().map_err(|stop: Stop| stop.0)
    }

    fn lay_out(&self, name: &str, folder: &Path) -> Result<PathBuf, Failure> {
        examples::write_below(name, folder).map_err(|error| Stop::from(error).0)?;
        Ok(folder.join(name))
    }

    fn judge_command(&self, example: &Path) -> Result<Command, Failure> {
        let program = std::env::current_exe().map_err(|error| Stop::from(error).0)?;
        let mut command = Command::new(program);
        command
            .arg("judge")
            .arg(example)
            .args(["--json", "--quiet", "--target", self.target.name()])
            .args(["--device", &self.args.machine.device.to_string()]);
        Ok(command)
    }

    fn solved_tasks(&self) -> Result<Option<Vec<SolvedTask>>, Failure> {
        let (Some(tasks), Some(solutions)) = (&self.args.tasks, &self.args.solutions) else {
            return Ok(None);
        };
        kernelbench(tasks, solutions)
            .map(Some)
            .map_err(|stop| stop.0)
    }

    fn note(&self, line: &str) {
        self.printer.note(line);
    }
}

/// The tasks of `file` that `folder/solutions.json` names a solution for.
fn kernelbench(file: &Path, folder: &Path) -> Result<Vec<SolvedTask>, Stop> {
    let text = fs_err::read_to_string(folder.join("solutions.json"))?;
    let solutions: BTreeMap<String, String> = serde_json::from_str(&text)?;
    let tasks = load_all(file)?;
    let mut solved = Vec::new();
    for (id, solution) in &solutions {
        let Some(task) = tasks.iter().find(|task| task.id == *id) else {
            return Err(Stop::config(
                "no_task",
                format!("`{}` has no task `{id}`", file.display()),
                None,
            ));
        };
        let submission = load_solution(&folder.join(solution), true)?;
        solved.push((id.clone(), task.clone(), submission));
    }
    Ok(solved)
}
