use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What operator names stand for, as a Python module: whoever interprets graphs imports it.
pub const GRAPH_FORMS: &str = include_str!("../python/graph_forms.py");

/// The computation of a task as a graph: every value of `forward`, in topological order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OpGraph {
    pub values: Vec<GraphValue>,
    /// Indices into `values` of what `forward` returns, in order.
    pub returns: Vec<usize>,
    /// How `forward` nests them, where that is neither one tensor nor a flat sequence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nesting: Option<OutputNesting>,
}

/// How tensors are nested in what `forward` returns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputNesting {
    /// The next one of `returns`.
    Tensor,
    /// A tuple or a list.
    Sequence(Vec<OutputNesting>),
    /// A dict: keys with what they hold, in order.
    Dict(Vec<(String, OutputNesting)>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GraphValue {
    pub shape: Vec<u64>,
    pub dtype: Dtype,
    pub from: ValueSource,
    /// The line of `model.py` that computes it, where a graph was captured from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ValueSource {
    /// An argument of `forward`.
    Input { position: usize },
    /// A number among the arguments of `forward`; it has no dimensions.
    Scalar { position: usize },
    /// A tensor that is written in the module's text: its elements in row-major order.
    Constant { data: Vec<serde_json::Value> },
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
