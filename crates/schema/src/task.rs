use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::OpGraph;

/// A problem to solve: a PyTorch module in KernelBench form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// Stable within its source, such as `level1/19`.
    pub id: String,
    pub name: String,
    /// The text of `model.py`: `Model`, `get_inputs` and `get_init_inputs`.
    pub source: String,
    pub level: Option<u32>,
    pub problem_id: Option<u32>,
    /// Where it was loaded from.
    pub origin: String,
    /// Its computation, where it is known: composed tasks carry it.
    #[serde(default)]
    pub graph: Option<OpGraph>,
}

impl Task {
    /// A module of which nothing is known but its name and its text.
    pub fn of_source(name: impl Into<String>, source: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            id: name.clone(),
            name,
            source: source.into(),
            level: None,
            problem_id: None,
            origin: String::new(),
            graph: None,
        }
    }
}
