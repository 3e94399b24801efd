//! Element by element: activations, arithmetic with another operand, choices by a mask.

use warpsmith_schema::Dtype;

use super::OperatorAttempt;
use crate::grammar::builder::{
    InputDistribution, Operand, OperatorCall, ParameterInit, ValueId, ValueOrigin,
};
use crate::grammar::size::Shape;
use crate::seeds::{OperatorFamily, ValueDomain};

/// Operators that change nothing where no element is negative.
const IDLE_ABOVE_ZERO: [&str; 8] = [
    "relu",
    "abs",
    "leaky_relu",
    "elu",
    "celu",
    "selu",
    "threshold",
    "prelu",
];
/// Operators with steps between which they are flat: after another bounded one little is left of the input.
const FLAT: [&str; 6] = ["sign", "ceil", "floor", "round", "trunc", "heaviside"];

impl OperatorAttempt<'_> {
    pub(super) fn pointwise(&mut self) -> Option<ValueId> {
        let domain = self.typed().domain;
        let op = self.seed.op.as_str();
        if !domain.within(self.variant.domain) {
            return None;
        }
        if domain.within(ValueDomain::NonNegative) && IDLE_ABOVE_ZERO.contains(&op) {
            return None;
        }
        if domain.within(ValueDomain::Symmetric) && (FLAT.contains(&op) || op.contains("hardtanh"))
        {
            return None;
        }
        // The identity on finite numbers.
        if op == "nan_to_num" {
            return None;
        }
        self.apply(OperatorCall {
            domain: self.variant.image,
            ..self.call(&[self.value], self.shape().clone())
        })
    }

    pub(super) fn binary(&mut self) -> Option<ValueId> {
        let domain = self.variant.domain;
        if !self.typed().domain.within(domain) {
            return None;
        }
        let divides = matches!(
            self.seed.op.as_str(),
            "div" | "floor_divide" | "fmod" | "remainder"
        );
        let shape = self.shape().clone();
        if self.seed.scalar && self.rng.chance(30) {
            let number = match self.seed.op.as_str() {
                "pow" | "float_power" => self.rng.choose_of([2.0, 3.0, 0.5, 1.5]),
                _ => self.rng.choose_of([0.5, 2.0, 0.1, 1.5, 0.25, 3.0]),
            };
            let id = self.builder.apply(OperatorCall {
                operands: vec![Operand::Value(self.value), Operand::Number(number)],
                ..self.call(&[self.value], shape)
            });
            self.spell();
            return Some(id);
        }
        let other = self.operand(&shape, domain, divides)?;
        let id = self.builder.apply(OperatorCall {
            // With a narrower second operand the image can only be narrower.
            domain: if divides {
                ValueDomain::Real
            } else {
                self.variant.image
            },
            ..self.call(&[self.value, other], shape)
        });
        self.spell();
        Some(id)
    }

    pub(super) fn ternary(&mut self) -> Option<ValueId> {
        let shape = self.shape().clone();
        let divides = self.seed.op == "addcdiv";
        let first = self.operand(&shape, ValueDomain::Real, false)?;
        let second = self.operand(&shape, ValueDomain::Real, divides)?;
        self.apply(self.call(&[self.value, first, second], shape))
    }

    /// Sums and products are mostly written with the operators of the language.
    fn spell(&mut self) {
        let plain = self.variant.given.is_empty();
        let symbol = match self.seed.op.as_str() {
            "add" => "+",
            "sub" => "-",
            "mul" => "*",
            "div" => "/",
            _ => return,
        };
        if plain && self.rng.chance(50) {
            self.builder.spell_infix(symbol);
        }
    }

    /// A second operand: an earlier value (a residual), a parameter that is broadcast, or another input.
    fn operand(&mut self, shape: &Shape, domain: ValueDomain, divides: bool) -> Option<ValueId> {
        if !divides && domain == ValueDomain::Real && self.rng.chance(35) {
            let earlier: Vec<ValueId> = (0..self.builder.values.len())
                .filter(|id| {
                    let value = &self.builder.values[*id];
                    *id != self.value
                        && value.shape == *shape
                        && value.dtype == Dtype::Float32
                        && !matches!(value.origin, ValueOrigin::State { .. })
                })
                .collect();
            if let Some(residual) = self.rng.choose(&earlier) {
                return Some(*residual);
            }
        }
        let positive = divides || domain != ValueDomain::Real;
        if self.rng.chance(50) && (domain == ValueDomain::Real || divides) {
            let start = if positive {
                ParameterInit::Positive
            } else {
                ParameterInit::Normal
            };
            let name = self.rng.choose_of(["scale", "shift", "gate"]);
            let shape = self.broadcast(shape)?;
            return Some(self.builder.parameter(name, shape, start));
        }
        let draw = if positive {
            InputDistribution::Unit
        } else {
            InputDistribution::Normal
        };
        let shape = if self.rng.chance(70) {
            shape.clone()
        } else {
            self.broadcast(shape)?
        };
        Some(self.builder.input("y", shape, draw))
    }

    /// A smaller shape that is broadcast to this one: one value a feature, or one a channel.
    fn broadcast(&mut self, shape: &Shape) -> Option<Shape> {
        use crate::grammar::size::Extent;
        let rank = shape.len();
        if rank >= 4 || (rank == 3 && self.rng.chance(40)) {
            let mut broadcast = vec![*shape.get(1)?];
            broadcast.resize(rank - 1, Extent::fixed(1));
            return Some(broadcast);
        }
        Some(vec![*shape.last()?])
    }

    /// A mask of the chain's own value: `x > 0.5`.
    fn mask(&mut self) -> Option<ValueId> {
        if self.left < 2 {
            return None;
        }
        let comparisons = self.seeds.of(OperatorFamily::Predicate);
        let comparisons: Vec<_> = comparisons
            .into_iter()
            .flatten()
            .filter(|seed| matches!(seed.op.as_str(), "gt" | "lt" | "ge" | "le"))
            .collect();
        let seed = *self.rng.choose(&comparisons)?;
        let variant = seed.variants.first()?;
        let (positive, number) = (
            self.typed().domain.within(ValueDomain::NonNegative),
            self.rng.choose_of([0.0, 0.5, 0.25, -0.5]),
        );
        let number = if positive { 0.5 } else { number };
        let shape = self.shape().clone();
        let mask = self.builder.apply(OperatorCall {
            operands: vec![Operand::Value(self.value), Operand::Number(number)],
            dtype: Dtype::Bool,
            ..OperatorCall::new(seed, variant, &[self.value], shape)
        });
        if self.rng.chance(50) {
            self.builder.spell_infix(match seed.op.as_str() {
                "gt" => ">",
                "lt" => "<",
                "ge" => ">=",
                _ => "<=",
            });
        }
        Some(mask)
    }

    pub(super) fn masked(&mut self) -> Option<ValueId> {
        let mask = self.mask()?;
        let value = self.rng.choose_of([0.0, -1.0, 0.5]);
        self.apply(OperatorCall {
            given: vec![("value", value.into())],
            ..self.call(&[self.value, mask], self.shape().clone())
        })
    }

    pub(super) fn choose(&mut self) -> Option<ValueId> {
        let mask = self.mask()?;
        let shape = self.shape().clone();
        let other = self.operand(&shape, ValueDomain::Real, false)?;
        self.apply(self.call(&[mask, self.value, other], shape))
    }

    pub(super) fn learned_slope(&mut self) -> Option<ValueId> {
        let shape = self.shape().clone();
        if shape.len() < 2 || self.typed().domain.within(ValueDomain::NonNegative) {
            return None;
        }
        let channels = shape[1];
        let constructor = if self.seed.form == crate::seeds::CallForm::Module {
            vec![(
                "num_parameters",
                crate::grammar::size::Argument::Length(channels),
            )]
        } else {
            Vec::new()
        };
        self.apply(OperatorCall {
            given: constructor,
            state: vec![("weight", vec![channels], ParameterInit::Small)],
            ..self.call(&[self.value], shape)
        })
    }
}
