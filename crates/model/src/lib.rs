//! Whoever writes the kernels, behind one trait ([`policy`]): endpoints, scripts, and language models that run in this
//! process, which is the rest of this crate: weights, the transformer, tokens and generation.
//!
//! Llama, Qwen2 and Qwen3, from GGUF files and safetensors folders. On the processor quantised weights stay quantised; on a
//! device ([`gpu`]) they are bfloat16. Generation is the same for both. All of it behind the feature `local`.

#[cfg(feature = "local")]
mod adapter;
#[cfg(feature = "local")]
mod attention;
#[cfg(feature = "local")]
mod cache;
#[cfg(feature = "local")]
pub mod catalogue;
#[cfg(feature = "local")]
pub mod chat;
#[cfg(feature = "local")]
mod config;
#[cfg(feature = "local")]
mod error;
#[cfg(feature = "local")]
pub mod export;
#[cfg(feature = "local")]
mod generate;
#[cfg(feature = "local")]
mod generation_thread;
#[cfg(feature = "local")]
pub mod gguf;
#[cfg(feature = "local")]
pub mod gpu;
#[cfg(feature = "local")]
mod host_tensor;
#[cfg(feature = "local")]
mod matrix;
#[cfg(feature = "local")]
mod model_source;
pub mod policy;
#[cfg(feature = "local")]
mod products;
#[cfg(feature = "local")]
pub mod quantized;
#[cfg(feature = "local")]
mod safetensors_file;
#[cfg(feature = "local")]
mod shared_output;
#[cfg(feature = "local")]
mod tokenizer;
#[cfg(feature = "local")]
pub mod trained;
#[cfg(feature = "local")]
mod transformer;
#[cfg(feature = "local")]
mod weights;

#[cfg(feature = "local")]
pub use adapter::{
    Adapter, AdapterError, AdapterSettings, LoraPair, LoraTarget, LoraUpdate, Projection, Scaling,
};
#[cfg(feature = "local")]
pub use cache::KvCache;
#[cfg(feature = "local")]
pub use chat::{ChatTemplate, Role, TemplateMessage, TemplateToolCall, Tool};
#[cfg(feature = "local")]
pub use config::{ModelConfig, ModelFamily, Rope, RopeScaling};
#[cfg(feature = "local")]
pub use error::ModelError;
#[cfg(feature = "local")]
pub use generate::{
    BatchLimits, Cache, Completion, EndReason, Engine, EngineEvent, GenerationRequest, RequestId,
    Runner, Sampled, Sampler, SequenceStep,
};
#[cfg(feature = "local")]
pub use generation_thread::{
    GenerationStopped, GenerationStream, GenerationThread, GenerationUpdate,
};
#[cfg(feature = "local")]
pub use host_tensor::HostTensor;
#[cfg(feature = "local")]
pub use matrix::{Linear, Matrix};
#[cfg(feature = "local")]
pub use model_source::{LocatedModel, ModelSource};
#[cfg(feature = "local")]
pub use safetensors_file::SafetensorsFile;
#[cfg(feature = "local")]
pub use tokenizer::{TextStream, Tokenizer};
#[cfg(feature = "local")]
pub use transformer::{LogitsFor, Segment, Transformer};
#[cfg(feature = "local")]
pub use weights::{HeadNorms, LayerWeight, LayerWeights, WeightName, Weights};
