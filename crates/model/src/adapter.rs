//! Low-rank adapters (LoRA): two thin matrices learnt beside each projection of a frozen base, so that
//! `y = W·x + scale · B·(A·x)`.

mod error;
mod files;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::error::AdapterError;
pub use self::settings::{AdapterSettings, Scaling};
use crate::HostTensor;
use crate::products::{multiply, multiply_transposed};
use crate::weights::{LayerPart, Part};

/// A matrix of a layer that can be adapted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Projection {
    Query,
    Key,
    Value,
    AttentionOutput,
    Gate,
    Up,
    Down,
}

impl Projection {
    pub const ALL: [Self; 7] = [
        Self::Query,
        Self::Key,
        Self::Value,
        Self::AttentionOutput,
        Self::Gate,
        Self::Up,
        Self::Down,
    ];

    /// As PEFT's `target_modules` call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "q_proj",
            Self::Key => "k_proj",
            Self::Value => "v_proj",
            Self::AttentionOutput => "o_proj",
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }
}

/// One projection of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub layer: usize,
    pub projection: Projection,
}

impl std::fmt::Display for Place {
    /// The module's name in transformers.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let part = match self.projection {
            Projection::Query => LayerPart::Query,
            Projection::Key => LayerPart::Key,
            Projection::Value => LayerPart::Value,
            Projection::AttentionOutput => LayerPart::AttentionOutput,
            Projection::Gate => LayerPart::Gate,
            Projection::Up => LayerPart::Up,
            Projection::Down => LayerPart::Down,
        };
        formatter.write_str(&Part::Layer(self.layer, part).in_safetensors())
    }
}

/// The two matrices of one place, in `f32`.
#[derive(Debug, Clone, PartialEq)]
pub struct Factors {
    /// `rank x inputs`.
    pub a: HostTensor,
    /// `outputs x rank`.
    pub b: HostTensor,
}

/// What is learnt beside one base; every pair is of the settings' rank.
#[derive(Debug, Clone)]
pub struct Adapter {
    settings: AdapterSettings,
    factors: BTreeMap<Place, Arc<Factors>>,
}

impl Adapter {
    pub fn new(
        settings: AdapterSettings,
        factors: BTreeMap<Place, Factors>,
    ) -> Result<Self, AdapterError> {
        for (place, Factors { a, b }) in &factors {
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
            factors: shared.collect(),
        })
    }

    pub fn settings(&self) -> &AdapterSettings {
        &self.settings
    }

    pub fn factors(&self) -> &BTreeMap<Place, Arc<Factors>> {
        &self.factors
    }

    /// The projections it changes in any layer.
    pub fn projections(&self) -> BTreeSet<Projection> {
        self.factors.keys().map(|place| place.projection).collect()
    }

    /// Tells adapters apart by all that they compute with, wherever they are kept.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.settings.scale().to_le_bytes());
        for (place, factors) in &self.factors {
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
pub struct LowRank {
    pub factors: Arc<Factors>,
    pub scale: f32,
}

impl LowRank {
    /// Adds `scale · B·(A·x)` for every row `x`.
    pub(crate) fn add_to(&self, output: &mut HostTensor, input: &HostTensor) {
        let mut inner = multiply_transposed(input, &self.factors.a);
        for number in inner.data_mut() {
            *number *= self.scale;
        }
        output.add(&multiply_transposed(&inner, &self.factors.b));
    }

    /// `scale · B·A`: what merging adds to the base's matrix.
    pub(crate) fn product(&self) -> HostTensor {
        let mut product = multiply(&self.factors.b, &self.factors.a);
        for number in product.data_mut() {
            *number *= self.scale;
        }
        product
    }
}
