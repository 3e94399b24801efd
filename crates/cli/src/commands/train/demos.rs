//! `warpsmith train demos`: the teacher's demonstrations for many tasks at once, without a judge.

mod repairs;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;
use warpsmith_agent::unjudged_trajectory;
use warpsmith_compiler::Strategy;
use warpsmith_schema::{FORMAT, Target, Task};
use warpsmith_store::StoreError;
use warpsmith_synth::{DemoPlan, Demos, SeedCatalogue, demos, exercises, handwritten, teacher};
use warpsmith_tasks::{capture_graphs, load_all};

use crate::args::PythonArgs;
use crate::commands::synth::broken_seeds;
use crate::engine::Engine;
use crate::episodes::PromptChoice;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Write the teacher's single-turn demonstrations, without judging them
///
/// A demonstration is a prompt as a model gets it and a reply with a solution, in the form of a trajectory for `train sft --data`. It
/// needs no GPU, whatever the target. Composed tasks take a moment for thousands; the graphs of others are captured by
/// PyTorch, a few a second. Nothing is planted and nothing was run: `rollout --policy teacher` collects demonstrations that are judged.
#[derive(Debug, Args)]
pub(crate) struct DemosArgs {
    /// Tasks, as `synth` writes them or in `KernelBench`'s form; as often as you like
    #[arg(long, value_name = "FILE")]
    tasks: Vec<PathBuf>,
    /// How many further tasks to compose, in many sizes, not run; none is in KernelBench
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    // All of them are in memory together.
    #[arg(value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    compose: u32,
    /// How many further tasks to write as people do: constructor arguments, docstrings
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    handwritten: u32,
    /// A run whose failed single-turn replies the teacher corrects; repeatable. In each of these demonstrations the failed reply
    /// and what was told of it are read, and the correction is learned
    #[arg(long, value_name = "RUN")]
    repairs: Vec<PathBuf>,
    /// The file to make, a JSONL of trajectories
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Validation tasks: no demonstration of them or of near-duplicates; repeatable
    #[arg(long, value_name = "FILE")]
    except: Vec<PathBuf>,
    /// What the solutions are for
    #[arg(long, value_enum)]
    target: DemoTarget,
    /// Which solutions of a task become demonstrations
    #[arg(long, value_name = "NAME,…", value_enum, value_delimiter = ',', default_values_t = [Style::Fused, Style::Tuned])]
    styles: Vec<Style>,
    /// What the policy is told before a task
    #[arg(long, value_enum, default_value_t)]
    prompt: PromptChoice,
    #[command(flatten)]
    python: PythonArgs,
    /// Random seed of the text around the code and of composed tasks
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DemoTarget {
    Cuda,
    Cpu,
}

/// How a solution is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Style {
    /// A kernel for every operator
    Plain,
    /// As few kernels as possible
    Fused,
    /// These with wide loads, values kept in registers and work shared out among threads
    Tuned,
}

impl From<Style> for Strategy {
    fn from(style: Style) -> Self {
        match style {
            Style::Plain => Self::Plain,
            Style::Fused => Self::Fused,
            Style::Tuned => Self::Tuned,
        }
    }
}

pub(crate) fn run(args: &DemosArgs, printer: &Printer) -> Result<Exit, Stop> {
    // A link counts, wherever it leads.
    if fs::symlink_metadata(&args.out).is_ok() {
        let message = format!("`{}` is there already", args.out.display());
        let hint = "name a file that is to be made".to_owned();
        return Err(Stop::config("config", message, Some(hint)));
    }
    let mut tasks: Vec<Task> = Vec::new();
    for path in &args.tasks {
        tasks.extend(load_all(path)?);
    }
    if args.compose > 0 {
        let seeds = SeedCatalogue::torch().map_err(|error| broken_seeds(&error))?;
        tasks.extend(exercises(&seeds, args.seed)?.take(args.compose as usize));
    }
    tasks.extend(handwritten(args.seed)?.take(args.handwritten as usize));
    let mut except = Vec::new();
    for path in &args.except {
        except.extend(load_all(path)?);
    }
    let target = match args.target {
        DemoTarget::Cuda => Target::Cuda,
        DemoTarget::Cpu => Target::Cpu,
    };
    let failed = repairs::failed_episodes(&args.repairs, &except, target)?;
    if tasks.is_empty() && failed.is_empty() {
        let hint = if args.repairs.is_empty() {
            "`--tasks FILE` names some, `--compose N` and `--handwritten N` make some up"
        } else {
            "no single-turn episode of these runs ended with a failed attempt for this `--target`"
        };
        let hint = hint.to_owned();
        return Err(Stop::config(
            "no_demo",
            "there is no task to teach",
            Some(hint),
        ));
    }
    with_graphs(&mut tasks, &args.python, printer)?;
    let mut to_repair: Vec<Task> = failed.iter().map(|one| one.task.clone()).collect();
    with_graphs(&mut to_repair, &args.python, printer)?;
    let strategies: Vec<Strategy> = args.styles.iter().map(|style| (*style).into()).collect();
    let plan = DemoPlan {
        tasks: &tasks,
        except: &except,
        target,
        strategies: &strategies,
        seed: args.seed,
    };
    let policy = teacher::version();
    let found = demos(&plan, |demo, reply| {
        let prompt = args.prompt.into();
        unjudged_trajectory(demo.task, target, prompt, &policy, demo.sample, reply)
    })?;
    let Demos {
        mut demos,
        not_covered: mut left_out,
        excluded,
    } = found;
    let repaired = repairs::repairs(&failed, &to_repair, &strategies, args.seed);
    let repairs = repaired.trajectories.len();
    demos.extend(repaired.trajectories);
    add_up(&mut left_out, repaired.not_covered);
    let not_covered: u32 = left_out.values().sum();
    if demos.is_empty() {
        let most = left_out.iter().max_by_key(|(_, count)| **count);
        let (why, hint) = match most {
            Some((why, _)) => (
                why.as_str(),
                "demonstrations need graphs; `warpsmith graph TASK` says why a module has none",
            ),
            None => (
                "all are among those of `--except`, or relatives of theirs",
                "name other tasks, or fewer to exclude",
            ),
        };
        let all = tasks.len() + to_repair.len();
        let message = format!("not one demonstration for {all} tasks: {why}");
        return Err(Stop::config("no_demo", message, Some(hint.to_owned())));
    }
    let mut lines = String::new();
    for demo in &demos {
        lines += &(serde_json::to_string(demo)? + "\n");
    }
    let name = args.out.file_name().unwrap_or_default().to_string_lossy();
    let begun = format!(".{name}.new-{}", std::process::id());
    let partial = args.out.with_file_name(begun);
    let folder = args.out.parent().unwrap_or(&args.out);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&partial, lines))
        .and_then(|()| fs::rename(&partial, &args.out))
        .map_err(|source| {
            // Half a file is of no use; that it could not be written is what is told.
            let _ = fs::remove_file(&partial);
            let path = args.out.clone();
            StoreError::Write { path, source }
        })?;
    if printer.json() {
        printer.object(&json!({
            "format": FORMAT,
            "demos": demos.len(),
            "repairs": repairs,
            "tasks": tasks.len() + to_repair.len(),
            "not_covered": not_covered,
            "excluded": excluded,
            "reasons": left_out,
            "file": args.out,
        }))?;
    } else {
        let corrected = match repairs {
            0 => String::new(),
            some => format!(" ({some} of them corrections)"),
        };
        let mut lines = vec![format!(
            "{} demonstrations{corrected} of {} tasks, {not_covered} not covered, {excluded} excluded: {}",
            demos.len(),
            tasks.len() + to_repair.len(),
            args.out.display()
        )];
        lines.extend(
            left_out
                .iter()
                .map(|(why, count)| format!("  {count:5}  {why}")),
        );
        lines.push(format!(
            "next: warpsmith train sft --data {}",
            args.out.display()
        ));
        printer.lines(&lines)?;
    }
    Ok(Exit::DONE)
}

fn add_up(counts: &mut BTreeMap<String, u32>, more: BTreeMap<String, u32>) {
    for (reason, count) in more {
        *counts.entry(reason).or_default() += count;
    }
}

/// A module that has no graph is not covered, which is counted later.
fn with_graphs(tasks: &mut [Task], python: &PythonArgs, printer: &Printer) -> Result<(), Stop> {
    let missing = tasks.iter().filter(|task| task.graph.is_none()).count();
    if missing > 0 {
        let (python, caches) = Engine::python(python, printer)?;
        printer.note(&format!("capturing the graphs of {missing} modules"));
        capture_graphs(tasks, &python, &caches)?;
    }
    Ok(())
}
