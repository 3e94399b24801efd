//! `warpsmith explain`

use std::fmt::Write as _;

use clap::Args;
use serde_json::{Value, json};
use warpsmith_compiler::{ExplainedKernel, Explanation, explain};
use warpsmith_schema::FORMAT;
use warpsmith_tasks::capture;

use crate::args::MachineArgs;
use crate::engine::Engine;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::source::Source;

/// Say what the compiler would do with a module
///
/// Its kernels, the operators that each of them fuses, the bytes they move against the least possible, and what has no rule
/// and why. Exit code 0: an explanation. 2: the module has no graph, and why. 3: this machine.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A `KernelBench` module, `FILE.jsonl#level1/19`, or an example's name
    task: String,
    #[command(flatten)]
    machine: MachineArgs,
}

pub(crate) fn run(args: &ExplainArgs, printer: &Printer) -> Result<Exit, Stop> {
    let mut task = Source::given(&args.task, None)?.task()?;
    let engine = Engine::prepare(&args.machine, printer)?;
    if task.graph.is_none() {
        task.graph = Some(capture(&task, &engine.python, &engine.caches)?);
    }
    let explanation = explain(&task, engine.target)
        .map_err(|reason| Stop::config("not_covered", reason.to_string(), None))?;
    if printer.json() {
        let mut object = json!({ "format": FORMAT, "task": task.id, "target": engine.target });
        let found = serde_json::to_value(&explanation).unwrap_or_default();
        if let (Value::Object(object), Value::Object(found)) = (&mut object, found) {
            object.extend(found);
        }
        printer.object(&object)?;
    } else {
        printer.data(&table(&explanation))?;
    }
    Ok(Exit::DONE)
}

fn table(explanation: &Explanation) -> String {
    let mut rows = vec![["kernel", "fuses", "does", "moves"].map(str::to_owned)];
    rows.extend(explanation.kernels.iter().map(row));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths = [0, 1, 2].map(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for [name, fused, what, bytes] in &rows {
        let [first, second, third] = widths;
        let _ = writeln!(
            text,
            "{name:<first$}  {fused:<second$}  {what:<third$}  {bytes}"
        );
    }
    let (moved, least) = (explanation.bytes_moved, explanation.bytes_minimum);
    let ratio = moved as f64 / least.max(1) as f64;
    let _ = writeln!(
        text,
        "moves {} in all, {ratio:.2}x the least possible ({})",
        size(moved),
        size(least)
    );
    for gap in &explanation.not_covered {
        let _ = writeln!(text, "not covered: {}", gap.reason);
    }
    text
}

fn row(kernel: &ExplainedKernel) -> [String; 4] {
    let fused = kernel.fused.iter().map(|operator| match operator.line {
        Some(line) => format!("{} (line {line})", operator.op),
        None => operator.op.clone(),
    });
    let fused: Vec<String> = fused.collect();
    let name = match kernel.kind {
        "kernel" | "scan" => kernel.name.clone(),
        provided => format!("{} ({provided})", kernel.name),
    };
    let fused = if fused.is_empty() {
        // An operator of several kernels is named with one of them.
        "a step of the operator beside it".to_owned()
    } else {
        fused.join(", ")
    };
    [name, fused, kernel.what.clone(), size(kernel.bytes)]
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}
