//! What this machine offers: GPUs, compilers, Python with torch, downloads, cache folders.
//!
//! Everything here is found from outside and checked: a Python is inspected without importing
//! torch, a download counts once its hash is right, and an installation counts once its marker
//! exists, which is written last. Nothing here runs candidate code.

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
pub use command::{CommandAnswer, run_briefly};
pub use download::{DownloadSource, download};
pub use environment::{InstallEstimate, ensure_python, install_estimate};
pub use error::MachineError;
pub use gpu::{GpuClocks, GpuInfo, gpu_clocks, gpus};
pub use host::{CpuInfo, cpu, free_disk, memory_bytes};
pub use http::http_agent;
pub use lease::{DeviceLease, SharedDevice, SharedLease};
pub use progress::{NoProgress, ProgressBars, ProgressReporter};
pub use python::{Python, PythonChoice, find_python};
pub use report::{Advice, DiskSpace, MachineReport, inspect_machine};
pub use toolchain::{CxxCompiler, Nvcc, find_cxx, find_nvcc};
pub use torch::Torch;
