//! A draft as a module's text and as a graph, in one size.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use serde_json::Value;
use warpsmith_schema::{GraphValue, OpGraph, ValueSource};

use super::draft::{Callee, Draft, Draw, Id, Operand, Origin, Setup, Start, Statement};
use super::size::{Argument, Shape, Size};

/// Constructor arguments whose place tells what they are.
const POSITIONAL: [&str; 14] = [
    "in_channels",
    "out_channels",
    "in_features",
    "in1_features",
    "in2_features",
    "out_features",
    "num_features",
    "num_groups",
    "num_channels",
    "normalized_shape",
    "num_parameters",
    "num_embeddings",
    "embedding_dim",
    "norm_type",
];
/// Names for values that live on beside another.
const NAMES: [&str; 6] = ["h", "u", "v", "w", "p", "q"];

pub(super) fn graph(draft: &Draft, result: Id, size: Size) -> OpGraph {
    let values = draft
        .values
        .iter()
        .map(|value| GraphValue {
            shape: value.shape.iter().map(|extent| extent.at(size)).collect(),
            dtype: value.dtype,
            from: match &value.origin {
                Origin::Input { position } => ValueSource::Input {
                    position: *position,
                },
                Origin::State { name } => ValueSource::State { name: name.clone() },
                Origin::Applied(applied) => ValueSource::Applied {
                    op: applied.op.clone(),
                    inputs: applied.inputs.clone(),
                    arguments: applied
                        .arguments
                        .iter()
                        .map(|(name, argument)| (name.clone(), argument.at(size)))
                        .collect(),
                    result: applied.result,
                },
            },
        })
        .collect();
    OpGraph {
        values,
        returns: vec![result],
    }
}

pub(super) fn module(draft: &Draft, result: Id, size: Size) -> String {
    let mut sizes = Sizes::default();
    let setup: Vec<String> = draft
        .setup
        .iter()
        .map(|setup| self::setup(setup, size, &mut sizes))
        .collect();
    let mut text = String::from("import torch\nimport torch.nn as nn\n");
    let (body, last) = body(draft, result, size);
    if body.iter().any(|line| line.contains("F.")) {
        text.push_str("import torch.nn.functional as F\n");
    }
    text.push_str("\n\nclass Model(nn.Module):\n");
    text.push_str("    def __init__(self");
    for name in &sizes.names {
        let _ = write!(text, ", {name}");
    }
    text.push_str("):\n");
    text.push_str("        super().__init__()\n");
    for line in setup {
        let _ = writeln!(text, "        {line}");
    }
    let names: Vec<&str> = draft.inputs.iter().map(|(name, _)| name.as_str()).collect();
    let _ = writeln!(text, "\n    def forward(self, {}):", names.join(", "));
    for line in body {
        let _ = writeln!(text, "        {line}");
    }
    let _ = writeln!(text, "        return {last}");

    text.push_str("\n\ndef get_inputs():\n");
    let mut drawn = Vec::new();
    for value in &draft.values {
        if let Origin::Input { position } = value.origin {
            let (name, draw) = &draft.inputs[position];
            let _ = writeln!(
                text,
                "    {name} = {}",
                self::draw(*draw, &value.shape, size)
            );
            drawn.push(name.as_str());
        }
    }
    let _ = writeln!(text, "    return [{}]", drawn.join(", "));
    let _ = writeln!(
        text,
        "\n\ndef get_init_inputs():\n    return [{}]",
        sizes.values.join(", ")
    );
    text
}

/// Arguments of `__init__`: each length that a module is made with, once.
#[derive(Default)]
struct Sizes {
    names: Vec<String>,
    values: Vec<String>,
    known: BTreeMap<String, String>,
}

impl Sizes {
    fn name(&mut self, keyword: &str, value: String) -> String {
        let mut name = keyword.to_owned();
        let mut number = 1;
        loop {
            match self.known.get(&name) {
                Some(known) if *known == value => return name,
                Some(_) => {
                    number += 1;
                    name = format!("{keyword}{number}");
                }
                None => {
                    self.known.insert(name.clone(), value.clone());
                    self.names.push(name.clone());
                    self.values.push(value);
                    return name;
                }
            }
        }
    }
}

fn setup(setup: &Setup, size: Size, sizes: &mut Sizes) -> String {
    match setup {
        Setup::Module {
            attribute,
            class,
            arguments,
        } => {
            let mut written = Vec::new();
            for (name, argument) in arguments {
                let value = python(&argument.at(size));
                let value = match argument {
                    Argument::Length(_) => sizes.name(name, value),
                    Argument::Fixed(_) | Argument::Lengths(_) => value,
                };
                if POSITIONAL.contains(&name.as_str()) {
                    written.push(value);
                } else {
                    written.push(format!("{name}={value}"));
                }
            }
            format!("self.{attribute} = {class}({})", written.join(", "))
        }
        Setup::Parameter {
            attribute,
            shape,
            start,
        } => {
            let dims = dims(shape, size);
            let value = match start {
                Start::Ones => format!("torch.ones({dims})"),
                Start::Zeros => format!("torch.zeros({dims})"),
                Start::Small => format!("torch.randn({dims}) * 0.02"),
                Start::Normal => format!("torch.randn({dims})"),
                Start::Positive => format!("torch.rand({dims}) + 0.5"),
            };
            format!("self.{attribute} = nn.Parameter({value})")
        }
    }
}

fn dims(shape: &Shape, size: Size) -> String {
    let lengths: Vec<String> = shape.iter().map(|one| one.at(size).to_string()).collect();
    lengths.join(", ")
}

fn draw(draw: Draw, shape: &Shape, size: Size) -> String {
    let dims = dims(shape, size);
    match draw {
        Draw::Normal => format!("torch.randn({dims})"),
        Draw::Unit => format!("torch.rand({dims}) * 0.9 + 0.05"),
        Draw::Below(bound) => {
            let comma = if shape.len() == 1 { "," } else { "" };
            format!("torch.randint(0, {}, ({dims}{comma}))", bound.at(size))
        }
        Draw::Signs => format!("torch.sign(torch.randn({dims}))"),
        Draw::Marks => format!("(torch.rand({dims}) > 0.5).float()"),
        Draw::LogProbabilities => format!("torch.log_softmax(torch.randn({dims}), dim=-1)"),
    }
}

/// The lines of `forward` and the name of what it returns.
///
/// A result takes over the name of a value that nobody needs any more, first of all that of its first operand: a plain
/// chain reads `x = f(x)` throughout.
fn body(draft: &Draft, result: Id, size: Size) -> (Vec<String>, String) {
    let mut names: HashMap<Id, String> = HashMap::new();
    for (id, value) in draft.values.iter().enumerate() {
        match &value.origin {
            Origin::Input { position } => {
                names.insert(id, draft.inputs[*position].0.clone());
            }
            Origin::State { name } => {
                names.insert(id, format!("self.{name}"));
            }
            Origin::Applied(_) => {}
        }
    }
    let used_after = |at: usize, id: Id| {
        id == result || draft.body[at + 1..].iter().any(|later| uses(later, id))
    };
    let is_variable = |id: Id| !matches!(draft.values[id].origin, Origin::State { .. });
    let mut lines = Vec::new();
    let mut fresh = NAMES.iter();
    for (at, statement) in draft.body.iter().enumerate() {
        let text = expression(statement, &names, size);
        let operands = statement
            .operands
            .iter()
            .filter_map(|(_, operand)| match operand {
                Operand::Value(id) => Some(*id),
                Operand::Number(_) => None,
            });
        let free = operands
            .filter(|id| is_variable(*id) && !used_after(at, *id))
            .find_map(|id| names.get(&id).cloned());
        let name = free
            .or_else(|| fresh.next().map(|name| (*name).to_owned()))
            .unwrap_or_else(|| format!("x{at}"));
        lines.push(format!("{name} = {text}"));
        names.insert(statement.target, name);
    }
    let last = names.get(&result).cloned().unwrap_or_default();
    (lines, last)
}

fn uses(statement: &Statement, id: Id) -> bool {
    statement
        .operands
        .iter()
        .any(|(_, operand)| *operand == Operand::Value(id))
}

fn expression(statement: &Statement, names: &HashMap<Id, String>, size: Size) -> String {
    let mut written: Vec<String> = statement
        .operands
        .iter()
        .map(|(keyword, operand)| {
            let operand = match operand {
                Operand::Value(id) => names.get(id).cloned().unwrap_or_default(),
                Operand::Number(number) => python(&Value::from(*number)),
            };
            match keyword {
                Some(keyword) => format!("{keyword}={operand}"),
                None => operand,
            }
        })
        .collect();
    let keywords = statement
        .keywords
        .iter()
        .map(|(name, argument)| format!("{name}={}", python(&argument.at(size))));
    let text = match &statement.callee {
        Callee::Infix(symbol) => written.join(&format!(" {symbol} ")),
        Callee::Attribute(attribute) => format!("self.{attribute}({})", written.join(", ")),
        Callee::Function(path) => {
            written.extend(keywords);
            format!("{path}({})", written.join(", "))
        }
        Callee::Method(name) => {
            let first = written.remove(0);
            written.extend(keywords);
            format!("{first}.{name}({})", written.join(", "))
        }
    };
    match statement.pick {
        Some(result) => format!("{text}[{result}]"),
        None => text,
    }
}

/// A value as Python spells it.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("\"{text}\""),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(python).collect();
            let comma = if items.len() == 1 { "," } else { "" };
            format!("({}{comma})", items.join(", "))
        }
        // No argument is one.
        Value::Object(_) => value.to_string(),
    }
}
