use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The computation of a task as a graph: every value of `forward`, in topological order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OpGraph {
    pub values: Vec<GraphValue>,
    /// Indices into `values` of what `forward` returns, in order.
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
    /// The result of an operator.
    Applied {
        /// Its functional name in PyTorch, whatever the module's spelling: `relu` for `nn.ReLU`, `F.relu` and `x.relu()`.
        op: String,
        /// Indices into `values`, in the order of the functional form; null for an optional argument that is absent.
        inputs: Vec<Option<usize>>,
        /// Arguments that are not tensors, by the names of the functional form, defaults included.
        arguments: BTreeMap<String, serde_json::Value>,
        /// Index among the operator's results.
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
