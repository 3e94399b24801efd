//! Networks on a GPU, on kernels of our own: the quick ones. What they say is the processor's but for bfloat16's rounding.
//!
//! All networks of a [`GpuModel`] share the room that passes need, and where adapters learn also the model itself. So one is
//! used after the other, never one inside another's loss.

mod numbers;
mod slots;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use candle_core::Tensor;
use warpsmith_kernels::training::{
    AdamW, Batch, Bench, Between, Factors, Frozen, Layout, Learner, Learns as DeviceLearns,
    LowRank, Pupil, Shape, Valuer, Wanted, value_head,
};
use warpsmith_kernels::{Gpu, GpuError};
use warpsmith_model::{
    Adapter, AdapterSettings, Factors as Pair, HeadNorms, HostTensor, LayerPart, ModelError,
    Part as ModelPart, Place, Weights,
};

use self::slots::{Of, Slots};
use super::cpu::convert::to_host;
use super::{
    Actor, Critic, Learns, Published, ScoreLoss, Scores, Sequence, Trainable, ValueLossOf,
    beginning, check,
};
use crate::TrainError;
use crate::optimizer::Update;

/// A model on a GPU, for all networks that learn from it.
pub struct GpuModel(Rc<Shared>);

struct Shared {
    bench: Rc<RefCell<Bench>>,
    /// As it was; what learns is elsewhere.
    before: Weights,
    layout: Layout,
    /// Where only adapters learn.
    beside: Option<Beside>,
}

/// An adapter's place on the device, and what it begins as.
struct Beside {
    frozen: Rc<Frozen>,
    settings: AdapterSettings,
    low_rank: LowRank,
    factors: Factors,
    pairs: BTreeMap<Place, Pair>,
}

impl GpuModel {
    /// Puts it on the GPU of this number. Adapters that the weights have are frozen with them. `seed` is of a new adapter's
    /// first numbers.
    pub fn open(
        number: usize,
        weights: &Weights,
        learns: &Learns,
        seed: u64,
    ) -> Result<Self, TrainError> {
        let shape = numbers::shape(weights)?;
        let bench = Bench::new(Gpu::open(number)?, shape.clone())?;
        let layout = Layout::new(shape);
        let (settings, pairs) = beginning::adapter(weights, learns, seed)?;
        let beside = match settings {
            None => None,
            Some(settings) => Some(Beside::new(&bench, weights, &layout, settings, pairs)?),
        };
        Ok(Self(Rc::new(Shared {
            bench: Rc::new(RefCell::new(bench)),
            before: weights.clone(),
            layout,
            beside,
        })))
    }

    /// What computes it.
    pub fn device(&self) -> Result<String, TrainError> {
        Ok(self.0.bench.borrow().gpu().name()?)
    }

    pub fn actor(&self) -> Result<GpuActor, TrainError> {
        let shared = self.0.clone();
        let learner = shared.begun(|learns| Learner::on(&shared.bench, learns))?;
        Ok(GpuActor {
            slots: shared.slots(0),
            learner: RefCell::new(learner),
            shared,
        })
    }

    /// Its first values are all `expected`.
    pub fn critic(&self, expected: f32) -> Result<GpuCritic, TrainError> {
        let shared = self.0.clone();
        let valuer = shared.begun(|learns| Valuer::on(&shared.bench, learns, expected))?;
        let front = value_head(shared.shape());
        let mut slots = shared.slots(front);
        // It says nothing.
        let output = Of::Model(ModelPart::Output);
        slots.0.retain(|slot| slot.of != output);
        Ok(GpuCritic {
            slots: slots.and(Slots::value_head(shared.shape())),
            valuer: RefCell::new(valuer),
            shared,
        })
    }
}

impl Beside {
    fn new(
        bench: &Bench,
        weights: &Weights,
        layout: &Layout,
        settings: AdapterSettings,
        pairs: BTreeMap<Place, Pair>,
    ) -> Result<Self, TrainError> {
        let parts = pairs.keys().map(|place| slots::of(place.projection));
        let low_rank = LowRank {
            rank: settings.rank,
            scale: settings.scale(),
            beside: parts.collect(),
        };
        let shape = layout.shape();
        let frozen = Frozen::new(bench.gpu(), layout.clone(), |parameter| {
            Ok::<_, TrainError>(numbers::of(weights, shape, parameter))
        })?;
        Ok(Self {
            frozen: Rc::new(frozen),
            factors: Factors::new(shape.clone(), &low_rank),
            low_rank,
            settings,
            pairs,
        })
    }
}

impl Shared {
    fn shape(&self) -> &Shape {
        self.layout.shape()
    }

    /// In use on the device.
    fn memory(&self) -> Result<usize, TrainError> {
        let (free, all) = self.bench.borrow().gpu().memory()?;
        Ok(all - free)
    }

    /// What learns, at its beginning.
    fn begun<T>(
        &self,
        begin: impl Fn(&DeviceLearns<'_>) -> Result<T, GpuError>,
    ) -> Result<T, TrainError> {
        let shape = self.shape();
        let Some(beside) = &self.beside else {
            let mut weights = Vec::with_capacity(self.layout.count());
            for parameter in self.layout.parameters() {
                weights.extend(numbers::of(&self.before, shape, parameter));
            }
            return Ok(begin(&DeviceLearns::All {
                layout: self.layout.clone(),
                weights: &weights,
            })?);
        };
        let rank = beside.settings.rank;
        let numbers = numbers::of_adapter(&beside.pairs, &beside.factors, (shape, rank));
        Ok(begin(&DeviceLearns::Beside {
            frozen: beside.frozen.clone(),
            low_rank: &beside.low_rank,
            numbers: &numbers,
        })?)
    }

    /// Where its tensors lie, after `front` other numbers.
    fn slots(&self, front: usize) -> Slots {
        match &self.beside {
            None => Slots::everything(&self.before, &self.layout, front),
            Some(beside) => {
                let sizes = (self.shape(), beside.settings.rank, front);
                Slots::adapter(beside.pairs.keys(), &beside.factors, sizes)
            }
        }
    }

    /// Sequences one after the other, with room for them.
    fn batch(&self, batch: &[&Sequence]) -> Result<Batch, TrainError> {
        check(batch, &self.before.config)?;
        let rows = batch.iter().map(|one| one.len()).sum();
        let longest = batch.iter().map(|one| one.len()).max().unwrap_or(0);
        let beside = self.beside.as_ref();
        let between = beside.map_or_else(Between::default, |beside| beside.factors.between());
        self.bench.borrow_mut().fit(rows, longest, between)?;
        Ok(Batch::new(
            batch.iter().map(|one| (one.tokens(), one.said())),
        ))
    }
}

fn settings(update: &Update) -> AdamW {
    AdamW {
        rate: update.rate,
        beta1: update.adamw.beta1,
        beta2: update.adamw.beta2,
        epsilon: update.adamw.epsilon,
        weight_decay: update.adamw.weight_decay,
        longest: update.adamw.max_gradient_norm,
        step: update.step,
    }
}

/// Length of the gradient that an update had.
fn length(of: &Pupil) -> Result<f64, TrainError> {
    let length = of.gradient_length()?;
    if length.is_finite() {
        Ok(f64::from(length))
    } else {
        Err(TrainError::NotFinite {
            what: "the gradient",
        })
    }
}

/// A policy on a GPU.
pub struct GpuActor {
    shared: Rc<Shared>,
    slots: Slots,
    learner: RefCell<Learner>,
}

impl GpuActor {
    /// Gradients added up so far, by the names of the parameters.
    pub fn gradients(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        self.slots.named(&self.learner.borrow().pupil().gradient()?)
    }

    /// The adapter, or the whole model, with these numbers.
    fn published(&self, numbers: &[f32]) -> Result<Published, TrainError> {
        if let Some(beside) = &self.shared.beside {
            let mut pairs = beside.pairs.clone();
            for slot in &self.slots.0 {
                let tensor = to_host(&slot.read(numbers)?)?;
                match slot.of {
                    Of::A(place) => pairs.get_mut(&place).map(|pair| pair.a = tensor),
                    Of::B(place) => pairs.get_mut(&place).map(|pair| pair.b = tensor),
                    _ => None,
                };
            }
            let adapter = Adapter::new(beside.settings.clone(), pairs);
            return Ok(Published::Adapter(adapter.map_err(ModelError::from)?));
        }
        let mut weights = self.shared.before.clone();
        for slot in &self.slots.0 {
            write(&mut weights, slot.of, to_host(&slot.read(numbers)?)?);
        }
        Ok(Published::Weights(Box::new(weights)))
    }
}

/// Puts a tensor in its place.
fn write(weights: &mut Weights, of: Of, tensor: HostTensor) {
    match of {
        Of::Model(ModelPart::Embedding) => weights.embedding = tensor.into(),
        Of::Model(ModelPart::Output) => weights.output = Some(tensor.into()),
        Of::Model(ModelPart::FinalNorm) => weights.final_norm = tensor.into_data(),
        Of::Model(ModelPart::Layer(index, part)) => {
            let layer = &mut weights.layers[index];
            let numbers = tensor.into_data();
            match (part, &mut layer.head_norms) {
                (LayerPart::AttentionNorm, _) => layer.attention_norm = numbers,
                (LayerPart::FeedForwardNorm, _) => layer.feed_forward_norm = numbers,
                (LayerPart::QueryNorm, Some(HeadNorms { query, .. })) => *query = numbers,
                (LayerPart::KeyNorm, Some(HeadNorms { key, .. })) => *key = numbers,
                _ => {}
            }
        }
        Of::Weight(place) => {
            let linear = weights.layers[place.layer].projection_mut(place.projection);
            linear.weight = tensor.into();
            linear.adapters.clear();
        }
        Of::Bias(place) => {
            let linear = weights.layers[place.layer].projection_mut(place.projection);
            linear.bias = Some(tensor.into_data());
        }
        Of::A(_) | Of::B(_) | Of::ValueWeight | Of::ValueBias => {}
    }
}

impl Trainable for GpuActor {
    fn update(&mut self, update: &Update) -> Result<f64, TrainError> {
        let learner = self.learner.get_mut();
        learner.update(settings(update))?;
        length(learner.pupil())
    }

    fn state(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        self.slots.state(&self.learner.borrow().pupil().state()?)
    }

    fn restore(&mut self, state: &BTreeMap<String, Tensor>) -> Result<(), TrainError> {
        let learner = self.learner.get_mut();
        let mut all = learner.pupil().state()?;
        self.slots.restore(state, &mut all)?;
        Ok(learner.pupil_mut().restore(&all)?)
    }

    fn device_memory(&self) -> Result<Option<usize>, TrainError> {
        self.shared.memory().map(Some)
    }
}

impl Actor for GpuActor {
    fn publish(&self) -> Result<Published, TrainError> {
        let state = self.learner.borrow().pupil().state()?;
        self.published(&state.weights)
    }

    fn score(&self, batch: &[&Sequence]) -> Result<Scores, TrainError> {
        let batch = self.shared.batch(batch)?;
        Ok(scores(self.learner.borrow_mut().listen(&batch)?.scores()?))
    }

    fn learn(&mut self, batch: &[&Sequence], loss: &mut ScoreLoss<'_>) -> Result<(), TrainError> {
        let batch = self.shared.batch(batch)?;
        let heard = self.learner.get_mut().listen(&batch)?;
        let slopes = loss(&scores(heard.scores()?))?;
        let pairs = slopes.logprobs.iter().zip(&slopes.entropies);
        let wanted: Vec<Wanted> = pairs
            .map(|(&logprob, &entropy)| Wanted { logprob, entropy })
            .collect();
        Ok(heard.learn(&wanted)?)
    }

    /// Logits are made once.
    fn learn_known(&mut self, batch: &[&Sequence], slopes: &[f32]) -> Result<Vec<f32>, TrainError> {
        let batch = self.shared.batch(batch)?;
        let wanted: Vec<Wanted> = slopes
            .iter()
            .map(|&logprob| Wanted {
                logprob,
                entropy: 0.0,
            })
            .collect();
        let learner = self.learner.get_mut();
        learner.learn(&batch, &wanted)?;
        Ok(learner.scores()?.logprobs)
    }
}

fn scores(of: warpsmith_kernels::training::Scores) -> Scores {
    Scores {
        logprobs: of.logprobs,
        entropies: of.entropies,
    }
}

/// A critic on a GPU: a model whose head is one number.
pub struct GpuCritic {
    shared: Rc<Shared>,
    slots: Slots,
    valuer: RefCell<Valuer>,
}

impl GpuCritic {
    /// Gradients added up so far, by the names of the parameters.
    pub fn gradients(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        self.slots.named(&self.valuer.borrow().gradient()?)
    }
}

impl Trainable for GpuCritic {
    fn update(&mut self, update: &Update) -> Result<f64, TrainError> {
        let valuer = self.valuer.get_mut();
        valuer.update(settings(update))?;
        length(valuer.pupil())
    }

    fn state(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        self.slots.state(&self.valuer.borrow().pupil().state()?)
    }

    fn restore(&mut self, state: &BTreeMap<String, Tensor>) -> Result<(), TrainError> {
        let valuer = self.valuer.get_mut();
        let mut all = valuer.pupil().state()?;
        self.slots.restore(state, &mut all)?;
        Ok(valuer.restore(&all)?)
    }

    fn device_memory(&self) -> Result<Option<usize>, TrainError> {
        self.shared.memory().map(Some)
    }
}

impl Critic for GpuCritic {
    fn values(&self, batch: &[&Sequence]) -> Result<Vec<f32>, TrainError> {
        let batch = self.shared.batch(batch)?;
        Ok(self.valuer.borrow_mut().look(&batch)?.values()?)
    }

    fn learn(&mut self, batch: &[&Sequence], loss: &mut ValueLossOf<'_>) -> Result<(), TrainError> {
        let batch = self.shared.batch(batch)?;
        let seen = self.valuer.get_mut().look(&batch)?;
        let slopes = loss(&seen.values()?)?;
        Ok(seen.learn(&slopes)?)
    }
}
