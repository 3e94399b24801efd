use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a composed task computes, by the one who composed it: every value of `forward`, each after those it is made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OpGraph {
    pub values: Vec<GraphValue>,
    /// Which of them `forward` returns: places in `values`, in order.
    pub returns: Vec<usize>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphValue {
    pub shape: Vec<u64>,
    pub dtype: Dtype,
    pub from: ValueSource,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ValueSource {
    /// An argument of `forward`.
    Input { position: usize },
    /// A parameter or buffer of the module, by its name in `state_dict`.
    State { name: String },
    /// What an operator made.
    Applied {
        /// PyTorch's functional name of it, however the module spells it: `relu` for `nn.ReLU`, `F.relu` and `x.relu()`.
        op: String,
        /// Places in `values`, in the order of the functional form; null for an optional one that is not given.
        inputs: Vec<Option<usize>>,
        /// Arguments that are no tensors, by the names of the functional form. All are here, defaults too.
        arguments: BTreeMap<String, serde_json::Value>,
        /// Which of the operator's results it is, from zero.
        result: usize,
    },
}

/// Element types that tasks use, by PyTorch's names.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    Float64,
    Float32,
    Float16,
    Bfloat16,
    Int64,
    Int32,
    Int16,
    Int8,
    Uint8,
    Bool,
}
