//! A module's source while it is written: constructor, `forward`, inputs and constants, in one person's style.

use super::literal::{Extent, Literal};
use super::style::WritingStyle;
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
    /// A matrix that is its own transpose.
    Symmetric,
    /// Times a number that is drawn too.
    Scaled,
}

pub(super) struct Argument {
    pub(super) name: String,
    pub(super) value: Literal,
    /// The words of a docstring.
    pub(super) about: &'static str,
    /// What the signature says it is where nobody gives it.
    pub(super) default: Option<Literal>,
    /// Names of the numbers of a tuple, where each has a constant of its own.
    pub(super) parts: &'static [&'static str],
}

pub(super) struct Input {
    pub(super) name: &'static str,
    pub(super) extents: Vec<Extent>,
    pub(super) draw: InputDraw,
}

/// The text so far. What is added in order of computation comes out in the order that Python needs.
pub(super) struct ModuleText<'a> {
    pub(super) rng: &'a mut SplitMix64,
    pub(super) style: WritingStyle,
    pub(super) arguments: Vec<Argument>,
    pub(super) constructor: Vec<String>,
    pub(super) forward: Vec<(String, String)>,
    pub(super) inputs: Vec<Input>,
    /// What each step does, in words.
    pub(super) steps: Vec<String>,
    pub(super) uses_functional: bool,
    pub(super) uses_math: bool,
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
            parts: &[],
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

    /// The same, for a tuple whose numbers are constants of these names.
    pub(super) fn made_with_parts(
        &mut self,
        wanted: &str,
        about: &'static str,
        value: Vec<i64>,
        parts: &'static [&'static str],
    ) -> String {
        let name = self.made_with(wanted, about, Literal::Tuple(value));
        if let Some(argument) = self.arguments.iter_mut().find(|known| known.name == name) {
            argument.parts = parts;
        }
        name
    }

    /// How many arguments at the end of the signature have a default there.
    pub(super) fn defaults(&self) -> usize {
        let last = self.arguments.iter().rev();
        last.take_while(|argument| argument.default.is_some())
            .count()
    }

    /// Those that `get_init_inputs` gives: without the last ones that are as by default.
    pub(super) fn given(&self) -> &[Argument] {
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

    /// Whether there is an argument of this name that is true or false.
    pub(super) fn has_flag(&self, name: &str) -> bool {
        let is_flag = |one: &Argument| one.name == name && matches!(one.value, Literal::Bool(_));
        self.arguments.iter().any(is_flag)
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
}

/// `wanted`, or with a number after it if that is taken.
pub(super) fn unique(wanted: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let mut name = wanted.to_owned();
    let mut number = 2;
    while is_taken(&name) {
        name = format!("{wanted}{number}");
        number += 1;
    }
    name
}
