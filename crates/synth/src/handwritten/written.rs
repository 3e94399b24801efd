//! A module's source put together: what was added in the order of computation comes out in the order that Python needs.

use std::fmt::Write;

use super::literal::{Extent, Literal, tuple};
use super::style::ConstantStyle;
use super::text::{Argument, InputDraw, ModuleText, unique};

/// Names that a tuple's numbers are written with, where they have them.
const SHARED: [&str; 6] = [
    "out_channels",
    "out_features",
    "hidden_size",
    "output_size",
    "hidden_dim",
    "num_features",
];

impl ModuleText<'_> {
    /// The whole file, for a `forward` that ends with this expression.
    pub(super) fn finish(mut self, returned: &str) -> String {
        let constants = self.constants_of_arguments();
        let (draws, input_constants) = self.input_lines();
        let mut text = String::new();
        if self.uses_math {
            text.push_str("import math\n");
        }
        text.push_str("import torch\nimport torch.nn as nn\n");
        if self.uses_functional {
            text.push_str("import torch.nn.functional as F\n");
        }
        let mut lines = input_constants;
        for (name, value) in &constants {
            let line = format!("{name} = {value}");
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        if self.style.shuffled {
            self.rng.shuffle(&mut lines);
            // What is made of other constants comes after them.
            lines.sort_by_key(|line| is_made_of_names(line));
        }
        let lines = self.style.spaces.joined(lines);
        let lines = self.remarked(lines);
        let gap = if self.style.airy { "\n\n" } else { "\n" };
        if self.style.constants == ConstantStyle::Above && !lines.is_empty() {
            let _ = writeln!(text, "{gap}{}", lines.join("\n"));
        }
        let _ = writeln!(text, "{gap}class Model(nn.Module):");
        self.write_class(&mut text, returned);
        if self.style.constants == ConstantStyle::Below && !lines.is_empty() {
            let _ = writeln!(text, "{gap}{}", lines.join("\n"));
        }
        let _ = write!(text, "{gap}def get_inputs():\n{draws}");
        let values: Vec<String> = self
            .given()
            .iter()
            .map(|argument| match self.style.constants {
                ConstantStyle::None => argument.value.source(),
                _ if self.is_bare(argument) => argument.value.source(),
                _ if !argument.parts.is_empty() => format!("({})", argument.parts.join(", ")),
                _ => argument.name.clone(),
            })
            .collect();
        let remark = match values.len() {
            _ if self.rng.chance(65) => "",
            0 => "  # nothing to set up with",
            _ => "  # for the constructor",
        };
        let _ = write!(
            text,
            "{gap}def get_init_inputs():\n    return [{}]{remark}\n",
            values.join(", ")
        );
        text
    }

    /// Remarks beside constants, and names that are aligned, as some people have them.
    fn remarked(&mut self, lines: Vec<String>) -> Vec<String> {
        const WORDS: [&str; 6] = [
            "large enough to matter",
            "more work",
            "as in practice",
            "not a power of two",
            "kept small",
            "a longer one",
        ];
        let width = lines
            .iter()
            .filter_map(|line| Some(line.split_once(" = ")?.0.len()))
            .max();
        let mut remarked = Vec::new();
        if !lines.is_empty() && self.rng.chance(12) {
            remarked.push(
                self.rng
                    .choose_of(["# Sizes", "# To try it out", "# Configuration"])
                    .to_owned(),
            );
        }
        for mut line in lines {
            if let (true, Some((name, value)), Some(width)) =
                (self.style.aligned, line.split_once(" = "), width)
            {
                line = format!("{name:width$} = {value}");
            }
            if self.style.remarks && self.rng.chance(25) {
                line = format!("{line}  # {}", self.rng.choose_of(WORDS));
            }
            remarked.push(line);
        }
        remarked
    }

    /// Whether an argument stands in `get_init_inputs` as it is, without a constant.
    fn is_bare(&self, argument: &Argument) -> bool {
        self.style.bare && argument.parts.is_empty() && !self.names_an_extent(&argument.name)
    }

    fn names_an_extent(&self, name: &str) -> bool {
        let mut extents = self.inputs.iter().flat_map(|input| &input.extents);
        extents.any(|extent| extent.name == name)
    }

    /// A tuple in the words of the arguments before it: `(out_channels, 1, 1)`.
    fn in_words(&self, argument: &Argument) -> String {
        let Literal::Tuple(numbers) = &argument.value else {
            return argument.value.source();
        };
        let word = |number: &i64| {
            let given = self.given();
            let mut before = given.iter().take_while(|one| one.name != argument.name);
            let named = before.find(|one| {
                SHARED.contains(&one.name.as_str())
                    && one.value == Literal::Int(*number)
                    && *number > 1
                    && !self.is_bare(one)
            });
            named.map_or_else(|| number.to_string(), |one| one.name.clone())
        };
        let words: Vec<String> = numbers.iter().map(word).collect();
        tuple(&words)
    }

    fn write_class(&mut self, text: &mut String, returned: &str) {
        if self.style.class_doc {
            let words = self.class_words();
            if self.style.long_docs && !self.arguments.is_empty() && self.rng.chance(60) {
                let _ = write!(text, "    \"\"\"\n    {words}\n\n    Args:\n");
                for argument in &self.arguments {
                    let default = match &argument.default {
                        Some(default) => format!(", {} where it is not given", default.source()),
                        None => String::new(),
                    };
                    let _ = writeln!(
                        text,
                        "        {} ({}): {}{default}",
                        argument.name,
                        argument.value.annotation(),
                        argument.about
                    );
                }
                text.push_str("    \"\"\"\n");
            } else if self.rng.chance(60) {
                let _ = write!(text, "    \"\"\"\n    {words}\n    \"\"\"\n");
            } else {
                let _ = writeln!(text, "    \"\"\"{words}\"\"\"");
            }
            if self.style.airy && self.rng.chance(50) {
                text.push('\n');
            }
        }
        if !self.constructor.is_empty() || !self.arguments.is_empty() || self.style.empty_init {
            let first = self.arguments.len() - self.defaults();
            let arguments: String = self
                .arguments
                .iter()
                .enumerate()
                .map(|(place, argument)| {
                    let name = &argument.name;
                    let default = argument.default.as_ref().filter(|_| place >= first);
                    let default = default.map(Literal::source);
                    match (self.style.hints, default) {
                        (true, Some(default)) => {
                            format!(", {name}: {} = {default}", argument.value.annotation())
                        }
                        (true, None) => format!(", {name}: {}", argument.value.annotation()),
                        (false, Some(default)) => format!(", {name}={default}"),
                        (false, None) => format!(", {name}"),
                    }
                })
                .collect();
            let _ = writeln!(text, "    def __init__(self{arguments}):");
            if self.style.init_doc && !self.arguments.is_empty() {
                text.push_str("        \"\"\"\n        Sets the module up.\n\n        Args:\n");
                for argument in &self.arguments {
                    let _ = writeln!(
                        text,
                        "            {} ({}): {}.",
                        argument.name,
                        argument.value.annotation(),
                        argument.about
                    );
                }
                text.push_str("        \"\"\"\n");
            }
            text.push_str(if self.style.old_super {
                "        super(Model, self).__init__()\n"
            } else {
                "        super().__init__()\n"
            });
            for line in &self.constructor {
                let _ = writeln!(text, "        {line}");
            }
            text.push('\n');
        }
        let hint = if self.style.hints {
            ": torch.Tensor"
        } else {
            ""
        };
        let mut inputs = String::new();
        for input in &self.inputs {
            let _ = write!(inputs, ", {}{hint}", input.name);
        }
        let result = if self.style.hints {
            " -> torch.Tensor"
        } else {
            ""
        };
        let _ = writeln!(text, "    def forward(self{inputs}){result}:");
        if self.style.forward_doc {
            self.write_forward_doc(text);
        }
        for (line, about) in &self.forward {
            if self.style.comments && !about.is_empty() && self.rng.chance(60) {
                let _ = if self.style.comments_above {
                    writeln!(text, "        # {about}\n        {line}")
                } else {
                    writeln!(text, "        {line}  # {about}")
                };
            } else {
                let _ = writeln!(text, "        {line}");
            }
        }
        let _ = writeln!(text, "        return {returned}");
    }

    fn class_words(&mut self) -> String {
        let steps = match self.steps.split_last() {
            None => "one operation".to_owned(),
            Some((only, [])) => only.clone(),
            Some((last, before)) => format!("{} and {last}", before.join(", ")),
        };
        let begin = self.rng.choose_of([
            "Computes",
            "Block with",
            "Applies",
            "Layer:",
            "Runs, in this order:",
            "Module for",
        ]);
        format!("{begin} {steps}.")
    }

    fn write_forward_doc(&mut self, text: &mut String) {
        let shapes: Vec<(&str, String)> = self
            .inputs
            .iter()
            .map(|input| {
                let names: Vec<&str> = input.extents.iter().map(|extent| extent.name).collect();
                (input.name, format!("({})", names.join(", ")))
            })
            .collect();
        let verb = self.rng.choose_of(["Takes", "Expects", "Input:"]);
        if self.style.long_docs {
            text.push_str("        \"\"\"\n        Args:\n");
            for (name, shape) in &shapes {
                let _ = writeln!(
                    text,
                    "            {name} (torch.Tensor): tensor of shape {shape}"
                );
            }
            text.push_str(
                "\n        Returns:\n            torch.Tensor: the result\n        \"\"\"\n",
            );
        } else {
            let all: Vec<String> = shapes
                .iter()
                .map(|(name, shape)| format!("{name} {shape}"))
                .collect();
            let _ = writeln!(text, "        \"\"\"{verb} {}.\"\"\"", all.join(" and "));
        }
    }

    fn constants_of_arguments(&self) -> Vec<(String, String)> {
        if self.style.constants == ConstantStyle::None {
            return Vec::new();
        }
        let mut lines = Vec::new();
        for argument in self.given() {
            match (&argument.value, argument.parts) {
                _ if self.is_bare(argument) => {}
                (Literal::Tuple(numbers), parts) if !parts.is_empty() => {
                    let each = parts.iter().zip(numbers);
                    lines.extend(
                        each.map(|(name, number)| ((*name).to_owned(), number.to_string())),
                    );
                }
                _ if self.style.derived => {
                    lines.push((argument.name.clone(), self.in_words(argument)));
                }
                (value, _) => lines.push((argument.name.clone(), value.source())),
            }
        }
        lines
    }

    /// The body of `get_inputs` and the constants it needs.
    fn input_lines(&mut self) -> (String, Vec<String>) {
        let mut constants: Vec<(String, u64)> = Vec::new();
        let mut draws: Vec<(String, String)> = Vec::new();
        let mut shapes: Vec<String> = Vec::new();
        for input in &self.inputs {
            let mut dims = Vec::new();
            let together = self.style.shape_constant
                && self.style.constants != ConstantStyle::None
                && input.extents.len() > 1;
            let (apart, rest) =
                input
                    .extents
                    .split_at(if together { 1 } else { input.extents.len() });
            for extent in apart {
                dims.push(match self.style.constants {
                    ConstantStyle::None => extent.length.to_string(),
                    _ => named(extent, &self.arguments, &mut constants),
                });
            }
            if !rest.is_empty() {
                let lengths: Vec<u64> = rest.iter().map(|extent| extent.length).collect();
                let value = tuple(&lengths);
                let known = shapes.iter().position(|known| *known == value);
                let number = known.unwrap_or_else(|| {
                    shapes.push(value);
                    shapes.len() - 1
                });
                dims.push(format!("*{}", shape_name(number)));
            }
            let dims = dims.join(", ");
            let comma = if input.extents.len() == 1 { "," } else { "" };
            let expression = match input.draw {
                InputDraw::Uniform | InputDraw::Symmetric => format!("torch.rand({dims})"),
                InputDraw::Scaled => format!("torch.rand({dims}) * scale"),
                InputDraw::Normal => format!("torch.randn({dims})"),
                InputDraw::Below(bound) => format!("torch.randint(0, {bound}, ({dims}{comma}))"),
                InputDraw::Boolean => format!("torch.randint(0, 2, ({dims}{comma})).bool()"),
                InputDraw::Signs => {
                    format!("torch.randint(0, 2, ({dims}{comma})).float() * 2 - 1")
                }
                InputDraw::Probabilities => format!("torch.rand({dims}).softmax(dim=-1)"),
                InputDraw::Upper => format!("torch.triu(torch.rand({dims}))"),
                InputDraw::Lower => format!("torch.tril(torch.rand({dims}))"),
            };
            draws.push((input.name.to_owned(), expression));
        }
        let mut text = String::new();
        let has = |draw: InputDraw| self.inputs.iter().any(|input| input.draw == draw);
        let symmetric = has(InputDraw::Symmetric);
        if has(InputDraw::Scaled) {
            text.push_str("    scale = torch.rand(())\n");
        }
        if symmetric || self.rng.chance(50) {
            for (input, (name, expression)) in self.inputs.iter().zip(&draws) {
                let _ = writeln!(text, "    {name} = {expression}");
                if input.draw == InputDraw::Symmetric {
                    let _ = writeln!(text, "    {name} = ({name} + {name}.T) / 2");
                }
            }
            let names: Vec<&str> = draws.iter().map(|(name, _)| name.as_str()).collect();
            let _ = writeln!(text, "    return [{}]", names.join(", "));
        } else {
            let all: Vec<&str> = draws.iter().map(|(_, drawn)| drawn.as_str()).collect();
            let _ = writeln!(text, "    return [{}]", all.join(", "));
        }
        let mut lines = Vec::new();
        for (name, length) in constants {
            let factor = self.rng.choose_of([2, 4, 8]);
            lines.push(
                if self.style.products && length >= 512 && length % factor == 0 {
                    format!("{name} = {} * {factor}", length / factor)
                } else {
                    format!("{name} = {length}")
                },
            );
        }
        let shapes = shapes.iter().enumerate();
        lines.extend(shapes.map(|(number, value)| format!("{} = {value}", shape_name(number))));
        (text, lines)
    }
}

/// Whether a constant is a tuple that names others.
fn is_made_of_names(line: &str) -> bool {
    let value = line.split_once(" = ").map_or("", |(_, value)| value);
    value.starts_with('(') && value.contains(char::is_alphabetic)
}

/// What the extents of an input after the first are called together.
fn shape_name(number: usize) -> String {
    match number {
        0 => "input_shape".to_owned(),
        other => format!("input_shape{}", other + 1),
    }
}

/// The constant for an extent: that of an argument with the same name and value, or one of its own.
fn named(extent: &Extent, arguments: &[Argument], constants: &mut Vec<(String, u64)>) -> String {
    let value = Literal::from(extent.length);
    let argument = |name: &str| arguments.iter().find(|argument| argument.name == name);
    let constant = |name: &str| constants.iter().find(|(known, _)| known == name);
    let name = unique(extent.name, |name| match (argument(name), constant(name)) {
        (Some(argument), _) => argument.value != value,
        (None, Some((_, length))) => *length != extent.length,
        (None, None) => false,
    });
    if argument(&name).is_none() && constant(&name).is_none() {
        constants.push((name.clone(), extent.length));
    }
    name
}
