//! Normalisations: along rows, in groups of channels, a channel at a time.

use super::OperatorAttempt;
use crate::grammar::builder::{OperatorCall, ParameterInit, ValueId};
use crate::grammar::size::Argument;
use crate::seeds::CallForm;

impl OperatorAttempt<'_> {
    pub(super) fn row_normalisation(&mut self) -> Option<ValueId> {
        let shape = self.shape().clone();
        if shape.len() < 2 || !self.last_extent().at_least(4) {
            return None;
        }
        let features = self.last_extent();
        let mut state = vec![("weight", vec![features], ParameterInit::Ones)];
        if self.seed.op == "layer_norm" {
            state.push(("bias", vec![features], ParameterInit::Zeros));
        }
        self.apply(OperatorCall {
            given: vec![("normalized_shape", Argument::Lengths(vec![features]))],
            state,
            by_name: true,
            ..self.call(&[self.value], shape)
        })
    }

    pub(super) fn group_normalisation(&mut self) -> Option<ValueId> {
        let shape = self.shape().clone();
        let groups = self.rng.choose_of([2, 4, 8]);
        let channels = *shape.get(1)?;
        if shape.len() == 1 || !channels.divisible(groups) || !channels.at_least(2 * groups) {
            return None;
        }
        let mut given = vec![("num_groups", Argument::from(groups))];
        if self.seed.form == CallForm::Module {
            given.push(("num_channels", Argument::Length(channels)));
        }
        self.apply(OperatorCall {
            given,
            state: vec![
                ("weight", vec![channels], ParameterInit::Ones),
                ("bias", vec![channels], ParameterInit::Zeros),
            ],
            by_name: true,
            ..self.call(&[self.value], shape)
        })
    }

    pub(super) fn channel_normalisation(&mut self) -> Option<ValueId> {
        let shape = self.shape().clone();
        let rank = shape.len();
        let channels = *shape.get(1)?;
        let batch = self.seed.op == "batch_norm";
        if self.seed.form == CallForm::Function {
            // A batch's statistics are buffers, which only a module has; without parameters an instance's are free.
            let ready = !batch && rank >= 3;
            return ready.then(|| self.builder.apply(self.call(&[self.value], shape)));
        }
        let fits = match self.seed.path.chars().rev().nth(1) {
            Some('1') => rank == 3 || (rank == 2 && batch),
            Some('2') => rank == 4,
            Some('3') => rank == 5,
            _ => false,
        };
        // One element has no variance.
        if !fits || (!batch && !shape[2..].iter().all(|space| space.at_least(2))) {
            return None;
        }
        let affine = batch || self.rng.chance(60);
        let mut given = vec![("num_features", Argument::Length(channels))];
        let mut state = Vec::new();
        if batch {
            state.push(("running_mean", vec![channels], ParameterInit::Zeros));
            state.push(("running_var", vec![channels], ParameterInit::Ones));
        }
        if affine {
            state.push(("weight", vec![channels], ParameterInit::Ones));
            state.push(("bias", vec![channels], ParameterInit::Zeros));
        }
        if !batch {
            given.push(("affine", affine.into()));
        }
        self.apply(OperatorCall {
            given,
            state,
            ..self.call(&[self.value], shape)
        })
    }
}
