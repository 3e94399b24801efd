//! CUDA kernels for language models, and training on them.
//!
//! [`Gpu`] holds a device, its stream and the loaded kernels; each kernel is a method of it. Inputs of matrix products are bfloat16,
//! the residual stream and all sums are float32. [`training`] has models that train.
//!
//! The kernels' sources are in `cuda/`. `scripts/kernels-ptx` compiles them to PTX, which the driver compiles for the device at hand.

mod blas;
mod error;
mod gemm;
mod gpu;
mod graph;
mod kv_attention;
mod launch;
mod ptx;
mod rowwise;
mod sampling;
mod skinny_gemm;
pub mod training;

pub use cudarc::driver::{CudaSlice as Buffer, CudaView as View, CudaViewMut as ViewMut};
pub use error::GpuError;
pub use gemm::{GemmOutput, GemmWrite, WriteMode};
pub use gpu::Gpu;
pub use graph::CudaGraph;
pub use half::bf16;
pub use kv_attention::{DecodeScratch, KvCacheLayer, MAX_QUERY_GROUP, PREFILL_TILE, PrefillTile};
pub use rowwise::{QkvRope, VEC};
pub use sampling::{RowSample, RowSampling, SamplingScratch};
pub use skinny_gemm::{DeferredNormStream, SKINNY_GEMM_MAX_ROWS};
