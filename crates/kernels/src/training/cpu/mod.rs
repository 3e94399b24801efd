//! Training on the CPU: the backend of machines without a GPU, and what the GPU kernels are tested against.
//!
//! Everything is written for `f32`, in which models train, and `f64`, in which gradients can be compared with differences. The same
//! batch gives the same result, whatever the number of threads.

mod attention;
mod cross_entropy;
mod gemm;
mod model;
mod ops;
mod optimizer;
mod real;
mod weights;

pub use attention::{AttentionOutput, attention, attention_bwd};
pub use cross_entropy::LogitStats;
pub use model::CpuTrainableModel;
pub use ops::{rms_norm, rms_norm_bwd, rope, rope_angles, rope_bwd, swiglu, swiglu_bwd};
pub use real::Real;
pub use weights::CpuFrozenWeights;
