//! Networks on the processor, on candle's differentiable operations: exact rather than quick, and the oracle for quicker
//! ones.

mod body;
pub(super) mod convert;
mod head;
mod linear;
mod parameters;

use std::collections::BTreeMap;

use candle_core::Tensor;
use warpsmith_model::Weights;

use self::body::Body;
use self::head::{LanguageHead, ValueHead};
use self::parameters::{Gradients, Parameters};
use super::{
    Actor, Critic, Learns, Published, ScoreLoss, Scores, Sequence, Trainable, ValueLossOf,
};
use crate::TrainError;
use crate::optimizer::Update;

/// A policy on the processor.
#[derive(Debug)]
pub struct CpuActor {
    /// As it was; what learns is elsewhere.
    before: Weights,
    body: Body,
    head: LanguageHead,
    parameters: Parameters,
}

impl CpuActor {
    /// Adapters that the weights have are frozen with them. `seed` is of a new adapter's first numbers.
    pub fn new(weights: &Weights, learns: &Learns, seed: u64) -> Result<Self, TrainError> {
        let mut parameters = Parameters::default();
        let body = Body::new(weights, learns, &mut parameters, seed)?;
        let head = LanguageHead::new(weights, &body, learns, &mut parameters)?;
        Ok(Self {
            before: weights.clone(),
            body,
            head,
            parameters,
        })
    }

    /// Gradients added up so far, by the names of the parameters.
    pub fn gradients(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        self.parameters.gradients()
    }
}

impl Trainable for CpuActor {
    fn update(&mut self, update: &Update) -> Result<f64, TrainError> {
        self.parameters.update(update)
    }

    fn state(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        self.parameters.state()
    }

    fn restore(&mut self, state: &BTreeMap<String, Tensor>) -> Result<(), TrainError> {
        self.parameters.restore(state)
    }
}

impl Actor for CpuActor {
    fn publish(&self) -> Result<Published, TrainError> {
        if let Some(adapter) = self.body.adapter()? {
            return Ok(Published::Adapter(adapter));
        }
        let mut weights = self.body.written(&self.before)?;
        self.head.write(&mut weights)?;
        Ok(Published::Weights(Box::new(weights)))
    }

    fn score(&self, batch: &[&Sequence]) -> Result<Scores, TrainError> {
        let passed = self.body.forward(batch)?;
        let hidden = self.body.before_said(batch, passed.last())?.detach();
        self.head.scores(&hidden, &targets(batch))
    }

    fn learn(&mut self, batch: &[&Sequence], loss: &mut ScoreLoss<'_>) -> Result<(), TrainError> {
        let passed = self.body.forward(batch)?;
        let hidden = self.body.before_said(batch, passed.last())?.detach();
        let targets = targets(batch);
        let slopes = loss(&self.head.scores(&hidden, &targets)?)?;
        let mut gradients = Gradients::default();
        let head = &self.head;
        let back = head.backward(&hidden, &targets, &slopes, &mut gradients)?;
        self.parameters.add(gradients)?;
        let parameters = &mut self.parameters;
        self.body.backward(batch, passed, &back, parameters)
    }
}

/// A critic on the processor: a model whose head is one number.
#[derive(Debug)]
pub struct CpuCritic {
    body: Body,
    head: ValueHead,
    parameters: Parameters,
}

impl CpuCritic {
    /// Its first values are all `expected`.
    pub fn new(
        weights: &Weights,
        learns: &Learns,
        expected: f32,
        seed: u64,
    ) -> Result<Self, TrainError> {
        let mut parameters = Parameters::default();
        let body = Body::new(weights, learns, &mut parameters, seed)?;
        let head = ValueHead::new(weights.config.hidden, expected, &mut parameters)?;
        Ok(Self {
            body,
            head,
            parameters,
        })
    }

    /// Gradients added up so far, by the names of the parameters.
    pub fn gradients(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        self.parameters.gradients()
    }
}

impl Trainable for CpuCritic {
    fn update(&mut self, update: &Update) -> Result<f64, TrainError> {
        self.parameters.update(update)
    }

    fn state(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        self.parameters.state()
    }

    fn restore(&mut self, state: &BTreeMap<String, Tensor>) -> Result<(), TrainError> {
        self.parameters.restore(state)
    }
}

impl Critic for CpuCritic {
    fn values(&self, batch: &[&Sequence]) -> Result<Vec<f32>, TrainError> {
        let passed = self.body.forward(batch)?;
        let hidden = self.body.before_said(batch, passed.last())?;
        self.head.values(&hidden.detach())
    }

    fn learn(&mut self, batch: &[&Sequence], loss: &mut ValueLossOf<'_>) -> Result<(), TrainError> {
        let passed = self.body.forward(batch)?;
        let hidden = self.body.before_said(batch, passed.last())?.detach();
        let slopes = loss(&self.head.values(&hidden)?)?;
        let mut gradients = Gradients::default();
        let back = self.head.backward(&hidden, &slopes, &mut gradients)?;
        self.parameters.add(gradients)?;
        let parameters = &mut self.parameters;
        self.body.backward(batch, passed, &back, parameters)
    }
}

/// The tokens that were said, sequence after sequence.
fn targets(batch: &[&Sequence]) -> Vec<u32> {
    batch
        .iter()
        .flat_map(|one| one.said().iter().map(|place| one.tokens()[*place]))
        .collect()
}
