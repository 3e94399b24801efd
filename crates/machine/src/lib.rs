//! What this machine offers: GPUs, compilers, Python with torch, downloads, cache folders.
//!
//! Everything here looks from outside and believes only what it can check: a Python is inspected
//! without importing torch, a download counts once its hash is right, and an installation counts
//! once its marker was written last. Nothing here runs candidate code.

mod caches;
mod command;
mod download;
mod environment;
mod error;
mod gpu;
mod host;
mod http;
mod index;
mod lease;
mod progress;
mod python;
mod report;
mod toolchain;
mod torch;
mod uv;

pub use caches::{CacheEntry, Caches};
pub use download::{Source, download};
pub use environment::{Estimate, ensure_python, estimate};
pub use error::MachineError;
pub use gpu::{Clocks, Gpu, gpu_clocks, gpus};
pub use host::{Cpu, cpu, free_disk, memory_bytes};
pub use http::http_agent;
pub use lease::{Guest, Lease, Visit};
pub use progress::{Bars, Progress, Silent};
pub use python::{Python, PythonChoice, find_python};
pub use report::{Advice, Disk, Report, doctor};
pub use toolchain::{Compiler, Nvcc, find_cxx, find_nvcc};
pub use torch::Torch;
