use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A solution, frozen: exactly these bytes are judged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Submission {
    pub form: Form,
    /// Relative path to content: `model_new.py` and `kernels/**`.
    pub files: BTreeMap<String, Vec<u8>>,
}

/// How a solution is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// The CUDA Agent workspace: `cuda_extension` with bindings in C++.
    CudaAgent,
    /// Our own: `extern "C"` launchers called through `warpsmith_kernels`, no torch headers.
    Plain,
    /// One KernelBench-style file with `load_inline`.
    Inline,
}

impl Form {
    pub fn name(self) -> &'static str {
        match self {
            Self::CudaAgent => "cuda_agent",
            Self::Plain => "plain",
            Self::Inline => "inline",
        }
    }
}

/// The one file every solution has.
pub const MODEL_NEW: &str = "model_new.py";
