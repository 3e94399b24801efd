//! `warpsmith export`

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;
use warpsmith_agent::{export_harbor, export_inspect};
use warpsmith_report::{self as report, Run};
use warpsmith_schema::{FORMAT, Target, Task};
use warpsmith_store::StoreError;
use warpsmith_tasks::{load_all, read_set, write_dataset};

use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Write the episodes of runs, or tasks, in the form of other tools
///
/// `hf` takes runs or tasks and makes a folder with Parquet files and a card, which `datasets.load_dataset` reads. `harbor` and `inspect` take
/// tasks: a folder for each as Harbor has them, or one evaluation of Inspect. Exit code 2: neither a run's folder nor tasks.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Folders of runs, or tasks as `--tasks` takes them
    #[arg(required = true, value_name = "RUN|TASKS")]
    sources: Vec<PathBuf>,
    /// The form of the data
    #[arg(long, value_enum, default_value_t)]
    format: DataFormat,
    /// What the kernels of exported tasks are for
    #[arg(long, value_enum, default_value_t)]
    target: ExportTarget,
    /// Where it goes; must not exist yet
    #[arg(long, value_name = "DIR", default_value = "export")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum DataFormat {
    /// Episodes, or tasks, as Parquet in the layout of Hugging Face's `datasets`
    #[default]
    Hf,
    /// Tasks as folders that Harbor runs
    Harbor,
    /// Tasks as an evaluation of Inspect
    Inspect,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum ExportTarget {
    #[default]
    Cuda,
    Cpu,
}

impl From<ExportTarget> for Target {
    fn from(target: ExportTarget) -> Self {
        match target {
            ExportTarget::Cuda => Self::Cuda,
            ExportTarget::Cpu => Self::Cpu,
        }
    }
}

pub(crate) fn run(args: &ExportArgs, printer: &Printer) -> Result<Exit, Stop> {
    if args.out.exists() {
        let message = format!("`{}` exists", args.out.display());
        let hint = "name another folder with `--out`";
        return Err(Stop::config("exists", message, Some(hint.to_owned())));
    }
    let folder = args.out.display();
    let (rows, what, next) = match args.format {
        DataFormat::Hf => {
            let next = format!("to load it: datasets.load_dataset(\"{folder}\")");
            if of_runs(&args.sources)? {
                (episodes(args)?, "episodes", next)
            } else {
                (task_set(args)?, "tasks", next)
            }
        }
        DataFormat::Harbor => (
            tasks(args, export_harbor)?,
            "tasks",
            format!("to run them: WARPSMITH_SERVER=… harbor run -p {folder} -a AGENT -m MODEL"),
        ),
        DataFormat::Inspect => (
            tasks(args, export_inspect)?,
            "tasks",
            format!("to run it: inspect eval {folder}/task.py --model MODEL"),
        ),
    };
    if printer.json() {
        printer.object(&json!({ "format": FORMAT, "folder": args.out, "rows": rows }))?;
    } else {
        printer.data(&format!("{folder} ({rows} {what})\n"))?;
        printer.note(&next);
    }
    Ok(Exit::DONE)
}

/// Whether the sources are runs, and not tasks.
fn of_runs(sources: &[PathBuf]) -> Result<bool, Stop> {
    let is_run = |source: &PathBuf| report::is_run(source);
    let runs: Vec<bool> = sources.iter().map(is_run).collect::<Result<_, _>>()?;
    let all = runs.iter().all(|is_run| *is_run);
    if !all && runs.contains(&true) {
        let message = "some of the sources are runs and some are not";
        let hint = "episodes and tasks have other columns: export them one after the other";
        return Err(Stop::config("sources", message, Some(hint.to_owned())));
    }
    Ok(all)
}

fn task_set(args: &ExportArgs) -> Result<usize, Stop> {
    let (mut tasks, mut ids) = (Vec::new(), HashSet::new());
    for path in &args.sources {
        for task in read_set(path)? {
            if !ids.insert(task.id.clone()) {
                let message = format!("task `{}` is in two of the sources", task.id);
                let hint = "rows are told apart by their ids: export them one after the other";
                return Err(Stop::config("sources", message, Some(hint.to_owned())));
            }
            tasks.push(task);
        }
    }
    let name = |path: &PathBuf| {
        let path = fs_err::canonicalize(path).unwrap_or_else(|_| path.clone());
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let names: Vec<String> = args.sources.iter().map(name).collect();
    write_dataset(&tasks, &names, &args.out)?;
    Ok(tasks.len())
}

fn episodes(args: &ExportArgs) -> Result<usize, Stop> {
    let runs: Vec<Run> = args
        .sources
        .iter()
        .map(|folder| report::read(folder))
        .collect::<Result<_, _>>()?;
    Ok(report::write_export(&runs, &args.out)?)
}

fn tasks(
    args: &ExportArgs,
    write: fn(&[Task], Target, &Path) -> io::Result<()>,
) -> Result<usize, Stop> {
    let mut tasks = Vec::new();
    for path in &args.sources {
        tasks.extend(load_all(path)?);
    }
    write(&tasks, args.target.into(), &args.out).map_err(|source| StoreError::Write {
        path: args.out.clone(),
        source,
    })?;
    Ok(tasks.len())
}
