//! `warpsmith report`

mod grid;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use clap::Args;
use serde_json::{Value, json};
use warpsmith_report::{
    self as report, Report, Run, RunReport, table_of_tasks, tables, training_progress,
    verdict_words,
};

use crate::args::CountsChoice;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::interrupt::quoted;
use crate::printer::Printer;
use crate::render::Table;

/// Print the numbers of runs, side by side, and write them as one HTML file
///
/// Reads the folders that `optimize` and others leave, also while a run is under way. Several runs are compared with the
/// first. Exit code 2: not a run's folder.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// The folders of one or more runs, such as `runs/latest`
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Write one HTML file with plots and sources, which needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write event files for TensorBoard, a folder for each run
    #[arg(long, value_name = "DIR")]
    tensorboard: Option<PathBuf>,
    /// Which attempt of an episode counts; else what each run says, or the best
    #[arg(long, value_enum)]
    attempt: Option<CountsChoice>,
    /// Random seed of the bootstrap behind the intervals
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

pub(crate) fn run(args: &ReportArgs, printer: &Printer) -> Result<Exit, Stop> {
    if let Some(file) = &args.html {
        require_folder(file)?;
    }
    let runs: Vec<Run> = args
        .runs
        .iter()
        .map(|folder| report::read(folder))
        .collect::<Result<_, _>>()?;
    let runs = told_apart(runs);
    report::same_rules(&runs).map_err(Stop)?;
    let report = Report::of(&runs, args.attempt.map(Into::into), args.seed);
    if let Some(file) = &args.html {
        write(file, &report::html(&report))?;
        printer.note(&format!("page: {}", file.display()));
    }
    if let Some(folder) = &args.tensorboard {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        report::write_tensorboard(&report, folder, now.unwrap_or_default().as_secs_f64())?;
        printer.note(&format!("event files: {}", folder.display()));
    }
    if printer.json() {
        printer.object(&object(&report, args)?)?;
    } else {
        printer.data(&text(&report))?;
    }
    Ok(Exit::DONE)
}

/// Folders of one name in different places are numbered.
fn told_apart(mut runs: Vec<Run>) -> Vec<Run> {
    for number in 1..runs.len() {
        let name = runs[number].name.clone();
        let taken = |name: &str| runs[..number].iter().any(|run| run.name == name);
        let mut names =
            std::iter::once(name.clone()).chain((2..).map(|count| format!("{name} ({count})")));
        let free = names.find(|name| !taken(name)).unwrap_or(name);
        runs[number].name = free;
    }
    runs
}

fn write(file: &Path, page: &str) -> Result<(), Stop> {
    require_folder(file)?;
    Ok(fs_err::write(file, page)?)
}

/// A page goes where there is a folder: a wrong name makes none.
pub(crate) fn require_folder(file: &Path) -> Result<(), Stop> {
    let folder = file.parent().unwrap_or(file);
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let message = format!("there is no folder `{}`", folder.display());
    let hint = format!(
        "`mkdir -p {}` makes it",
        quoted(&folder.display().to_string())
    );
    Err(Stop::config("no_folder", message, Some(hint)))
}

fn object(report: &Report<'_>, args: &ReportArgs) -> Result<Value, Stop> {
    let mut object = serde_json::to_value(report)?;
    object["html"] = json!(args.html);
    object["tensorboard"] = json!(args.tensorboard);
    Ok(object)
}

/// The numbers as a terminal shows them.
pub(crate) fn text(report: &Report<'_>) -> String {
    let runs = report.runs.iter().map(about);
    let tables = tables(report);
    let tasks = report.has_episodes().then(|| table_of_tasks(report));
    let tables = tables.iter().chain(&tasks).map(grid::text);
    runs.chain(tables).collect::<Vec<_>>().join("\n")
}

/// What was run, and what to keep in mind.
fn about(run: &RunReport<'_>) -> String {
    let list = |words: &BTreeSet<&str>| words.iter().copied().collect::<Vec<_>>().join(", ");
    let mut table = Table::titled(run.name);
    let has_other = !run.training.is_empty() || run.search.is_some();
    if run.metrics.overall.episodes > 0 || !has_other {
        table.row("policy", &list(&run.policies));
        table.row("mode", &list(&run.modes));
        table.row("device", &list(&run.devices));
    }
    if !run.training.is_empty() {
        table.row("steps", &training_progress(run.training));
    }
    if let Some(start) = &run.start {
        let told = format!("{}: {}", start.words(), verdict_words(start.verdict));
        table.row("started from", &told);
    }
    if let Some(result) = run.result {
        table.row(
            "result",
            &format!("{}, measured afresh", verdict_words(result)),
        );
    }
    for note in &run.notes {
        table.row("note", note);
    }
    table.text()
}
