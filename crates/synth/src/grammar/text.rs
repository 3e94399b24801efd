//! A built graph as a module's source and as an `OpGraph`, in one size.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use serde_json::Value;
use warpsmith_schema::{GraphValue, OpGraph, ValueSource};

use super::builder::{
    Callee, ForwardStatement, GraphBuilder, InitStatement, InputDistribution, Operand,
    ParameterInit, ValueId, ValueOrigin,
};
use super::size::{Argument, Shape, TaskSize};

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

pub(super) fn graph(builder: &GraphBuilder, result: ValueId, size: TaskSize) -> OpGraph {
    let values = builder
        .values
        .iter()
        .map(|value| GraphValue {
            shape: value.shape.iter().map(|extent| extent.at(size)).collect(),
            dtype: value.dtype,
            from: match &value.origin {
                ValueOrigin::Input { position } => ValueSource::Input {
                    position: *position,
                },
                ValueOrigin::State { name } => ValueSource::State { name: name.clone() },
                ValueOrigin::Applied(applied) => ValueSource::Applied {
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
            line: None,
        })
        .collect();
    OpGraph {
        values,
        returns: vec![result],
        nesting: None,
    }
}

pub(super) fn module(builder: &GraphBuilder, result: ValueId, size: TaskSize) -> String {
    let mut sizes = Sizes::default();
    let setup: Vec<String> = builder
        .setup
        .iter()
        .map(|setup| self::setup(setup, size, &mut sizes))
        .collect();
    let mut text = String::from("import torch\nimport torch.nn as nn\n");
    let (body, last) = body(builder, result, size);
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
    let names: Vec<&str> = builder
        .inputs
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    let _ = writeln!(text, "\n    def forward(self, {}):", names.join(", "));
    for line in body {
        let _ = writeln!(text, "        {line}");
    }
    let _ = writeln!(text, "        return {last}");

    text.push_str("\n\ndef get_inputs():\n");
    let mut drawn = Vec::new();
    for value in &builder.values {
        if let ValueOrigin::Input { position } = value.origin {
            let (name, draw) = &builder.inputs[position];
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

fn setup(setup: &InitStatement, size: TaskSize, sizes: &mut Sizes) -> String {
    match setup {
        InitStatement::Module {
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
        InitStatement::Parameter {
            attribute,
            shape,
            start,
        } => {
            let dims = dims(shape, size);
            let value = match start {
                ParameterInit::Ones => format!("torch.ones({dims})"),
                ParameterInit::Zeros => format!("torch.zeros({dims})"),
                ParameterInit::Small => format!("torch.randn({dims}) * 0.02"),
                ParameterInit::Normal => format!("torch.randn({dims})"),
                ParameterInit::Positive => format!("torch.rand({dims}) + 0.5"),
            };
            format!("self.{attribute} = nn.Parameter({value})")
        }
    }
}

fn dims(shape: &Shape, size: TaskSize) -> String {
    let lengths: Vec<String> = shape.iter().map(|one| one.at(size).to_string()).collect();
    lengths.join(", ")
}

fn draw(draw: InputDistribution, shape: &Shape, size: TaskSize) -> String {
    let dims = dims(shape, size);
    match draw {
        InputDistribution::Normal => format!("torch.randn({dims})"),
        InputDistribution::Unit => format!("torch.rand({dims}) * 0.9 + 0.05"),
        InputDistribution::Below(bound) => {
            let comma = if shape.len() == 1 { "," } else { "" };
            format!("torch.randint(0, {}, ({dims}{comma}))", bound.at(size))
        }
        InputDistribution::Signs => format!("torch.sign(torch.randn({dims}))"),
        InputDistribution::Marks => format!("(torch.rand({dims}) > 0.5).float()"),
        InputDistribution::LogProbabilities => {
            format!("torch.log_softmax(torch.randn({dims}), dim=-1)")
        }
    }
}

/// The lines of `forward` and the name of what it returns.
///
/// A result takes over the name of a value that nobody needs any more, first of all that of its first operand: a plain
/// chain reads `x = f(x)` throughout.
fn body(builder: &GraphBuilder, result: ValueId, size: TaskSize) -> (Vec<String>, String) {
    let mut names: HashMap<ValueId, String> = HashMap::new();
    for (id, value) in builder.values.iter().enumerate() {
        match &value.origin {
            ValueOrigin::Input { position } => {
                names.insert(id, builder.inputs[*position].0.clone());
            }
            ValueOrigin::State { name } => {
                names.insert(id, format!("self.{name}"));
            }
            ValueOrigin::Applied(_) => {}
        }
    }
    let used_after = |at: usize, id: ValueId| {
        id == result || builder.body[at + 1..].iter().any(|later| uses(later, id))
    };
    let is_variable = |id: ValueId| !matches!(builder.values[id].origin, ValueOrigin::State { .. });
    let mut lines = Vec::new();
    let mut fresh = NAMES.iter();
    for (at, statement) in builder.body.iter().enumerate() {
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

fn uses(statement: &ForwardStatement, id: ValueId) -> bool {
    statement
        .operands
        .iter()
        .any(|(_, operand)| *operand == Operand::Value(id))
}

fn expression(
    statement: &ForwardStatement,
    names: &HashMap<ValueId, String>,
    size: TaskSize,
) -> String {
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
