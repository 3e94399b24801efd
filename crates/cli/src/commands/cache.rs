//! `warpsmith cache ls|clean`

use clap::{Args, Subcommand};
use serde_json::json;
use warpsmith_machine::Caches;
use warpsmith_schema::FORMAT;

use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::render::size;

/// See and delete what is kept between runs
#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the caches and their sizes
    Ls,
    /// Delete one cache, or all of them
    Clean(CleanArgs),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct CleanArgs {
    /// One of those that `ls` lists
    name: Option<String>,
    /// Delete every cache, torch and models included
    #[arg(long)]
    all: bool,
}

pub(crate) fn run(args: &CacheArgs, printer: &Printer) -> Result<Exit, Stop> {
    let caches = Caches::locate()?;
    match &args.verb {
        Verb::Ls => list(&caches, printer)?,
        // Without a name it is `--all`, or clap would have refused.
        Verb::Clean(clean) => {
            let freed = caches.clean(clean.name.as_deref())?;
            if printer.json() {
                printer.object(&json!({ "format": FORMAT, "freed_bytes": freed }))?;
            } else {
                printer.data(&format!("freed {}\n", size(freed)))?;
            }
        }
    }
    Ok(Exit::DONE)
}

fn list(caches: &Caches, printer: &Printer) -> Result<(), Stop> {
    let entries = caches.entries()?;
    if printer.json() {
        return printer
            .object(&json!({ "format": FORMAT, "root": caches.root, "caches": entries }));
    }
    let line = |name: &str, bytes, what: &str| format!("{name:<10} {:>9}  {what}", size(bytes));
    let mut lines: Vec<String> = entries
        .iter()
        .map(|entry| line(entry.name, entry.bytes, entry.purpose))
        .collect();
    let total = entries.iter().map(|entry| entry.bytes).sum();
    lines.push(line(
        "total",
        total,
        &format!("in {}", caches.root.display()),
    ));
    Ok(printer.lines(&lines)?)
}
