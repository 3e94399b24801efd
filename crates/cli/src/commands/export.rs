//! `warpsmith export`

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;
use warpsmith_report::{self as report, Run};
use warpsmith_schema::FORMAT;

use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Write the episodes of runs as data that others load
///
/// A folder with a Parquet file and a card, which `datasets.load_dataset` takes. Exit code 2: not a run's folder.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The folders of the runs whose episodes become rows
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The form of the data
    #[arg(long, value_enum, default_value_t)]
    format: DataFormat,
    /// Where it goes; must not exist yet
    #[arg(long, value_name = "DIR", default_value = "export")]
    out: PathBuf,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum DataFormat {
    /// Parquet in the layout of Hugging Face's `datasets`
    #[default]
    Hf,
}

pub(crate) fn run(args: &ExportArgs, printer: &Printer) -> Result<Exit, Stop> {
    let DataFormat::Hf = args.format;
    if args.out.exists() {
        let message = format!("`{}` exists", args.out.display());
        let hint = "name another folder with `--out`";
        return Err(Stop::config("exists", message, Some(hint.to_owned())));
    }
    let runs: Vec<Run> = args
        .runs
        .iter()
        .map(|folder| report::read(folder))
        .collect::<Result<_, _>>()?;
    let rows = report::write_export(&runs, &args.out)?;
    if printer.json() {
        printer.object(&json!({ "format": FORMAT, "folder": args.out, "rows": rows }))?;
    } else {
        printer.data(&format!("{} ({rows} episodes)\n", args.out.display()))?;
        let folder = args.out.display();
        printer.note(&format!(
            "to load it: datasets.load_dataset(\"{folder}\", split=\"train\")"
        ));
    }
    Ok(Exit::DONE)
}
