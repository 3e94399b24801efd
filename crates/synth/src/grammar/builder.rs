//! A module while it is being composed: its values, what `__init__` sets up, what `forward` does.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use warpsmith_schema::Dtype;

use super::size::{Argument, Extent, Shape};
use crate::seeds::{CallForm, OperatorSeed, SeedVariant, ValueDomain};

/// Place of a value among all of them.
pub(crate) type ValueId = usize;

#[derive(Debug, Clone)]
pub(crate) struct GraphValueType {
    pub(crate) shape: Shape,
    pub(crate) dtype: Dtype,
    pub(crate) domain: ValueDomain,
    pub(crate) origin: ValueOrigin,
}

#[derive(Debug, Clone)]
pub(crate) enum ValueOrigin {
    Input { position: usize },
    State { name: String },
    Applied(Applied),
}

#[derive(Debug, Clone)]
pub(crate) struct Applied {
    pub(crate) op: String,
    pub(crate) inputs: Vec<Option<ValueId>>,
    pub(crate) arguments: BTreeMap<String, Argument>,
    pub(crate) result: usize,
}

/// What `get_inputs` puts into a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum InputDistribution {
    Normal,
    /// Away from zero and one: logarithms of it are finite.
    Unit,
    /// Integers from zero to below.
    Below(Extent),
    /// One and minus one.
    Signs,
    /// One and zero.
    Marks,
    /// Logarithms of probabilities along the last dimension.
    LogProbabilities,
}

impl InputDistribution {
    pub(crate) fn domain(self) -> ValueDomain {
        match self {
            Self::Normal | Self::LogProbabilities | Self::Below(_) => ValueDomain::Real,
            Self::Unit => ValueDomain::Unit,
            Self::Signs => ValueDomain::Symmetric,
            Self::Marks => ValueDomain::NonNegative,
        }
    }

    fn dtype(self) -> Dtype {
        match self {
            Self::Below(_) => Dtype::Int64,
            _ => Dtype::Float32,
        }
    }
}

/// What a parameter begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ParameterInit {
    Ones,
    Zeros,
    /// Small, as weights are.
    Small,
    Normal,
    /// Between a half and one and a half: to divide by.
    Positive,
}

#[derive(Debug, Clone)]
pub(crate) enum InitStatement {
    Module {
        attribute: String,
        class: String,
        arguments: Vec<(String, Argument)>,
    },
    Parameter {
        attribute: String,
        shape: Shape,
        start: ParameterInit,
    },
}

#[derive(Debug, Clone)]
pub(crate) enum Callee {
    /// A module of `self`.
    Attribute(String),
    Function(String),
    Method(String),
    Infix(&'static str),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Value(ValueId),
    Number(f64),
}

#[derive(Debug, Clone)]
pub(crate) struct ForwardStatement {
    pub(crate) target: ValueId,
    pub(crate) callee: Callee,
    /// With the keyword it is passed by, if any.
    pub(crate) operands: Vec<(Option<String>, Operand)>,
    pub(crate) keywords: Vec<(String, Argument)>,
    /// Which of several results.
    pub(crate) pick: Option<usize>,
}

/// An operator applied to values, before it is written down.
pub(crate) struct OperatorCall<'a> {
    pub(crate) seed: &'a OperatorSeed,
    pub(crate) variant: &'a SeedVariant,
    /// In the order of the functional form; parameters of a module are not among them.
    pub(crate) operands: Vec<Operand>,
    /// Arguments as they are spelled, in the order of the constructor.
    pub(crate) given: Vec<(&'static str, Argument)>,
    /// Where the functional form has another name or value than what is spelled.
    pub(crate) functional: Vec<(&'static str, Argument)>,
    /// Parameters and buffers: name and shape. A module has them itself; a function is given them.
    pub(crate) state: Vec<(&'static str, Shape, ParameterInit)>,
    /// Tensors after the first are passed by name: arguments stand between them.
    pub(crate) by_name: bool,
    pub(crate) shape: Shape,
    pub(crate) dtype: Dtype,
    pub(crate) domain: ValueDomain,
    pub(crate) pick: Option<usize>,
}

impl<'a> OperatorCall<'a> {
    pub(crate) fn new(
        seed: &'a OperatorSeed,
        variant: &'a SeedVariant,
        operands: &[ValueId],
        shape: Shape,
    ) -> Self {
        Self {
            seed,
            variant,
            operands: operands.iter().copied().map(Operand::Value).collect(),
            given: Vec::new(),
            functional: Vec::new(),
            state: Vec::new(),
            by_name: false,
            shape,
            dtype: Dtype::Float32,
            domain: ValueDomain::Real,
            pick: None,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct GraphBuilder {
    pub(crate) values: Vec<GraphValueType>,
    pub(crate) inputs: Vec<(String, InputDistribution)>,
    pub(crate) setup: Vec<InitStatement>,
    pub(crate) body: Vec<ForwardStatement>,
    /// Paths of the seeds, in order.
    pub(crate) seeds: Vec<String>,
    pub(crate) ops: Vec<String>,
    /// Names already given to arguments of `forward` and attributes of `self`.
    taken: BTreeSet<String>,
}

impl GraphBuilder {
    pub(crate) fn shape(&self, value: ValueId) -> &Shape {
        &self.values[value].shape
    }

    /// `wanted`, or with a number after it if that is taken.
    fn name(&mut self, wanted: &str) -> String {
        let mut name = wanted.to_owned();
        let mut number = 1;
        while !self.taken.insert(name.clone()) {
            number += 1;
            name = format!("{wanted}{number}");
        }
        name
    }

    fn value(
        &mut self,
        shape: Shape,
        dtype: Dtype,
        domain: ValueDomain,
        origin: ValueOrigin,
    ) -> ValueId {
        self.values.push(GraphValueType {
            shape,
            dtype,
            domain,
            origin,
        });
        self.values.len() - 1
    }

    pub(crate) fn input(&mut self, wanted: &str, shape: Shape, draw: InputDistribution) -> ValueId {
        let name = self.name(wanted);
        let position = self.inputs.len();
        self.inputs.push((name, draw));
        self.value(
            shape,
            draw.dtype(),
            draw.domain(),
            ValueOrigin::Input { position },
        )
    }

    /// An input becomes another, before anything was made of it.
    pub(crate) fn replace_input(
        &mut self,
        input: ValueId,
        shape: Shape,
        draw: InputDistribution,
    ) -> ValueId {
        let value = &mut self.values[input];
        value.shape = shape;
        value.dtype = draw.dtype();
        value.domain = draw.domain();
        if let ValueOrigin::Input { position } = value.origin {
            self.inputs[position].1 = draw;
        }
        input
    }

    pub(crate) fn parameter(
        &mut self,
        wanted: &str,
        shape: Shape,
        start: ParameterInit,
    ) -> ValueId {
        let attribute = self.name(wanted);
        self.setup.push(InitStatement::Parameter {
            attribute: attribute.clone(),
            shape: shape.clone(),
            start,
        });
        let domain = match start {
            ParameterInit::Positive => ValueDomain::Positive,
            _ => ValueDomain::Real,
        };
        let origin = ValueOrigin::State { name: attribute };
        self.value(shape, Dtype::Float32, domain, origin)
    }

    /// Writes the call down in the graph, in `__init__` and in `forward`.
    pub(crate) fn apply(&mut self, call: OperatorCall) -> ValueId {
        let seed = call.seed;
        self.seeds.push(seed.path.clone());
        self.ops.push(seed.op.clone());
        let mut arguments: BTreeMap<String, Argument> = call
            .variant
            .arguments
            .iter()
            .map(|(name, value)| (name.clone(), Argument::Fixed(value.clone())))
            .collect();
        for (name, value) in call.given.iter().chain(&call.functional) {
            let spelled_only = !arguments.contains_key(*name)
                && !call.functional.iter().any(|(known, _)| known == name);
            if !spelled_only {
                arguments.insert((*name).to_owned(), value.clone());
            }
        }
        let mut spelled: Vec<(String, Argument)> = call
            .given
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        for (name, value) in &call.variant.given {
            if !spelled.iter().any(|(known, _)| known == name) {
                spelled.push((name.clone(), Argument::Fixed(value.clone())));
            }
        }

        let keyword = |place: usize| match seed.tensors.get(place) {
            Some(name) if call.by_name && place > 0 => Some(name.clone()),
            _ => None,
        };
        let mut operands: Vec<(Option<String>, Operand)> = call
            .operands
            .iter()
            .enumerate()
            .map(|(place, operand)| (keyword(place), operand.clone()))
            .collect();
        let mut inputs: Vec<Option<ValueId>> = Vec::new();
        for (place, operand) in call.operands.iter().enumerate() {
            match operand {
                Operand::Value(id) => inputs.push(Some(*id)),
                // A number in a tensor's place is an argument.
                Operand::Number(number) => {
                    if let Some(name) = seed.tensors.get(place) {
                        arguments.insert(name.clone(), Argument::Fixed(Value::from(*number)));
                    }
                }
            }
        }
        let (callee, keywords) = match seed.form {
            CallForm::Module => {
                let attribute = self.name(&attribute_name(seed));
                for (name, shape, _) in &call.state {
                    let origin = ValueOrigin::State {
                        name: format!("{attribute}.{name}"),
                    };
                    let id = self.value(shape.clone(), Dtype::Float32, ValueDomain::Real, origin);
                    place(&mut inputs, seed, name, id);
                }
                self.setup.push(InitStatement::Module {
                    attribute: attribute.clone(),
                    class: spelled_path(&seed.path),
                    arguments: spelled,
                });
                (Callee::Attribute(attribute), Vec::new())
            }
            CallForm::Function | CallForm::Method => {
                for (name, shape, start) in &call.state {
                    let id = self.parameter(name, shape.clone(), *start);
                    place(&mut inputs, seed, name, id);
                    let keyword = call.by_name.then(|| (*name).to_owned());
                    operands.push((keyword, Operand::Value(id)));
                }
                let callee = if seed.form == CallForm::Method {
                    Callee::Method(seed.op.clone())
                } else {
                    Callee::Function(spelled_path(&seed.path))
                };
                (callee, spelled)
            }
        };
        // Optional tensors that are not given.
        let scalars = call
            .operands
            .iter()
            .filter(|one| matches!(one, Operand::Number(_)));
        let tensors = seed.tensors.len().saturating_sub(scalars.count());
        while inputs.len() < tensors {
            inputs.push(None);
        }
        let origin = ValueOrigin::Applied(Applied {
            op: seed.op.clone(),
            inputs,
            arguments,
            result: call.pick.unwrap_or(0),
        });
        let target = self.value(call.shape, call.dtype, call.domain, origin);
        self.body.push(ForwardStatement {
            target,
            callee,
            operands,
            keywords,
            pick: call.pick,
        });
        target
    }

    /// The last call as an operator between its two operands: `x + y`.
    pub(crate) fn spell_infix(&mut self, symbol: &'static str) {
        if let Some(statement) = self.body.last_mut() {
            statement.callee = Callee::Infix(symbol);
            statement.keywords.clear();
        }
    }
}

/// Puts a tensor where the functional form has the name.
fn place(inputs: &mut Vec<Option<ValueId>>, seed: &OperatorSeed, name: &str, id: ValueId) {
    let at = seed.tensors.iter().position(|known| known == name);
    let at = at.unwrap_or(inputs.len());
    while inputs.len() <= at {
        inputs.push(None);
    }
    inputs[at] = Some(id);
}

/// As it is written after `import torch.nn as nn` and `import torch.nn.functional as F`.
fn spelled_path(path: &str) -> String {
    if let Some(name) = path.strip_prefix("torch.nn.functional.") {
        return format!("F.{name}");
    }
    match path.strip_prefix("torch.nn.") {
        Some(name) => format!("nn.{name}"),
        None => path.to_owned(),
    }
}

/// What a module of this class is called: `conv2d`, `leaky_relu`.
fn attribute_name(seed: &OperatorSeed) -> String {
    match seed.op.as_str() {
        "batch_norm" | "instance_norm" | "group_norm" | "layer_norm" | "rms_norm" => "norm".into(),
        "interpolate" => "upsample".into(),
        op => op.to_owned(),
    }
}
