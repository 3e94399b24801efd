//! Operators that compositions are made of, found by walking PyTorch (`python/walk.py`) and kept as data.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// One class or function, with arguments that were tried and work.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorSeed {
    /// Where it is found: `torch.nn.ReLU`, `torch.nn.functional.relu`, `torch.Tensor.relu`.
    pub path: String,
    /// What it computes, by PyTorch's functional name.
    pub op: String,
    pub form: CallForm,
    pub family: OperatorFamily,
    /// Names of the functional form's tensors, in order.
    pub tensors: Vec<String>,
    /// Shapes of a module's parameters and buffers as it was tried.
    pub state: BTreeMap<String, Vec<u64>>,
    /// Whether a number will do for the second tensor.
    pub scalar: bool,
    pub variants: Vec<SeedVariant>,
}

/// How it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallForm {
    Module,
    Function,
    Method,
}

/// Arguments that work.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeedVariant {
    /// Those that must be spelled out, by the names of the class or function itself.
    pub given: BTreeMap<String, Value>,
    /// All of the functional form.
    pub arguments: BTreeMap<String, Value>,
    /// Where results are finite, of pointwise operators.
    #[serde(default)]
    pub domain: ValueDomain,
    #[serde(default)]
    pub image: ValueDomain,
    pub inputs: Vec<Value>,
    pub outputs: Vec<Value>,
}

/// What is known of a value's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueDomain {
    #[default]
    Real,
    NonNegative,
    Positive,
    /// From -1 to 1.
    Symmetric,
    /// Between 0 and 1, and neither.
    Unit,
}

impl ValueDomain {
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
pub enum OperatorFamily {
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

/// A layer of a library, with its source: it needs nothing but PyTorch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerLayer {
    pub path: String,
    /// A whole task, in which sizes stand as `@BATCH@`, `@LENGTH@`, `@HIDDEN@` and `@WIDE@`.
    pub code: String,
}

/// Layers of transformers that stand by themselves (`python/walk_transformers.py`).
pub fn transformer_layers() -> Result<Vec<TransformerLayer>, SeedError> {
    lines(include_str!("../data/transformers.jsonl"))
}

fn lines<T: serde::de::DeserializeOwned>(text: &str) -> Result<Vec<T>, SeedError> {
    let line = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|source| SeedError {
            line: index + 1,
            source,
        })
    };
    let filled = |(_, line): &(usize, &str)| !line.trim().is_empty();
    text.lines().enumerate().filter(filled).map(line).collect()
}

/// A line of seeds that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("seed {line} is broken")]
pub struct SeedError {
    pub line: usize,
    #[source]
    pub source: serde_json::Error,
}

/// Seeds, with those of one family at hand.
#[derive(Debug, Clone)]
pub struct SeedCatalogue {
    all: Vec<OperatorSeed>,
    /// Places in `all`, by family and then by operator: what has three spellings is not three times as likely.
    families: BTreeMap<OperatorFamily, BTreeMap<String, Vec<usize>>>,
}

impl SeedCatalogue {
    /// Those that ship with this crate.
    pub fn torch() -> Result<Self, SeedError> {
        Self::read(include_str!("../data/torch.jsonl"))
    }

    /// JSON lines, one seed each.
    pub fn read(text: &str) -> Result<Self, SeedError> {
        let all: Vec<OperatorSeed> = lines(text)?;
        let mut families: BTreeMap<OperatorFamily, BTreeMap<String, Vec<usize>>> = BTreeMap::new();
        for (place, seed) in all.iter().enumerate() {
            let ops = families.entry(seed.family).or_default();
            ops.entry(seed.op.clone()).or_default().push(place);
        }
        Ok(Self { all, families })
    }

    pub fn all(&self) -> &[OperatorSeed] {
        &self.all
    }

    /// Operators of a family, each with its spellings.
    pub(crate) fn of(&self, family: OperatorFamily) -> Vec<Vec<&OperatorSeed>> {
        let spellings = |places: &Vec<usize>| places.iter().map(|at| &self.all[*at]).collect();
        self.families
            .get(&family)
            .map(|ops| ops.values().map(spellings).collect())
            .unwrap_or_default()
    }
}
