//! `warpsmith graph`

use std::fmt::Write as _;

use clap::Args;
use serde_json::json;
use warpsmith_schema::{FORMAT, GraphValue, OpGraph, ValueSource};
use warpsmith_tasks::capture;

use crate::args::MachineArgs;
use crate::engine::Engine;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::source::Source;

/// Show what a module computes, operator by operator
///
/// The graph is captured with `torch.export`, interpreted, and compared with the module before it is shown. Exit code 0: a
/// graph. 2: the module has none, and why. 3: this machine.
#[derive(Debug, Args)]
pub(crate) struct GraphArgs {
    /// A `KernelBench` module, `FILE.jsonl#level1/19`, or an example's name
    task: String,
    /// Print the graph in the language of Graphviz (`warpsmith graph TASK --dot | dot -Tsvg`)
    #[arg(long, conflicts_with = "json")]
    dot: bool,
    #[command(flatten)]
    machine: MachineArgs,
}

pub(crate) fn run(args: &GraphArgs, printer: &Printer) -> Result<Exit, Stop> {
    let task = Source::given(&args.task, None)?.task()?;
    let graph = if let Some(graph) = &task.graph {
        graph.clone()
    } else {
        let engine = Engine::prepare(&args.machine, printer)?;
        capture(&task, &engine.python, &engine.caches)?
    };
    if printer.json() {
        printer.object(&json!({ "format": FORMAT, "task": task.id, "graph": graph }))?;
    } else if args.dot {
        printer.data(&dot(&graph))?;
    } else {
        printer.data(&table(&graph))?;
    }
    Ok(Exit::DONE)
}

/// `%3 = relu(%2)   float32 [16, 256]   line 12`, a value a line.
fn table(graph: &OpGraph) -> String {
    let rows: Vec<[String; 3]> = graph
        .values
        .iter()
        .enumerate()
        .map(|(number, value)| {
            let line = value.line.map(|line| format!("line {line}"));
            let what = format!("%{number} = {}", description(value));
            [what, shape(value), line.unwrap_or_default()]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let (first, second) = (width(0).unwrap_or(0), width(1).unwrap_or(0));
    let mut text = String::new();
    for [what, shape, line] in &rows {
        let row = format!("{what:<first$}  {shape:<second$}  {line}");
        let _ = writeln!(text, "{}", row.trim_end());
    }
    let returns: Vec<String> = graph
        .returns
        .iter()
        .map(|place| format!("%{place}"))
        .collect();
    let _ = writeln!(text, "returns {}", returns.join(", "));
    text
}

fn shape(value: &GraphValue) -> String {
    let dtype = serde_json::to_value(value.dtype).unwrap_or_default();
    format!("{} {:?}", dtype.as_str().unwrap_or_default(), value.shape)
}

fn description(value: &GraphValue) -> String {
    match &value.from {
        ValueSource::Input { position } => format!("input {position}"),
        ValueSource::Scalar { position } => format!("scalar {position}"),
        ValueSource::State { name } => format!("state {name}"),
        ValueSource::Constant { data } => format!("constant of {} elements", data.len()),
        ValueSource::Applied {
            op,
            inputs,
            arguments,
            result,
        } => {
            let inputs = inputs.iter().map(|input| match input {
                Some(place) => format!("%{place}"),
                None => "none".to_owned(),
            });
            let arguments = arguments
                .iter()
                .map(|(name, value)| format!("{name}={value}"));
            let given: Vec<String> = inputs.chain(arguments).collect();
            let which = if *result == 0 {
                String::new()
            } else {
                format!("[{result}]")
            };
            format!("{op}({}){which}", given.join(", "))
        }
    }
}

fn dot(graph: &OpGraph) -> String {
    let mut text = "digraph module {\n    node [shape=box, fontname=monospace];\n".to_owned();
    for (number, value) in graph.values.iter().enumerate() {
        let label = match &value.from {
            ValueSource::Applied { op, .. } => op.clone(),
            _ => description(value),
        };
        let style = match value.from {
            ValueSource::Applied { .. } => "",
            _ => ", style=rounded",
        };
        let label = format!("{label}\\n{}", shape(value)).replace('"', "'");
        let _ = writeln!(text, "    v{number} [label=\"{label}\"{style}];");
        if let ValueSource::Applied { inputs, .. } = &value.from {
            for place in inputs.iter().flatten() {
                let _ = writeln!(text, "    v{place} -> v{number};");
            }
        }
    }
    for (number, place) in graph.returns.iter().enumerate() {
        let _ = writeln!(
            text,
            "    out{number} [label=\"output {number}\", shape=plaintext];"
        );
        let _ = writeln!(text, "    v{place} -> out{number};");
    }
    text + "}\n"
}
