//! Models that learn, whatever computes them.
//!
//! A network is told how a loss changes with what it said of each token, and finds by itself how the loss changes with its
//! parameters. So losses are written once, and a device only has to know how to run a model forward and back.

mod beginning;
pub mod cpu;
pub mod gpu;

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Tensor;
use warpsmith_model::export::{FloatType, write_folder};
use warpsmith_model::{Adapter, AdapterSettings, Config, ModelError, Projection, Weights};

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

/// What of a model learns.
#[derive(Debug, Clone)]
pub enum Learns {
    /// New low-rank matrices beside these projections of every layer; the model itself is frozen. They begin as PEFT's do,
    /// so that at first nothing is changed.
    NewAdapter {
        settings: AdapterSettings,
        targets: Vec<Projection>,
    },
    /// The low-rank matrices of an adapter that there is already.
    Adapter(Adapter),
    /// All of it.
    Everything,
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
const FIRST: &str = "optimizer.first.";
const SECOND: &str = "optimizer.second.";

const VALUE_WEIGHT: &str = "value_head.weight";
const VALUE_BIAS: &str = "value_head.bias";

/// A tensor of a state, if it is there and of this shape.
fn of_state<'a>(
    state: &'a BTreeMap<String, Tensor>,
    name: &str,
    expected: &[usize],
) -> Result<&'a Tensor, ModelError> {
    let tensor = state
        .get(name)
        .ok_or_else(|| ModelError::MissingTensor { name: name.into() })?;
    if tensor.dims() != expected {
        return Err(ModelError::Shape {
            name: name.into(),
            found: tensor.dims().to_vec(),
            expected: expected.to_vec(),
        });
    }
    Ok(tensor)
}

/// Whether a model can read these sequences, and whether there is anything to say of them.
fn check(batch: &[&Sequence], config: &Config) -> Result<(), ModelError> {
    let Config {
        context,
        vocabulary,
        ..
    } = *config;
    if batch.iter().all(|one| one.said().is_empty()) {
        return Err(ModelError::NoTokens);
    }
    for sequence in batch {
        if sequence.len() > context {
            let needed = sequence.len();
            return Err(ModelError::ContextFull { needed, context });
        }
        let outside = |token: &&u32| **token as usize >= vocabulary;
        if let Some(&token) = sequence.tokens().iter().find(outside) {
            return Err(ModelError::Token { token, vocabulary });
        }
    }
    Ok(())
}

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

    /// Memory in use on the device that computes it, by whomever, where it has memory of its own.
    fn device_memory(&self) -> Result<Option<usize>, TrainError> {
        Ok(None)
    }
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

    /// The same where it is known beforehand how the loss changes with each log-probability: less work, for those who can.
    /// Gives the log-probabilities; those that the loss does not depend on may be zero.
    fn learn_known(&mut self, batch: &[&Sequence], slopes: &[f32]) -> Result<Vec<f32>, TrainError> {
        let mut logprobs = Vec::new();
        self.learn(batch, &mut |scores| {
            logprobs.clone_from(&scores.logprobs);
            Ok(Scores {
                logprobs: slopes.to_vec(),
                entropies: vec![0.0; slopes.len()],
            })
        })?;
        Ok(logprobs)
    }
}

/// A model that learns what to expect.
pub trait Critic: Trainable {
    /// What is expected before each token that was said, sequence after sequence.
    fn values(&self, batch: &[&Sequence]) -> Result<Vec<f32>, TrainError>;

    /// The same, and adds the gradient of a loss.
    fn learn(&mut self, batch: &[&Sequence], loss: &mut ValueLossOf<'_>) -> Result<(), TrainError>;
}
