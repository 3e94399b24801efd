//! `warpsmith doctor`

use clap::Args;
use serde_json::{Value, json};
use warpsmith_machine::{Caches, MachineReport, inspect_machine, install_estimate};
use warpsmith_sandbox::{Effective, Protection, effective};
use warpsmith_schema::FORMAT;

use crate::args::PythonArgs;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::{Printer, Tone};
use crate::render::{Table, size};

/// Say what this machine offers, what is missing and what to do about it
///
/// Exit code 0 if kernels can be judged here, 3 if not.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    python: PythonArgs,
}

pub(crate) fn run(args: &DoctorArgs, printer: &Printer) -> Result<Exit, Stop> {
    let caches = Caches::locate()?;
    let isolation = effective();
    let report = inspect_machine(
        &args.python.choice(),
        &caches,
        Some(serde_json::to_value(isolation)?),
    );
    let ready = ready(&report, isolation, &caches);
    let models = models(&caches);
    if printer.json() {
        let mut value = serde_json::to_value(&report)?;
        if let Value::Object(fields) = &mut value {
            fields.insert("format".to_owned(), json!(FORMAT));
            fields.insert("version".to_owned(), json!(env!("CARGO_PKG_VERSION")));
            fields.insert("ready".to_owned(), json!(ready));
            fields.insert("contained".to_owned(), json!(isolation.contained()));
            fields.insert("models".to_owned(), json!(models));
        }
        printer.object(&value)?;
    } else {
        printer.data(&render(&report, isolation, &models, ready, printer))?;
    }
    Ok(if ready {
        Exit::DONE
    } else {
        Exit::INFRASTRUCTURE
    })
}

/// Whether `warpsmith judge` can do its work: contained, with a compiler, and with torch or the means to fetch it.
fn ready(report: &MachineReport, isolation: &Effective, caches: &Caches) -> bool {
    let room = report
        .disk
        .free_bytes
        .is_none_or(|free| free >= install_estimate(caches).disk_bytes);
    // Without a Python, advice on PyTorch that names no error means that it can be fetched.
    let fetchable = room
        && report
            .advice
            .iter()
            .any(|advice| advice.missing == "PyTorch" && advice.consequence.contains("fetched"));
    isolation.contained() && report.cxx.is_some() && (report.python.is_some() || fetchable)
}

/// Models that are there. What is still being fetched has a name that begins with a dot.
fn models(caches: &Caches) -> Vec<String> {
    let Ok(entries) = fs_err::read_dir(caches.models()) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| !name.starts_with('.') && !name.ends_with(".partial"))
        .collect();
    names.sort();
    names
}

fn render(
    report: &MachineReport,
    isolation: &Effective,
    models: &[String],
    ready: bool,
    printer: &Printer,
) -> String {
    let state = if ready {
        printer.paint(Tone::Good, "ready")
    } else {
        printer.paint(Tone::Bad, "not ready")
    };
    let mut table = Table::titled(&format!("{state}  warpsmith {}", env!("CARGO_PKG_VERSION")));
    let none = || "none".to_owned();
    table.row(
        "processor",
        &format!(
            "{}, {} cores, {}",
            report.cpu.name, report.cpu.cores, report.cpu.vector
        ),
    );
    table.row("memory", &size(report.memory_bytes));
    let free = report
        .disk
        .free_bytes
        .map_or_else(|| "unknown space".to_owned(), size);
    table.row(
        "disk",
        &format!("{free} free at {}", report.disk.cache.display()),
    );
    if report.gpus.is_empty() {
        table.row("GPU", "none");
    }
    for gpu in &report.gpus {
        let text = format!(
            "{}: {}, {}, {}, driver {}",
            gpu.index,
            gpu.name,
            gpu.arch(),
            size(gpu.memory_bytes),
            gpu.driver
        );
        table.row("GPU", &text);
    }
    let cxx = report.cxx.as_ref().map_or_else(none, |cxx| {
        format!("{} ({})", cxx.version, cxx.path.display())
    });
    table.row("C++", &cxx);
    let nvcc = report.nvcc.as_ref().map_or_else(none, |nvcc| {
        format!("{} ({})", nvcc.version, nvcc.path.display())
    });
    table.row("nvcc", &nvcc);
    match &report.python {
        Some(python) => {
            table.row(
                "Python",
                &format!("{} ({})", python.version, python.executable.display()),
            );
            let cuda = python
                .torch
                .cuda
                .as_ref()
                .map_or_else(|| "for the CPU".to_owned(), |cuda| format!("CUDA {cuda}"));
            table.row("torch", &format!("{}, {cuda}", python.torch.version));
        }
        None => table.row("torch", "none"),
    }
    table.row(
        "models",
        &if models.is_empty() {
            none()
        } else {
            models.join(", ")
        },
    );
    table.row(
        "isolation",
        if isolation.contained() {
            "contained: every required protection holds"
        } else {
            "NOT contained"
        },
    );
    for (name, protection) in isolation.iter() {
        let text = match protection {
            Protection::Held { by } => format!("held     {name}: {by}"),
            Protection::Missing { why } => format!("missing  {name}: {why}"),
        };
        table.row("", &text);
    }
    for advice in &report.advice {
        table.row(
            "missing",
            &format!(
                "{}: {}\n-> {}",
                advice.missing, advice.consequence, advice.what_to_do
            ),
        );
    }
    if !isolation.contained() {
        let hint = warpsmith_sandbox::SandboxError::Uncontained {
            missing: Vec::new(),
        }
        .hint();
        table.row(
            "missing",
            &format!(
                "isolation: `judge` refuses to run\n-> {}",
                hint.unwrap_or_default()
            ),
        );
    }
    if ready {
        table.row("next", "warpsmith judge           an embedded example\nwarpsmith new NAME        a task of your own");
    }
    table.text()
}
