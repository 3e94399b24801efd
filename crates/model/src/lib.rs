//! Whoever writes the kernels, behind one trait ([`policy`]): endpoints, scripts, and language models that run in this
//! process, which is the rest of this crate: weights, the transformer, tokens and generation.
//!
//! Llama, Qwen2 and Qwen3, from GGUF files and safetensors folders. Quantised weights stay
//! quantised; everything is computed on the processor.

mod attention;
mod cache;
pub mod catalogue;
pub mod chat;
mod config;
mod error;
mod generate;
mod gguf;
mod matrix;
pub mod policy;
mod q4_1;
mod tokenizer;
mod transformer;
mod weights;

pub use cache::KvCache;
pub use chat::{ChatTemplate, Message, Role, Tool, ToolCall};
pub use config::{Config, Family, Rope, RopeScaling};
pub use error::ModelError;
pub use generate::{Engine, Event, Finish, Limits, Reply, Request, RequestId, Sampled, Sampling};
pub use matrix::{Linear, Matrix, Rows};
pub use q4_1::Q4_1;
pub use tokenizer::{TextStream, Tokenizer};
pub use transformer::{Segment, Transformer, Wanted};
pub use weights::{HeadNorms, Layer, Weights};
