//! `warpsmith schema`

use clap::Args;
use warpsmith_schema::{SCHEMA_NAMES, json_schema};

use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Print the JSON Schema of a document
#[derive(Debug, Args)]
pub(crate) struct SchemaArgs {
    /// verdict, task, failure, reward, trajectory or event
    name: String,
}

pub(crate) fn run(args: &SchemaArgs, printer: &Printer) -> Result<Exit, Stop> {
    let schema = json_schema(&args.name).ok_or_else(|| {
        Stop::config(
            "no_schema",
            format!("there is no schema named `{}`", args.name),
            Some(format!("the schemas are {}", SCHEMA_NAMES.join(", "))),
        )
    })?;
    printer.object(&schema)?;
    Ok(Exit::DONE)
}
