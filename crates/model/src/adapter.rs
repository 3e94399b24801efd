//! Low-rank adapters (LoRA): two thin matrices learnt beside each projection of a frozen base, so that
//! `y = W·x + scale · B·(A·x)`.

mod error;
mod files;
mod int8;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use warpsmith_kernels::training::Projection;

pub use self::error::AdapterError;
pub use self::settings::{AdapterSettings, Scaling};
use crate::HostTensor;
use crate::products::{multiply, multiply_transposed};
use crate::weights::{LayerWeight, WeightName};

/// One projection of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoraTarget {
    pub layer: usize,
    pub projection: Projection,
}

impl std::fmt::Display for LoraTarget {
    /// The module's name in transformers.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = match self.projection {
            Projection::Query => LayerWeight::Query,
            Projection::Key => LayerWeight::Key,
            Projection::Value => LayerWeight::Value,
            Projection::AttentionOutput => LayerWeight::AttentionOutput,
            Projection::Gate => LayerWeight::Gate,
            Projection::Up => LayerWeight::Up,
            Projection::Down => LayerWeight::Down,
        };
        formatter.write_str(&WeightName::Layer(self.layer, part).in_safetensors())
    }
}

/// The two matrices of one place, in `f32`.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraPair {
    /// `rank x inputs`.
    pub a: HostTensor,
    /// `outputs x rank`.
    pub b: HostTensor,
}

/// What is learnt beside one base; every pair is of the settings' rank.
#[derive(Debug, Clone)]
pub struct Adapter {
    settings: AdapterSettings,
    pairs: BTreeMap<LoraTarget, Arc<LoraPair>>,
}

impl Adapter {
    pub fn new(
        settings: AdapterSettings,
        factors: BTreeMap<LoraTarget, LoraPair>,
    ) -> Result<Self, AdapterError> {
        for (place, LoraPair { a, b }) in &factors {
            let found = [a.shape(), b.shape()];
            if !matches!(found, [&[down, _], &[_, up]] if [down, up] == [settings.rank; 2]) {
                return Err(AdapterError::Rank {
                    module: place.to_string(),
                    a: a.shape().to_vec(),
                    b: b.shape().to_vec(),
                    rank: settings.rank,
                });
            }
        }
        let shared = factors
            .into_iter()
            .map(|(place, pair)| (place, Arc::new(pair)));
        Ok(Self {
            settings,
            pairs: shared.collect(),
        })
    }

    pub fn settings(&self) -> &AdapterSettings {
        &self.settings
    }

    pub fn factors(&self) -> &BTreeMap<LoraTarget, Arc<LoraPair>> {
        &self.pairs
    }

    /// The projections it changes in any layer.
    pub fn projections(&self) -> BTreeSet<Projection> {
        self.pairs.keys().map(|place| place.projection).collect()
    }

    /// Tells adapters apart by all that they compute with, wherever they are kept.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.settings.scale().to_le_bytes());
        for (place, factors) in &self.pairs {
            hasher.update(place.to_string().as_bytes());
            for factor in [&factors.a, &factors.b] {
                for size in factor.shape() {
                    hasher.update(&(*size as u64).to_le_bytes());
                }
                for number in factor.data() {
                    hasher.update(&number.to_le_bytes());
                }
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// An adapter's share in one projection, as the projection keeps it.
#[derive(Debug, Clone)]
pub struct LoraUpdate {
    pub pair: Arc<LoraPair>,
    pub scale: f32,
}

impl LoraUpdate {
    /// Adds `scale · B·(A·x)` for every row `x`.
    pub(crate) fn add_to(&self, output: &mut HostTensor, input: &HostTensor) {
        let mut inner = multiply_transposed(input, &self.pair.a);
        for number in inner.data_mut() {
            *number *= self.scale;
        }
        output.add(&multiply_transposed(&inner, &self.pair.b));
    }

    /// `scale · B·A`: what merging adds to the base's matrix.
    pub(crate) fn product(&self) -> HostTensor {
        let mut product = multiply(&self.pair.b, &self.pair.a);
        for number in product.data_mut() {
            *number *= self.scale;
        }
        product
    }
}
