//! Operators that compositions are made of, found by walking PyTorch (`python/walk.py`) and kept as data.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// One class or function, with arguments that were tried and work.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seed {
    /// Where it is found: `torch.nn.ReLU`, `torch.nn.functional.relu`, `torch.Tensor.relu`.
    pub path: String,
    /// What it computes, by PyTorch's functional name.
    pub op: String,
    pub form: Form,
    pub family: Family,
    /// Names of the functional form's tensors, in order.
    pub tensors: Vec<String>,
    /// Shapes of a module's parameters and buffers as it was tried.
    pub state: BTreeMap<String, Vec<u64>>,
    /// Whether a number will do for the second tensor.
    pub scalar: bool,
    pub variants: Vec<Variant>,
}

/// How it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    Module,
    Function,
    Method,
}

/// Arguments that work.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Those that must be spelled out, by the names of the class or function itself.
    pub given: BTreeMap<String, Value>,
    /// All of the functional form.
    pub arguments: BTreeMap<String, Value>,
    /// Where results are finite, of pointwise operators.
    #[serde(default)]
    pub domain: Domain,
    #[serde(default)]
    pub image: Domain,
    pub inputs: Vec<Value>,
    pub outputs: Vec<Value>,
}

/// What is known of a value's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Domain {
    #[default]
    Real,
    NonNegative,
    Positive,
    /// From -1 to 1.
    Symmetric,
    /// Between 0 and 1, and neither.
    Unit,
}

impl Domain {
    /// Whether every element of `self` is one of `other`.
    pub fn within(self, other: Self) -> bool {
        match other {
            Self::Real => true,
            Self::NonNegative => matches!(self, Self::NonNegative | Self::Positive | Self::Unit),
            Self::Positive => matches!(self, Self::Positive | Self::Unit),
            Self::Symmetric => matches!(self, Self::Symmetric | Self::Unit),
            Self::Unit => self == Self::Unit,
        }
    }
}

/// What kind of operator it is: how its arguments and its result follow from its operands' shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    AdaptivePool,
    Attention,
    Bilinear,
    Binary,
    ChannelNormalisation,
    ClassLoss,
    Convolution,
    Distance,
    GroupNormalisation,
    Halving,
    IndexAlong,
    IndexReduction,
    LearnedSlope,
    Linear,
    LocalResponse,
    Lookup,
    Loss,
    Masked,
    /// Works as it was tried; the grammar knows no rule for its shapes. A model may still compose it.
    Other,
    Pad,
    PairedReduction,
    Pick,
    Pointwise,
    Pool,
    Predicate,
    Product,
    Ranked,
    RankedReduction,
    Recurrent,
    Reduction,
    Resize,
    RowNormalisation,
    Scan,
    Shuffle,
    Ternary,
    Total,
    TransposedConvolution,
    Triangle,
    View,
    Where,
}

/// A line of seeds that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("seed {line} is broken")]
pub struct BrokenSeed {
    pub line: usize,
    #[source]
    pub source: serde_json::Error,
}

/// Seeds, with those of one family at hand.
#[derive(Debug, Clone)]
pub struct Seeds {
    all: Vec<Seed>,
    /// Places in `all`, by family and then by operator: what has three spellings is not three times as likely.
    families: BTreeMap<Family, BTreeMap<String, Vec<usize>>>,
}

impl Seeds {
    /// Those that ship with this crate.
    pub fn torch() -> Result<Self, BrokenSeed> {
        Self::read(include_str!("../data/torch.jsonl"))
    }

    /// JSON lines, one seed each.
    pub fn read(text: &str) -> Result<Self, BrokenSeed> {
        let mut all = Vec::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let seed: Seed = serde_json::from_str(line).map_err(|source| BrokenSeed {
                line: index + 1,
                source,
            })?;
            all.push(seed);
        }
        let mut families: BTreeMap<Family, BTreeMap<String, Vec<usize>>> = BTreeMap::new();
        for (place, seed) in all.iter().enumerate() {
            let ops = families.entry(seed.family).or_default();
            ops.entry(seed.op.clone()).or_default().push(place);
        }
        Ok(Self { all, families })
    }

    pub fn all(&self) -> &[Seed] {
        &self.all
    }

    /// Operators of a family, each with its spellings.
    pub(crate) fn of(&self, family: Family) -> Vec<Vec<&Seed>> {
        let spellings = |places: &Vec<usize>| places.iter().map(|at| &self.all[*at]).collect();
        self.families
            .get(&family)
            .map(|ops| ops.values().map(spellings).collect())
            .unwrap_or_default()
    }
}
