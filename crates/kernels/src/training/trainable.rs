//! Which of a model's parameters train, and where they lie: all in one vector, the same on every device.
//!
//! The vector has the value head's parameters first, where the model has one. Then come all parameters of the model (full
//! fine-tuning), or the LoRA matrices of an adapter beside a frozen base model.

use std::ops::Range;
use std::rc::Rc;

use super::layout::{ModelShape, Parameter, ParameterLayout};
use super::lora::{LoraLayout, LoraSlices, LoraSpec};
use crate::VEC;

/// What a model computes from its final hidden states.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ModelHead {
    /// Logits, by the base model's own LM head.
    LanguageModel,
    /// One value, by a head that trains. At first all values are `initial`.
    Value { initial: f32 },
}

/// Weights of a frozen base model on some device.
pub trait FrozenModel {
    fn layout(&self) -> &ParameterLayout;
}

/// What of a model trains, and the initial values of that.
pub enum TrainableInit<'a, F> {
    /// All of it; the weights are in the order of the layout.
    Full {
        layout: ParameterLayout,
        weights: &'a [f32],
    },
    /// An adapter beside a frozen model; its weights are in the order of [`LoraLayout`].
    Lora {
        base: Rc<F>,
        spec: &'a LoraSpec,
        weights: &'a [f32],
    },
}

impl<F: FrozenModel> TrainableInit<'_, F> {
    pub(super) fn shape(&self) -> &ModelShape {
        match self {
            Self::Full { layout, .. } => layout.shape(),
            Self::Lora { base, .. } => base.layout().shape(),
        }
    }

    pub(super) fn layout(&self, head: ModelHead) -> TrainableLayout {
        let (base, lora) = match self {
            Self::Full { layout, .. } => (layout.clone(), None),
            Self::Lora { base, spec, .. } => {
                let layout = base.layout().clone();
                let lora = LoraLayout::new(layout.shape().clone(), spec);
                (layout, Some((lora, spec.scale)))
            }
        };
        let head_len = match head {
            ModelHead::LanguageModel => 0,
            ModelHead::Value { .. } => value_head_len(base.shape()),
        };
        TrainableLayout {
            base,
            lora,
            head_len,
        }
    }

    /// Initial values of everything that trains.
    pub(super) fn values(&self, head: ModelHead) -> Vec<f32> {
        let weights = match self {
            Self::Full { weights, .. } | Self::Lora { weights, .. } => *weights,
        };
        match head {
            ModelHead::LanguageModel => weights.to_vec(),
            ModelHead::Value { initial } => {
                let mut values = vec![0.0; value_head_len(self.shape())];
                values[VEC * self.shape().hidden] = initial;
                values.extend_from_slice(weights);
                values
            }
        }
    }
}

/// Elements of a value head: a matrix of [`VEC`] rows of which the first counts and the others are zeros, because matrix products
/// need aligned sizes; then the bias, and zeros.
pub fn value_head_len(shape: &ModelShape) -> usize {
    VEC * shape.hidden + VEC
}

/// Where the trainable parameters lie.
#[derive(Debug, Clone)]
pub struct TrainableLayout {
    base: ParameterLayout,
    /// With the adapter's scale.
    lora: Option<(LoraLayout, f32)>,
    head_len: usize,
}

impl TrainableLayout {
    pub fn base(&self) -> &ParameterLayout {
        &self.base
    }

    pub fn shape(&self) -> &ModelShape {
        self.base.shape()
    }

    /// Elements of all that trains.
    #[expect(clippy::len_without_is_empty, reason = "no layout is empty")]
    pub fn len(&self) -> usize {
        self.head_len
            + match &self.lora {
                None => self.base.len(),
                Some((lora, _)) => lora.len(),
            }
    }

    /// Weight decay applies from here on: to matrices, but not to norms, biases and the value head.
    pub fn decay_start(&self) -> usize {
        self.head_len
            + match &self.lora {
                None => self.base.decay_start(),
                Some(_) => 0,
            }
    }

    /// Where a parameter of the model lies, if it trains.
    pub fn parameter(&self, of: Parameter) -> Option<Range<usize>> {
        match self.lora {
            None => Some(self.in_full(of)),
            Some(_) => None,
        }
    }

    /// Where a parameter lies where the whole model trains.
    pub(super) fn in_full(&self, of: Parameter) -> Range<usize> {
        self.shifted(self.base.range(of))
    }

    /// Where all norms lie, which follow each other, if they train.
    pub(super) fn norms(&self) -> Option<Range<usize>> {
        let first = self.parameter(Parameter::AttentionNorm(0))?;
        let last = self.parameter(Parameter::FinalNorm)?;
        Some(first.start..last.end)
    }

    pub fn lora(&self) -> Option<&LoraLayout> {
        self.lora.as_ref().map(|(layout, _)| layout)
    }

    pub(super) fn lora_scale(&self) -> f32 {
        self.lora.as_ref().map_or(0.0, |(_, scale)| *scale)
    }

    /// Where the LoRA matrices of a parameter lie, if it has any.
    pub(super) fn lora_slices(&self, of: Parameter) -> Option<LoraSlices> {
        let slices = self.lora()?.slices(of)?;
        Some(LoraSlices {
            a: self.shifted(slices.a),
            b: self.shifted(slices.b),
            width: slices.width,
        })
    }

    /// Where the model's or the adapter's own parameters begin: after the value head's.
    pub fn head_len(&self) -> usize {
        self.head_len
    }

    pub(super) fn has_value_head(&self) -> bool {
        self.head_len > 0
    }

    /// The value head's matrix, [`VEC`] rows.
    pub fn value_weight(&self) -> Range<usize> {
        0..VEC * self.shape().hidden
    }

    pub fn value_bias(&self) -> usize {
        self.value_weight().end
    }

    fn shifted(&self, range: Range<usize>) -> Range<usize> {
        self.head_len + range.start..self.head_len + range.end
    }
}

/// All that training needs to go on elsewhere bit for bit, in the order of [`TrainableLayout`].
#[derive(Debug, Clone, PartialEq)]
pub struct TrainState {
    pub weights: Vec<f32>,
    /// The optimizer's running mean of the gradient.
    pub first_moment: Vec<f32>,
    /// The optimizer's running mean of the squared gradient.
    pub second_moment: Vec<f32>,
}
