//! Products of matrices: layers, attention, distances, tables.

use super::OperatorAttempt;
use crate::grammar::builder::{InputDistribution, OperatorCall, ParameterInit, ValueId};
use crate::grammar::size::{Argument, Extent, Shape};
use crate::seeds::{CallForm, ValueDomain};

impl OperatorAttempt<'_> {
    /// Not so many features that a weight would not fit.
    fn has_features(&self) -> bool {
        let most = 20_000;
        let features = self.last_extent();
        self.rank() >= 2
            && features
                .map(|length| (length <= most).then_some(length))
                .is_some()
            && features.at_least(4)
    }

    /// How many features come out: as many, half, twice.
    fn new_features(&mut self) -> Extent {
        let features = self.last_extent();
        let (times, by) = self.rng.choose_of([(1, 1), (1, 2), (2, 1), (1, 4), (3, 2)]);
        let rule = |length: u64| Some((length * times / by).clamp(8, 16384));
        features.map(rule).unwrap_or(features)
    }

    fn with_features(&self, features: Extent) -> Shape {
        let mut shape = self.shape().clone();
        let last = shape.len() - 1;
        shape[last] = features;
        shape
    }

    pub(super) fn linear(&mut self) -> Option<ValueId> {
        if !self.has_features() || self.rank() > 3 {
            return None;
        }
        let (from, to) = (self.last_extent(), self.new_features());
        let bias = self.rng.chance(75);
        let mut state = vec![("weight", vec![to, from], ParameterInit::Small)];
        if bias {
            state.push(("bias", vec![to], ParameterInit::Zeros));
        }
        let mut given = Vec::new();
        if self.seed.form == CallForm::Module {
            given = vec![
                ("in_features", Argument::Length(from)),
                ("out_features", Argument::Length(to)),
            ];
            if !bias {
                given.push(("bias", false.into()));
            }
        }
        self.apply(OperatorCall {
            given,
            state,
            ..self.call(&[self.value], self.with_features(to))
        })
    }

    pub(super) fn bilinear(&mut self) -> Option<ValueId> {
        // The weight is a cube.
        let small = |length: u64| (length <= 512).then_some(length);
        if self.rank() != 2 || self.last_extent().map(small).is_none() {
            return None;
        }
        let (from, to) = (self.last_extent(), Extent::fixed(64));
        let other = self
            .builder
            .input("y", self.shape().clone(), InputDistribution::Normal);
        let given = if self.seed.form == CallForm::Module {
            vec![
                ("in1_features", Argument::Length(from)),
                ("in2_features", Argument::Length(from)),
                ("out_features", Argument::Length(to)),
            ]
        } else {
            Vec::new()
        };
        self.apply(OperatorCall {
            given,
            state: vec![
                ("weight", vec![to, from, from], ParameterInit::Small),
                ("bias", vec![to], ParameterInit::Zeros),
            ],
            ..self.call(&[self.value, other], self.with_features(to))
        })
    }

    pub(super) fn product(&mut self) -> Option<ValueId> {
        if !self.has_features() {
            return None;
        }
        let (from, to) = (self.last_extent(), self.new_features());
        let shape = self.with_features(to);
        let by_parameter = self.rng.chance(50);
        match (self.seed.op.as_str(), self.rank()) {
            ("matmul", 2 | 3) | ("mm", 2) => {
                let other = self.factor(vec![from, to], by_parameter);
                self.apply(self.call(&[self.value, other], shape))
            }
            ("inner", 2) => {
                let other = self.factor(vec![to, from], by_parameter);
                self.apply(self.call(&[self.value, other], shape))
            }
            ("mv", 2) if self.is_last() => {
                let other = self.factor(vec![from], by_parameter);
                let rows = self.shape()[0];
                self.apply(self.call(&[self.value, other], vec![rows]))
            }
            ("bmm", 3) => {
                let batch = self.shape()[0];
                let other = self.factor(vec![batch, from, to], false);
                self.apply(self.call(&[self.value, other], shape))
            }
            ("addmm", 2) => {
                let added = self.factor(vec![to], true);
                let other = self.factor(vec![from, to], by_parameter);
                self.apply(self.call(&[added, self.value, other], shape))
            }
            ("baddbmm", 3) => {
                let batch = self.shape()[0];
                let added = self
                    .builder
                    .input("y", shape.clone(), InputDistribution::Normal);
                let other = self.factor(vec![batch, from, to], false);
                self.apply(self.call(&[added, self.value, other], shape))
            }
            _ => None,
        }
    }

    fn factor(&mut self, shape: Shape, parameter: bool) -> ValueId {
        if parameter {
            self.builder
                .parameter("weight", shape, ParameterInit::Small)
        } else {
            self.builder.input("b", shape, InputDistribution::Normal)
        }
    }

    /// Keys and values from the chain too, or given.
    pub(super) fn attention(&mut self) -> Option<ValueId> {
        let positions_fit = |length: u64| (length <= 4096).then_some(length);
        if self.rank() != 3 || self.shape()[1].map(positions_fit).is_none() {
            return None;
        }
        let shape = self.shape().clone();
        let (key, value) = if self.rng.chance(50) {
            (self.value, self.value)
        } else {
            let key = self
                .builder
                .input("key", shape.clone(), InputDistribution::Normal);
            (
                key,
                self.builder
                    .input("value", shape.clone(), InputDistribution::Normal),
            )
        };
        let mut given = Vec::new();
        if self.rng.chance(40) {
            given.push(("is_causal", true.into()));
        }
        self.apply(OperatorCall {
            given,
            ..self.call(&[self.value, key, value], shape)
        })
    }

    pub(super) fn distance(&mut self) -> Option<ValueId> {
        if self.rank() != 3 {
            return None;
        }
        let shape = self.shape().clone();
        let other = self
            .builder
            .input("y", shape.clone(), InputDistribution::Normal);
        // What is below has a number for it, and null; the function has a name.
        let mode = "use_mm_for_euclid_dist_if_necessary";
        self.apply(OperatorCall {
            functional: vec![("compute_mode", mode.into())],
            domain: ValueDomain::NonNegative,
            ..self.call(&[self.value, other], vec![shape[0], shape[1], shape[1]])
        })
    }

    /// A table's rows, as the first operator: the chain begins with indices instead.
    pub(super) fn lookup(&mut self) -> Option<ValueId> {
        if !self.builder.body.is_empty() || self.rank() != 3 {
            return None;
        }
        let shape = self.shape().clone();
        let (rows, features) = (Extent::fixed(1000), shape[2]);
        let indices = self.builder.replace_input(
            self.value,
            shape[..2].to_vec(),
            InputDistribution::Below(rows),
        );
        let given = if self.seed.form == CallForm::Module {
            vec![
                ("num_embeddings", Argument::Length(rows)),
                ("embedding_dim", Argument::Length(features)),
            ]
        } else {
            Vec::new()
        };
        self.apply(OperatorCall {
            given,
            state: vec![("weight", vec![rows, features], ParameterInit::Normal)],
            ..self.call(&[indices], shape)
        })
    }
}
