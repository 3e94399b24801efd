//! Our own CUDA kernels for language models.
//!
//! [`Gpu`] holds a device, its stream and everything loaded on it; each kernel is a method of it. Activations that matrices
//! read are bfloat16, the residual stream and all sums are float32. [`twin`] has the same in plain Rust: slow, obviously
//! right, and what the kernels are tested against.
//!
//! The kernels are in `cuda/`, and as PTX, which the driver compiles for the device at hand, in `ptx/`:
//! `scripts/kernels-ptx` makes one from the other, once for all devices and once for Hopper.

mod attention;
mod blas;
mod error;
mod few_rows;
mod gpu;
mod graph;
mod launch;
mod linear;
mod rows;
mod sample;
pub mod training;
pub mod twin;

pub use attention::{Cached, Decoding, MOST_IN_GROUP, TILE, Tile};
pub use cudarc::driver::{CudaSlice as Buffer, CudaView as View, CudaViewMut as ViewMut};
pub use error::GpuError;
pub use few_rows::{FEW, Stream, Written};
pub use gpu::Gpu;
pub use graph::Graph;
pub use half::bf16;
pub use linear::{Product, Sum};
pub use rows::{AT_ONCE, Rotation};
pub use sample::{Choice, Chosen, Parts};
