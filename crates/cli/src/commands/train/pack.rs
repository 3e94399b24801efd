//! `warpsmith train pack`: the last checkpoint of a run in a third of its size, to resume elsewhere.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use warpsmith_schema::FORMAT;
use warpsmith_store::is_held;
use warpsmith_train::checkpoint::Checkpoints;

use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::render::size;

/// Pack the last checkpoint of a run so that it can be resumed elsewhere
///
/// Parameters in bf16, the optimizer's moments in 8 bits: four bytes for each trainable parameter. The command that began the
/// run goes on from the new folder with `--out`, to within a tolerance and not bit for bit.
#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// A run of `train`
    run: PathBuf,
    /// The folder to make
    to: PathBuf,
}

/// What is copied as it is.
const KEPT: [&str; 2] = ["config.json", "metrics.jsonl"];
const CHECKPOINTS: &str = "checkpoints";

pub(crate) fn run(args: &PackArgs, printer: &Printer) -> Result<Exit, Stop> {
    let refuse = |message: String, hint: &str| Stop::config("config", message, Some(hint.into()));
    if args.to.exists() {
        let message = format!("`{}` is there already", args.to.display());
        return Err(refuse(message, "name a folder that is to be made"));
    }
    if is_held(&args.run) {
        let message = format!("`{}` is being worked on", args.run.display());
        return Err(refuse(
            message,
            "stop it first: Ctrl-C finishes the step it is at and keeps it",
        ));
    }
    let from = Checkpoints::new(args.run.join(CHECKPOINTS), 1);
    if from.last()?.is_none() {
        let message = format!("`{}` has no checkpoint", args.run.display());
        return Err(refuse(message, "name the folder of a run of `train`"));
    }
    // Whole or not there.
    let name = args.to.file_name().unwrap_or_default().to_string_lossy();
    let begun = args
        .to
        .with_file_name(format!(".{name}.new-{}", std::process::id()));
    if let Some(missing) = KEPT.into_iter().find(|name| !args.run.join(name).is_file()) {
        let message = format!("`{}` has no `{missing}`", args.run.display());
        return Err(refuse(message, "name the folder of a run of `train`"));
    }
    let packed = pack(&args.run, &from, &begun)
        .and_then(|packed| {
            fs_err::rename(&begun, &args.to)
                .map(|()| packed)
                .map_err(Stop::from)
        })
        .inspect_err(|_| {
            // That it could not be packed is what is told.
            let _ = fs_err::remove_dir_all(&begun);
        });
    let (step, bytes) = packed?;
    if printer.json() {
        printer
            .object(&json!({ "format": FORMAT, "run": args.to, "step": step, "bytes": bytes }))?;
    } else {
        let line = format!("step {step}, {}: {}", size(bytes), args.to.display());
        printer.lines(&[line])?;
    }
    Ok(Exit::DONE)
}

/// Gives the step it is of, and its size in bytes.
fn pack(run: &Path, from: &Checkpoints, to: &Path) -> Result<(u64, u64), Stop> {
    if let Some(above) = to.parent() {
        fs_err::create_dir_all(above)?;
    }
    fs_err::create_dir(to)?;
    for name in KEPT {
        fs_err::copy(run.join(name), to.join(name))?;
    }
    let to = Checkpoints::new(to.join(CHECKPOINTS), 1);
    Ok(from.pack_into(&to)?.unwrap_or_default())
}
