//! `warpsmith models`

#[cfg(feature = "local-models")]
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use warpsmith_machine::Caches;
use warpsmith_model::catalogue::{self, Network};
#[cfg(feature = "local-models")]
use warpsmith_model::{Adapter, ModelError};
use warpsmith_schema::FORMAT;

use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::render::size;

/// List, fetch and find the language models that can be had by name
#[derive(Debug, Args)]
pub(crate) struct ModelsArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// What can be had, and what is here
    List,
    /// Fetch one; what an interrupted run has fetched is used
    Pull {
        /// A name that `models list` shows
        name: String,
        /// Fetch nothing: say where to put the file by hand
        #[arg(long)]
        offline: bool,
    },
    /// Where one lies, or would lie
    Path {
        /// A name that `models list` shows
        name: String,
    },
    /// Write an adapter in 8 bits: a quarter of its size, for `local:MODEL+ADAPTER` and not for PEFT
    #[cfg(feature = "local-models")]
    Quantize {
        /// A PEFT folder, such as `published` of a training run
        adapter: PathBuf,
        /// The folder to make
        to: PathBuf,
    },
}

pub(crate) fn run(args: &ModelsArgs, printer: &Printer) -> Result<Exit, Stop> {
    let caches = Caches::locate()?;
    match &args.what {
        What::List => {
            let models = catalogue::list(&caches);
            if printer.json() {
                printer.object(&json!({ "format": FORMAT, "models": models }))?;
                return Ok(Exit::DONE);
            }
            let lines: Vec<String> = models
                .iter()
                .map(|model| {
                    let here = if model.present { "here" } else { "not here" };
                    let large = size(model.bytes);
                    format!(
                        "{:<20} {large:>8}  {here:<8}  {}, {}",
                        model.name, model.description, model.license
                    )
                })
                .collect();
            printer.lines(&lines)?;
        }
        What::Pull { name, offline } => {
            let model = catalogue::find(name)?;
            if !model.is_present(&caches) && !offline {
                printer.note(&format!(
                    "fetching {}: {}",
                    model.description,
                    size(model.bytes)
                ));
            }
            let network = if *offline {
                Network::Offline
            } else {
                Network::Allowed
            };
            let path = catalogue::pull(&model, &caches, network, printer.progress().as_ref())?;
            show(name, &path.display().to_string(), true, printer)?;
        }
        What::Path { name } => {
            let model = catalogue::find(name)?;
            let path = model.path(&caches).display().to_string();
            show(name, &path, model.is_present(&caches), printer)?;
        }
        #[cfg(feature = "local-models")]
        What::Quantize { adapter, to } => {
            if to.exists() {
                let message = format!("`{}` is there already", to.display());
                let hint = "name a folder that is to be made".to_owned();
                return Err(Stop::config("config", message, Some(hint)));
            }
            let bytes = Adapter::load(adapter)?
                .save_int8(to)
                .map_err(ModelError::from)?;
            if printer.json() {
                printer.object(&json!({ "format": FORMAT, "adapter": to, "bytes": bytes }))?;
            } else {
                printer.lines(&[format!("{}: {}", size(bytes), to.display())])?;
            }
        }
    }
    Ok(Exit::DONE)
}

fn show(name: &str, path: &str, present: bool, printer: &Printer) -> Result<(), Stop> {
    if printer.json() {
        return printer
            .object(&json!({ "format": FORMAT, "name": name, "path": path, "present": present }));
    }
    Ok(printer.data(&format!("{path}\n"))?)
}
