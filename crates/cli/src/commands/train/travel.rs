//! `warpsmith train travel`: what a run needs to go on elsewhere, in little.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use warpsmith_schema::FORMAT;
use warpsmith_train::checkpoint::Checkpoints;

use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::render::size;

/// Pack the last checkpoint of a run so that it can go on elsewhere
///
/// Parameters in bf16, the optimiser's means in 8 bits: four bytes for each number that learns. The command that began the
/// run goes on from the new folder with `--out`, to within a tolerance and not bit for bit.
#[derive(Debug, Args)]
pub(crate) struct TravelArgs {
    /// A run of `train`
    run: PathBuf,
    /// The folder to make
    to: PathBuf,
}

/// What is copied as it is.
const KEPT: [&str; 2] = ["config.json", "metrics.jsonl"];
const CHECKPOINTS: &str = "checkpoints";

pub(crate) fn run(args: &TravelArgs, printer: &Printer) -> Result<Exit, Stop> {
    let refuse = |message: String, hint: &str| Stop::config("config", message, Some(hint.into()));
    if args.to.exists() {
        let message = format!("`{}` is there already", args.to.display());
        return Err(refuse(message, "name a folder that is to be made"));
    }
    let from = Checkpoints::new(args.run.join(CHECKPOINTS), 1);
    if from.last()?.is_none() {
        let message = format!("`{}` has no checkpoint", args.run.display());
        return Err(refuse(message, "name the folder of a run of `train`"));
    }
    fs_err::create_dir_all(&args.to)?;
    for name in KEPT {
        fs_err::copy(args.run.join(name), args.to.join(name))?;
    }
    let to = Checkpoints::new(args.to.join(CHECKPOINTS), 1);
    let (step, bytes) = from.send(&to)?.unwrap_or_default();
    if printer.json() {
        printer
            .object(&json!({ "format": FORMAT, "run": args.to, "step": step, "bytes": bytes }))?;
    } else {
        let line = format!("step {step}, {}: {}", size(bytes), args.to.display());
        printer.lines(&[line])?;
    }
    Ok(Exit::DONE)
}
