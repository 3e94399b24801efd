//! Training of language models: every forward step has its backward step, written out.
//!
//! The types here describe a model and its batches and are the same for every device. What trains is all of a model (full
//! fine-tuning) or LoRA matrices beside a frozen one; a model has its LM head, as a policy, or a value head, as a critic.

mod adamw;
mod batch;
pub mod cpu;
pub mod gpu;
mod layout;
mod lora;
mod model;
mod trainable;

pub use adamw::{AdamW, AdamWParameter, AdamWStep, WeightDecay};
pub use batch::{PackedBatch, TokenScores, TokenSequence};
pub use layout::{
    AttentionShape, ModelShape, Parameter, ParameterLayout, Projection, ProjectionBiases,
};
pub use lora::{LoraLayout, LoraSpec, LoraWidths};
pub use model::TrainableModel;
pub use trainable::{
    FrozenModel, ModelHead, TrainState, TrainableInit, TrainableLayout, value_head_len,
};
