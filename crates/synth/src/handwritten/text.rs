//! A module's source while it is written: constructor, `forward`, inputs and constants, in one person's style.

use std::fmt::Write;

use super::literal::{Extent, Literal, tuple};
use super::style::{ConstantStyle, WritingStyle};
use crate::splitmix::SplitMix64;

/// What an input holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InputDraw {
    Uniform,
    Normal,
    /// Integers from zero to below this.
    Below(u64),
    Boolean,
    /// One and minus one.
    Signs,
    /// Probabilities along the last dimension.
    Probabilities,
    /// A matrix with zeros on one side of its diagonal.
    Upper,
    Lower,
}

struct Argument {
    name: String,
    value: Literal,
    /// The words of a docstring.
    about: &'static str,
    /// What the signature says it is where nobody gives it.
    default: Option<Literal>,
}

struct Input {
    name: &'static str,
    extents: Vec<Extent>,
    draw: InputDraw,
}

/// The text so far. What is added in order of computation comes out in the order that Python needs.
pub(super) struct ModuleText<'a> {
    pub(super) rng: &'a mut SplitMix64,
    pub(super) style: WritingStyle,
    arguments: Vec<Argument>,
    constructor: Vec<String>,
    forward: Vec<(String, String)>,
    inputs: Vec<Input>,
    /// What each step does, in words.
    steps: Vec<String>,
    uses_functional: bool,
    uses_math: bool,
}

impl<'a> ModuleText<'a> {
    pub(super) fn new(rng: &'a mut SplitMix64) -> Self {
        let style = WritingStyle::draw(rng);
        Self {
            rng,
            style,
            arguments: Vec::new(),
            constructor: Vec::new(),
            forward: Vec::new(),
            inputs: Vec::new(),
            steps: Vec::new(),
            uses_functional: false,
            uses_math: false,
        }
    }

    pub(super) fn input(&mut self, name: &'static str, extents: Vec<Extent>, draw: InputDraw) {
        self.inputs.push(Input {
            name,
            extents,
            draw,
        });
    }

    /// A number that `__init__` uses: the name of an argument, or the number itself where this person writes it there.
    pub(super) fn made_with(
        &mut self,
        wanted: &str,
        about: &'static str,
        value: impl Into<Literal>,
    ) -> String {
        let value = value.into();
        if !self.style.arguments {
            return value.source();
        }
        // Two layers of the same width share the argument, as people have it.
        if let Some(known) = self
            .arguments
            .iter()
            .find(|known| known.name == wanted && known.value == value)
        {
            return known.name.clone();
        }
        let name = unique(wanted, |name| {
            self.arguments.iter().any(|known| known.name == name)
        });
        self.arguments.push(Argument {
            name: name.clone(),
            value,
            about,
            default: None,
        });
        name
    }

    /// The same, for an argument that the signature has a default for, if no other without one comes after it.
    pub(super) fn made_with_default(
        &mut self,
        wanted: &str,
        about: &'static str,
        value: impl Into<Literal>,
        default: impl Into<Literal>,
    ) -> String {
        let name = self.made_with(wanted, about, value);
        if let Some(argument) = self.arguments.iter_mut().find(|known| known.name == name) {
            argument.default = Some(default.into());
        }
        name
    }

    /// How many arguments at the end of the signature have a default there.
    fn defaults(&self) -> usize {
        let last = self.arguments.iter().rev();
        last.take_while(|argument| argument.default.is_some())
            .count()
    }

    /// Those that `get_init_inputs` gives: without the last ones that are as by default.
    fn given(&self) -> &[Argument] {
        let first = self.arguments.len() - self.defaults();
        let is_given = |argument: &Argument| argument.default.as_ref() != Some(&argument.value);
        let last = self.arguments[first..].iter().rposition(is_given);
        &self.arguments[..last.map_or(first, |last| first + last + 1)]
    }

    /// A number that `forward` uses: an attribute, or the number itself.
    pub(super) fn setting(
        &mut self,
        name: &str,
        about: &'static str,
        value: impl Into<Literal>,
    ) -> String {
        let value = value.into();
        if !self.style.settings {
            return value.source();
        }
        let given = self.made_with(name, about, value);
        if self.constructor.contains(&format!("self.{name} = {given}")) {
            return format!("self.{name}");
        }
        self.attribute(name, &given)
    }

    /// `self.NAME = VALUE`; the attribute as `forward` says it.
    pub(super) fn attribute(&mut self, wanted: &str, value: &str) -> String {
        let name = unique(wanted, |name| {
            let begin = format!("self.{name} = ");
            self.constructor.iter().any(|line| line.starts_with(&begin))
        });
        self.constructor.push(format!("self.{name} = {value}"));
        format!("self.{name}")
    }

    pub(super) fn has_argument(&self, name: &str, value: u64) -> bool {
        let value = Literal::from(value);
        let mut known = self.arguments.iter();
        known.any(|argument| argument.name == name && argument.value == value)
    }

    /// What the module does, in words, where no line of `forward` says it.
    pub(super) fn says(&mut self, about: &str) {
        self.steps.push(about.to_owned());
    }

    /// The path of a functional operator, as this person imports it.
    pub(super) fn functional(&mut self, name: &str) -> String {
        if self.style.imports_functional {
            self.uses_functional = true;
            format!("F.{name}")
        } else {
            format!("torch.nn.functional.{name}")
        }
    }

    pub(super) fn math(&mut self, expression: &str) -> String {
        self.uses_math = true;
        format!("math.{expression}")
    }

    /// A line of `forward` that gives `target` a value.
    pub(super) fn assign(&mut self, target: &str, expression: &str, about: impl Into<String>) {
        let about = about.into();
        self.forward
            .push((format!("{target} = {expression}"), about.clone()));
        if !about.is_empty() {
            self.steps.push(about);
        }
    }

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
        }
        let lines = self.style.spaces.joined(lines);
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
                _ => argument.name.clone(),
            })
            .collect();
        let _ = write!(
            text,
            "{gap}def get_init_inputs():\n    return [{}]\n",
            values.join(", ")
        );
        text
    }

    fn write_class(&mut self, text: &mut String, returned: &str) {
        if self.style.class_doc {
            let words = self.class_words();
            if self.style.long_docs && !self.arguments.is_empty() && self.rng.chance(60) {
                let _ = write!(text, "    \"\"\"\n    {words}\n\n    Args:\n");
                for argument in &self.arguments {
                    let _ = writeln!(
                        text,
                        "        {} ({}): {}",
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
        let line = |argument: &Argument| (argument.name.clone(), argument.value.source());
        self.given().iter().map(line).collect()
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
                InputDraw::Uniform => format!("torch.rand({dims})"),
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
        if self.rng.chance(50) {
            for (name, expression) in &draws {
                let _ = writeln!(text, "    {name} = {expression}");
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

/// `wanted`, or with a number after it if that is taken.
fn unique(wanted: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let mut name = wanted.to_owned();
    let mut number = 2;
    while is_taken(&name) {
        name = format!("{wanted}{number}");
        number += 1;
    }
    name
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
