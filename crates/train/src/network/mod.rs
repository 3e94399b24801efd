//! Models that learn, whatever computes them.
//!
//! A network is told how a loss changes with what it said of each token, and finds by itself how the loss changes with its
//! parameters. So losses are written once, and a device only has to know how to run a model forward and back.

pub mod cpu;

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Tensor;
use warpsmith_model::export::{FloatType, write_folder};
use warpsmith_model::{Adapter, ModelError, Weights};

use crate::TrainError;
use crate::optimizer::Update;

/// Tokens in a row, of which some were said by the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    tokens: Vec<u32>,
    said: Vec<usize>,
}

impl Sequence {
    /// `mask` is true for tokens that were said. The first has nothing before it that it could follow from: it counts as
    /// given.
    pub fn new(tokens: Vec<u32>, mask: &[bool]) -> Self {
        assert_eq!(tokens.len(), mask.len());
        let said = (1..tokens.len()).filter(|place| mask[*place]).collect();
        Self { tokens, said }
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Places of the tokens that were said.
    pub fn said(&self) -> &[usize] {
        &self.said
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// What an actor thinks of tokens that were said, one number each, sequence after sequence. As slopes: how a loss changes
/// with each of them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scores {
    pub logprobs: Vec<f32>,
    /// Of the distribution that the token was drawn from.
    pub entropies: Vec<f32>,
}

/// Says how a loss changes with scores.
pub type ScoreLoss<'a> = dyn FnMut(&Scores) -> Result<Scores, TrainError> + 'a;
/// Says how a loss changes with values.
pub type ValueLossOf<'a> = dyn FnMut(&[f32]) -> Result<Vec<f32>, TrainError> + 'a;

/// Names of a state's tensors that are the optimiser's begin with this.
pub const OPTIMIZER: &str = "optimizer.";

/// A model with parameters and an optimiser.
///
/// Gradients add up until the next update, so that a batch may be larger than what fits at once.
pub trait Trainable {
    /// One step with the gradients added up, which are then gone. Gives their length before it was shortened. Where that is
    /// not finite, nothing is changed.
    fn update(&mut self, update: &Update) -> Result<f64, TrainError>;

    /// Everything it would need to go on elsewhere bit for bit, in `f32`, by name: parameters, and the optimiser's means
    /// under [`OPTIMIZER`].
    fn state(&self) -> Result<BTreeMap<String, Tensor>, TrainError>;

    /// Takes such a state. Names and shapes must be those of its own.
    fn restore(&mut self, state: &BTreeMap<String, Tensor>) -> Result<(), TrainError>;
}

/// What a policy has learnt, for whoever runs it. It does not change with what is learnt later.
#[derive(Debug, Clone)]
pub enum Published {
    /// To lie on the model it was learnt beside.
    Adapter(Adapter),
    /// The whole model.
    Weights(Box<Weights>),
}

impl Published {
    /// The model that learnt with what it has learnt; `before` is what it was.
    pub fn on(&self, before: &Weights) -> Result<Weights, TrainError> {
        match self {
            Self::Adapter(adapter) => Ok(before.stacked(adapter).map_err(ModelError::from)?),
            Self::Weights(weights) => Ok(weights.as_ref().clone()),
        }
    }

    /// Writes an adapter as PEFT does, or a whole model as transformers does. `origin` is where the model was read from.
    pub fn save(&self, origin: &Path, folder: &Path) -> Result<(), TrainError> {
        match self {
            Self::Adapter(adapter) => Ok(adapter.save(folder).map_err(ModelError::from)?),
            Self::Weights(weights) => Ok(write_folder(weights, origin, folder, FloatType::F32)?),
        }
    }
}

/// A policy that learns.
pub trait Actor: Trainable {
    /// What it has learnt so far.
    fn publish(&self) -> Result<Published, TrainError>;

    /// No sequence sees anything of another.
    fn score(&self, batch: &[&Sequence]) -> Result<Scores, TrainError>;

    /// The same, and adds the gradient of a loss.
    fn learn(&mut self, batch: &[&Sequence], loss: &mut ScoreLoss<'_>) -> Result<(), TrainError>;
}

/// A model that learns what to expect.
pub trait Critic: Trainable {
    /// What is expected before each token that was said, sequence after sequence.
    fn values(&self, batch: &[&Sequence]) -> Result<Vec<f32>, TrainError>;

    /// The same, and adds the gradient of a loss.
    fn learn(&mut self, batch: &[&Sequence], loss: &mut ValueLossOf<'_>) -> Result<(), TrainError>;
}
