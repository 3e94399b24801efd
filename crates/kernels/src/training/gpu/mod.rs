//! Training on a GPU, by kernels of our own and cuBLAS.
//!
//! Trainable weights, gradients and optimizer moments are float32; what matrix products read is bfloat16. Sums over rows are made in
//! a fixed order, so that the same step gives the same result.

mod activations;
mod adamw;
mod batch;
mod buffers;
mod cross_entropy;
mod embedding;
mod flash_attn;
mod frozen;
mod gather;
mod kernels;
mod model;
mod pass;
mod reductions;
mod rms_norm;
mod rope;
mod swiglu;
mod weights;

pub use activations::{ActivationCheckpointing, BatchCapacity};
pub use adamw::DeviceParameters;
pub use buffers::TrainBuffers;
pub use cross_entropy::{CrossEntropyRows, ScoreGrad};
pub use embedding::TokenOccurrences;
pub use flash_attn::{FlashAttnBwd, FlashAttnFwd, FlashAttnKind, SequenceBlock, SequenceBlocks};
pub use frozen::FrozenWeights;
pub(crate) use kernels::TrainingKernels;
pub use model::GpuTrainableModel;
pub use reductions::PARTIALS;
pub use rope::{RopeTables, cos_sin_table};
