//! Networks of a run on one device: they share the base model, and on a GPU the memory of passes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::rc::Rc;

use warpsmith_kernels::Gpu;
use warpsmith_kernels::training::cpu::{CpuFrozenWeights, CpuTrainableModel};
use warpsmith_kernels::training::gpu::{FrozenWeights, GpuTrainableModel, TrainBuffers};
use warpsmith_kernels::training::{
    AdamWStep, LoraLayout, LoraSpec, ModelHead, PackedBatch, ParameterLayout, TokenScores,
    TokenSequence, TrainableInit, TrainableModel,
};
use warpsmith_model::{
    Adapter, AdapterSettings, HostTensor, LoraPair, LoraTarget, ModelConfig, ModelError,
    Projection, Weights,
};

use super::lora_init::initial_adapter;
use super::tensors::{BaseValues, NamedTensors, TensorId, model_shape, set_tensor};
use super::{Actor, Critic, FineTuning, Published, ScoreLossFn, Trainable, ValueLossFn};
use crate::TrainError;

/// A pretrained model on a device, from which actors and critics are made.
pub struct TrainingModel(Rc<Shared>);

struct Shared {
    /// Before training. Adapters that it has are frozen with it.
    base: Weights,
    layout: ParameterLayout,
    device: Device,
    /// Where an adapter trains and not the model itself.
    lora: Option<Lora>,
}

enum Device {
    /// With the frozen model, where an adapter trains.
    Cpu(Option<Rc<CpuFrozenWeights>>),
    Gpu(Rc<RefCell<TrainBuffers>>, Option<Rc<FrozenWeights>>),
}

/// The adapter that networks begin with.
struct Lora {
    settings: AdapterSettings,
    spec: LoraSpec,
    pairs: BTreeMap<LoraTarget, LoraPair>,
}

impl TrainingModel {
    /// `seed` is of a new adapter's initial values.
    pub fn on_cpu(
        weights: &Weights,
        fine_tuning: &FineTuning,
        seed: u64,
    ) -> Result<Self, TrainError> {
        let layout = ParameterLayout::new(model_shape(weights)?);
        let lora = Lora::new(weights, fine_tuning, seed)?;
        let values = BaseValues::new(weights, &layout);
        let frozen = lora.is_some().then(|| {
            let values = |parameter| values.parameter(parameter);
            Rc::new(CpuFrozenWeights::new(layout.clone(), values))
        });
        Ok(Self(Rc::new(Shared {
            base: weights.clone(),
            device: Device::Cpu(frozen),
            layout,
            lora,
        })))
    }

    /// On the GPU of this number.
    pub fn on_gpu(
        ordinal: usize,
        weights: &Weights,
        fine_tuning: &FineTuning,
        seed: u64,
    ) -> Result<Self, TrainError> {
        check_biases(weights)?;
        let shape = model_shape(weights)?;
        let buffers = TrainBuffers::new(Gpu::open(ordinal)?, shape.clone())?;
        let layout = ParameterLayout::new(shape);
        let lora = Lora::new(weights, fine_tuning, seed)?;
        let values = BaseValues::new(weights, &layout);
        let frozen = if lora.is_some() {
            let values = |parameter| values.parameter(parameter);
            let frozen = FrozenWeights::new(buffers.gpu(), layout.clone(), values)?;
            Some(Rc::new(frozen))
        } else {
            None
        };
        Ok(Self(Rc::new(Shared {
            base: weights.clone(),
            device: Device::Gpu(Rc::new(RefCell::new(buffers)), frozen),
            layout,
            lora,
        })))
    }

    /// The name of the GPU, where it is on one.
    pub fn gpu_name(&self) -> Result<Option<String>, TrainError> {
        match &self.0.device {
            Device::Cpu(_) => Ok(None),
            Device::Gpu(buffers, _) => Ok(Some(buffers.borrow().gpu().name()?)),
        }
    }

    pub fn actor(&self) -> Result<PolicyNetwork, TrainError> {
        HeadedNetwork::new(&self.0, ModelHead::LanguageModel)
    }

    /// At first all its values are `initial`.
    pub fn critic(&self, initial: f32) -> Result<ValueNetwork, TrainError> {
        HeadedNetwork::new(&self.0, ModelHead::Value { initial })
    }
}

impl Lora {
    fn new(
        weights: &Weights,
        fine_tuning: &FineTuning,
        seed: u64,
    ) -> Result<Option<Self>, TrainError> {
        let Some((settings, pairs)) = initial_adapter(weights, fine_tuning, seed)? else {
            return Ok(None);
        };
        let targets = pairs.keys();
        let targets = targets.map(|place| place.projection);
        Ok(Some(Self {
            spec: LoraSpec {
                rank: settings.rank,
                scale: settings.scale(),
                targets: targets.collect(),
            },
            settings,
            pairs,
        }))
    }
}

/// The GPU kernels only have biases of queries, keys and values.
pub(super) fn check_biases(weights: &Weights) -> Result<(), ModelError> {
    let supported = [Projection::Query, Projection::Key, Projection::Value];
    for projection in Projection::ALL {
        let mut layers = weights.layers.iter();
        let has_bias = layers.any(|layer| layer.projection(projection).bias.is_some());
        if has_bias && !supported.contains(&projection) {
            return Err(ModelError::Setting {
                key: format!("{}.bias", projection.name()),
                reason: "set, which training on a GPU does not support".into(),
            });
        }
    }
    Ok(())
}

impl Shared {
    fn model(&self, head: ModelHead) -> Result<Box<dyn TrainableModel>, TrainError> {
        let weights = match &self.lora {
            None => BaseValues::new(&self.base, &self.layout).all(),
            Some(lora) => lora.initial_values(self),
        };
        let (layout, weights) = (self.layout.clone(), &weights);
        Ok(match (&self.device, &self.lora) {
            (Device::Cpu(Some(base)), Some(lora)) => {
                let (base, spec) = (base.clone(), &lora.spec);
                let init = TrainableInit::Lora {
                    base,
                    spec,
                    weights,
                };
                Box::new(CpuTrainableModel::new(&init, head))
            }
            (Device::Cpu(_), _) => {
                let init = TrainableInit::Full { layout, weights };
                Box::new(CpuTrainableModel::new(&init, head))
            }
            (Device::Gpu(buffers, Some(base)), Some(lora)) => {
                let (base, spec) = (base.clone(), &lora.spec);
                let init = TrainableInit::Lora {
                    base,
                    spec,
                    weights,
                };
                Box::new(GpuTrainableModel::new(buffers, &init, head)?)
            }
            (Device::Gpu(buffers, _), _) => {
                let init = TrainableInit::Full { layout, weights };
                Box::new(GpuTrainableModel::new(buffers, &init, head)?)
            }
        })
    }

    /// Packs sequences, if the model can read them and any token enters the loss.
    fn pack(&self, batch: &[&TokenSequence]) -> Result<PackedBatch, ModelError> {
        let ModelConfig {
            context,
            vocabulary,
            ..
        } = self.base.config;
        if batch.iter().all(|one| one.loss_tokens() == 0) {
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
        Ok(PackedBatch::new(batch))
    }
}

impl Lora {
    /// Where a layer has no matrices for a target they are zeros and stay so: the gradient of each is a product with the other.
    fn initial_values(&self, shared: &Shared) -> Vec<f32> {
        let lora = LoraLayout::new(shared.layout.shape().clone(), &self.spec);
        let mut values = vec![0.0; lora.len()];
        for tensor in NamedTensors::lora(&lora, &shared.layout, self.pairs.keys()).iter() {
            let from = match tensor.id {
                TensorId::LoraA(place) => &self.pairs[&place].a,
                TensorId::LoraB(place) => &self.pairs[&place].b,
                _ => continue,
            };
            tensor.write(from, &mut values);
        }
        values
    }
}

/// A trainable model and the names of its tensors. Its head decides what it can be asked.
pub struct HeadedNetwork<Head> {
    shared: Rc<Shared>,
    tensors: NamedTensors,
    model: RefCell<Box<dyn TrainableModel>>,
    head: PhantomData<Head>,
}

/// Scores of tokens.
pub enum LmHead {}

/// One value a token.
pub enum ValueHead {}

/// An actor.
pub type PolicyNetwork = HeadedNetwork<LmHead>;

/// A critic.
pub type ValueNetwork = HeadedNetwork<ValueHead>;

impl<Head> HeadedNetwork<Head> {
    fn new(shared: &Rc<Shared>, head: ModelHead) -> Result<Self, TrainError> {
        let model = shared.model(head)?;
        let places = shared.lora.iter().flat_map(|lora| lora.pairs.keys());
        Ok(Self {
            tensors: NamedTensors::new(model.layout(), &shared.base, places),
            model: RefCell::new(model),
            shared: shared.clone(),
            head: PhantomData,
        })
    }

    /// The accumulated gradient, by the names of the parameters.
    pub fn gradients(&self) -> Result<BTreeMap<String, HostTensor>, TrainError> {
        Ok(self.tensors.named(&self.model.borrow_mut().grad()?))
    }
}

impl<Head> Trainable for HeadedNetwork<Head> {
    fn step(&mut self, step: &AdamWStep) -> Result<f64, TrainError> {
        let norm = self.model.get_mut().step(step)?;
        if norm.is_finite() {
            Ok(norm)
        } else {
            Err(TrainError::NotFinite {
                what: "the gradient",
            })
        }
    }

    fn state(&self) -> Result<BTreeMap<String, HostTensor>, TrainError> {
        Ok(self.tensors.state(&self.model.borrow().state()?))
    }

    fn restore(&mut self, state: &BTreeMap<String, HostTensor>) -> Result<(), TrainError> {
        let model = self.model.get_mut();
        // Padding has no name and stays as it is.
        let mut restored = model.state()?;
        self.tensors.restore(state, &mut restored)?;
        Ok(model.restore(&restored)?)
    }

    fn device_memory(&self) -> Result<Option<usize>, TrainError> {
        Ok(self.model.borrow().device_memory()?)
    }
}

impl Actor for PolicyNetwork {
    fn publish(&self) -> Result<Published, TrainError> {
        let HeadedNetwork {
            shared,
            tensors,
            model,
            ..
        } = self;
        let state = model.borrow().state()?;
        if let Some(lora) = &shared.lora {
            let mut pairs = lora.pairs.clone();
            for tensor in tensors.iter() {
                let values = tensor.read(&state.weights);
                match tensor.id {
                    TensorId::LoraA(place) => pairs.get_mut(&place).map(|pair| pair.a = values),
                    TensorId::LoraB(place) => pairs.get_mut(&place).map(|pair| pair.b = values),
                    _ => None,
                };
            }
            let adapter = Adapter::new(lora.settings.clone(), pairs);
            return Ok(Published::Adapter(adapter.map_err(ModelError::from)?));
        }
        let mut weights = shared.base.clone();
        for tensor in tensors.iter() {
            set_tensor(&mut weights, tensor.id, tensor.read(&state.weights));
        }
        Ok(Published::Weights(Box::new(weights)))
    }

    fn score(&self, batch: &[&TokenSequence]) -> Result<TokenScores, TrainError> {
        let batch = self.shared.pack(batch)?;
        Ok(self.model.borrow_mut().score(&batch)?)
    }

    fn backward(
        &mut self,
        batch: &[&TokenSequence],
        loss: &mut ScoreLossFn<'_>,
    ) -> Result<(), TrainError> {
        let batch = self.shared.pack(batch)?;
        let model = self.model.get_mut();
        let upstream = loss(&model.score(&batch)?)?;
        Ok(model.backward_scores(&upstream)?)
    }

    fn backward_known(
        &mut self,
        batch: &[&TokenSequence],
        d_logprobs: &[f32],
    ) -> Result<Vec<f32>, TrainError> {
        let batch = self.shared.pack(batch)?;
        let model = self.model.get_mut();
        Ok(model.score_backward(&batch, d_logprobs)?)
    }
}

impl Critic for ValueNetwork {
    fn values(&self, batch: &[&TokenSequence]) -> Result<Vec<f32>, TrainError> {
        let batch = self.shared.pack(batch)?;
        Ok(self.model.borrow_mut().values(&batch)?)
    }

    fn backward(
        &mut self,
        batch: &[&TokenSequence],
        loss: &mut ValueLossFn<'_>,
    ) -> Result<(), TrainError> {
        let batch = self.shared.pack(batch)?;
        let model = self.model.get_mut();
        let upstream = loss(&model.values(&batch)?)?;
        Ok(model.backward_values(&upstream)?)
    }
}
