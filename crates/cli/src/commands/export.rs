//! `warpsmith export`

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;
use warpsmith_agent::{export_harbor, export_inspect};
use warpsmith_report::{self as report, Run};
use warpsmith_schema::{FORMAT, Target, Task};
use warpsmith_store::StoreError;
use warpsmith_tasks::load_all;

use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Write the episodes of runs, or tasks, in the form of other tools
///
/// `hf` takes runs and makes a folder with a Parquet file and a card, which `datasets.load_dataset` reads. `harbor` and `inspect` take tasks:
/// a folder for each as Harbor has them, or one evaluation of Inspect. Exit code 2: not a run's folder, or no tasks.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Folders of runs; for `harbor` and `inspect` tasks, as `--tasks` takes them
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
    /// Episodes as Parquet in the layout of Hugging Face's `datasets`
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
        DataFormat::Hf => (
            episodes(args)?,
            "episodes",
            format!("to load it: datasets.load_dataset(\"{folder}\", split=\"train\")"),
        ),
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
