//! Actors and critics: models that train, whatever computes them.
//!
//! A network is told the gradient of a loss with respect to its outputs, the log-probabilities, entropies or values of tokens, and
//! backpropagates that to its parameters. So losses are written once, as pure functions ([`crate::algorithms`]).

mod lora_init;
mod model;
mod tensors;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;

use warpsmith_kernels::training::AdamWStep;
pub use warpsmith_kernels::training::{TokenScores, TokenSequence};
use warpsmith_model::export::{FloatType, write_folder};
use warpsmith_model::{Adapter, AdapterSettings, HostTensor, ModelError, Projection, Weights};

pub use self::model::{
    HeadedNetwork, LmHead, PolicyNetwork, TrainingModel, ValueHead, ValueNetwork,
};
use crate::TrainError;

/// Which of a model's parameters train.
#[derive(Debug, Clone)]
pub enum FineTuning {
    /// New LoRA matrices on these projections of every layer; the model itself is frozen. They are initialised as PEFT does, so
    /// that at first the model is unchanged.
    NewLora {
        settings: AdapterSettings,
        targets: Vec<Projection>,
    },
    /// The LoRA matrices of an existing adapter.
    Lora(Adapter),
    /// All parameters.
    Full,
}

/// The gradient of a loss with respect to scores.
pub type ScoreLossFn<'a> = dyn FnMut(&TokenScores) -> Result<TokenScores, TrainError> + 'a;
/// The gradient of a loss with respect to values.
pub type ValueLossFn<'a> = dyn FnMut(&[f32]) -> Result<Vec<f32>, TrainError> + 'a;

/// Names of a state's tensors that are the optimizer's begin with this.
pub const OPTIMIZER: &str = "optimizer.";

/// A model with trainable parameters and an optimizer.
///
/// Gradients accumulate until the next step, so that a batch may be larger than what fits into memory at once.
pub trait Trainable {
    /// One optimizer step with the accumulated gradient, which is then gone. Gives its norm before clipping. Where that is not
    /// finite, nothing is changed, and it is an error.
    fn step(&mut self, step: &AdamWStep) -> Result<f64, TrainError>;

    /// Everything it needs to go on elsewhere bit for bit, in `f32`, by name: parameters, and the optimizer's moments under
    /// [`OPTIMIZER`].
    fn state(&self) -> Result<BTreeMap<String, HostTensor>, TrainError>;

    /// Goes on from such a state. Names and shapes must be those of its own.
    fn restore(&mut self, state: &BTreeMap<String, HostTensor>) -> Result<(), TrainError>;

    /// Memory in use on the device that computes it, by whomever, where it has memory of its own.
    fn device_memory(&self) -> Result<Option<usize>, TrainError> {
        Ok(None)
    }
}

/// A snapshot of a policy, for whoever samples from it. Later training does not change it.
#[derive(Debug, Clone)]
pub enum Published {
    /// To be applied to the base model.
    Adapter(Adapter),
    /// The whole model.
    Weights(Box<Weights>),
}

impl Published {
    /// The trained model; `base` is what it was before.
    pub fn on(&self, base: &Weights) -> Result<Weights, TrainError> {
        match self {
            Self::Adapter(adapter) => Ok(base.stacked(adapter).map_err(ModelError::from)?),
            Self::Weights(weights) => Ok(weights.as_ref().clone()),
        }
    }

    /// Writes an adapter as PEFT does, or a whole model as transformers does. `origin` is where the base model was read from.
    pub fn save(&self, origin: &Path, folder: &Path) -> Result<(), TrainError> {
        match self {
            Self::Adapter(adapter) => Ok(adapter.save(folder).map_err(ModelError::from)?),
            Self::Weights(weights) => Ok(write_folder(weights, origin, folder, FloatType::F32)?),
        }
    }
}

/// A policy that trains.
pub trait Actor: Trainable {
    /// A snapshot of it.
    fn publish(&self) -> Result<Published, TrainError>;

    /// Scores of the loss tokens, sequence after sequence. No sequence sees another.
    fn score(&self, batch: &[&TokenSequence]) -> Result<TokenScores, TrainError>;

    /// Scores a batch and accumulates the gradient of a loss on these scores.
    fn backward(
        &mut self,
        batch: &[&TokenSequence],
        loss: &mut ScoreLossFn<'_>,
    ) -> Result<(), TrainError>;

    /// The same where the gradient with respect to each log-probability is known beforehand, which saves work for some. Gives the
    /// log-probabilities; those of tokens whose gradient is zero may be zero.
    fn backward_known(
        &mut self,
        batch: &[&TokenSequence],
        d_logprobs: &[f32],
    ) -> Result<Vec<f32>, TrainError> {
        let mut logprobs = Vec::new();
        self.backward(batch, &mut |scores| {
            logprobs.clone_from(&scores.logprobs);
            Ok(TokenScores {
                logprobs: d_logprobs.to_vec(),
                entropies: vec![0.0; d_logprobs.len()],
            })
        })?;
        Ok(logprobs)
    }
}

/// A value function that trains.
pub trait Critic: Trainable {
    /// The expected return before each loss token, sequence after sequence.
    fn values(&self, batch: &[&TokenSequence]) -> Result<Vec<f32>, TrainError>;

    /// Values a batch and accumulates the gradient of a loss on these values.
    fn backward(
        &mut self,
        batch: &[&TokenSequence],
        loss: &mut ValueLossFn<'_>,
    ) -> Result<(), TrainError>;
}
