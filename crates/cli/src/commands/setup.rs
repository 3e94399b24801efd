//! `warpsmith setup`

use clap::Args;
use serde_json::json;
use warpsmith_judge::LocalJudge;
use warpsmith_machine::{Caches, install_estimate};
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{FORMAT, Profile, Rules};

use crate::args::MachineArgs;
use crate::engine::{Engine, JudgingOptions};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::interrupt;
use crate::printer::Printer;
use crate::render::size;

/// Fetch and build everything that would otherwise be made on first use
#[derive(Debug, Args)]
pub(crate) struct SetupArgs {
    #[command(flatten)]
    machine: MachineArgs,
}

pub(crate) fn run(args: &SetupArgs, printer: &Printer) -> Result<Exit, Stop> {
    let cost = install_estimate(&Caches::locate()?);
    printer.note(&format!(
        "1/3 Python with PyTorch: nothing to do where one is found, else some minutes, {} to fetch, {} on disk",
        size(cost.download_bytes),
        size(cost.disk_bytes)
    ));
    let engine = Engine::prepare(&args.machine, printer)?;
    let python = &engine.python;
    printer.note(&format!(
        "    torch {} in {}",
        python.torch.version,
        python.executable.display()
    ));

    printer.note("2/3 the judge's own processes and support library: up to a minute, a few MB");
    let mut judge = LocalJudge::start(engine.options(JudgingOptions {
        profile: Profile::Full,
        rules: Rules::Own,
        // Nothing of a stranger's runs here; `judge` decides what it demands.
        isolation: Isolation::Weak,
        compile_mode: Some("default".to_owned()),
        seed: None,
    }))?;

    printer.note("3/3 PyTorch's headers, precompiled: up to two minutes, 500 MB");
    judge.prepare()?;
    if interrupt::happened() {
        return Err(Stop::interrupted());
    }
    if printer.json() {
        printer.object(&json!({
            "format": FORMAT, "ready": true, "target": engine.target, "python": python, "cache": engine.caches.root,
        }))?;
    } else {
        printer.data(&format!(
            "ready: torch {}, target {}, everything in {}\n",
            python.torch.version,
            engine.target.name(),
            engine.caches.root.display()
        ))?;
    }
    Ok(Exit::DONE)
}
