//! What a profile says. Within format 1 fields are only added; an absent value is `null`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use warpsmith_schema::Target;

/// The answer to `warpsmith profile`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileReport {
    pub format: u32,
    pub task: String,
    pub target: Target,
    pub device: String,
    /// Version of `PyTorch`.
    pub torch: String,
    pub reference: ReferenceProfile,
    pub solution: Option<SolutionProfile>,
}

/// The task's own module, eager, with TF32 off.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReferenceProfile {
    /// Slowest first.
    pub operators: Vec<OperatorTime>,
    /// Device time by kernel, on CUDA.
    pub kernels: Option<Vec<KernelTime>>,
    /// The same for `torch.compile`, on CUDA.
    pub compile_kernels: Option<Vec<KernelTime>>,
    /// One call of the compiled module, on CUDA.
    pub compile_us: Option<f64>,
    /// Why there is nothing about `torch.compile`.
    pub compile_why: Option<String>,
    /// One call: the lower quartile of several, each with cold caches.
    pub total_us: f64,
    /// Moved by all operators together.
    pub bytes: u64,
    /// Inputs and weights as far as they are used, once, and outputs: what no implementation can avoid.
    pub min_bytes: u64,
    pub flops: u64,
    /// Operations per byte of `min_bytes`.
    pub intensity: f64,
    pub bound: Bound,
    pub roofline: Roofline,
    /// No implementation in the same precision is faster on this machine: `min_bytes` at full bandwidth or `flops` at
    /// full rate, whichever takes longer.
    pub floor_us: f64,
    /// `total_us` over `floor_us`.
    pub headroom: f64,
}

/// What limits a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Its traffic takes longer than its arithmetic.
    Memory,
    /// Its arithmetic takes longer than its traffic.
    Compute,
    /// Neither: most of the time goes into launching and dispatching operators.
    Overhead,
}

impl Bound {
    /// As it is written on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Compute => "compute",
            Self::Overhead => "overhead",
        }
    }
}

/// What the machine was measured to reach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    pub bandwidth_gbps: f64,
    pub fp32_gflops: f64,
    /// Of a GEMM with TF32 on, on CUDA.
    pub tf32_gflops: Option<f64>,
    /// Of a bfloat16 GEMM, on CUDA.
    pub half_gflops: Option<f64>,
    /// How these were found.
    pub how: String,
}

/// All calls of one operator in one call of the module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperatorTime {
    pub name: String,
    pub calls: u64,
    pub time_us: f64,
    /// Of the time of all operators.
    pub share: f64,
    pub bytes: u64,
    pub flops: u64,
    pub gbps: f64,
    pub gflops: f64,
}

/// All launches of one kernel in one call of the module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelTime {
    pub name: String,
    pub calls: f64,
    pub time_us: f64,
    /// Of the device time of all kernels.
    pub share: f64,
}

/// A solution, as it describes itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SolutionProfile {
    /// Always true: these numbers were taken in a process that the solution could change at will.
    pub untrusted: bool,
    /// Why there are no times, if the solution did not build or run.
    pub failure: Option<SolutionFailure>,
    /// Kernels on CUDA; launchers and operators on the CPU. Slowest first.
    pub kernels: Vec<SolutionKernel>,
    /// One call: the lower quartile of several, each with cold caches.
    pub total_us: Option<f64>,
    /// The reference's `min_bytes` over `total_us`.
    pub gbps: Option<f64>,
    /// `total_us` over the reference's `floor_us`.
    pub headroom: Option<f64>,
    /// What Nsight Compute counted, by kernel.
    pub ncu: Option<Vec<NcuKernel>>,
    pub ncu_why: Option<String>,
    /// What compute-sanitizer found, by tool.
    pub sanitizer: Option<Vec<SanitizerReport>>,
    pub sanitizer_why: Option<String>,
    /// What the compilers said.
    pub build_log: String,
}

/// How far a solution got.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SolutionFailure {
    /// `form`, `compile` or `run`.
    pub stage: String,
    pub message: String,
}

/// One kernel of a solution; on the CPU one launcher or operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SolutionKernel {
    pub name: String,
    pub calls: f64,
    pub time_us: f64,
    pub share: f64,
    /// Threads in a block.
    pub threads: Option<u32>,
    /// Blocks in the grid.
    pub blocks: Option<u64>,
    /// Per thread.
    pub registers: Option<u32>,
    /// Stores and loads together, per thread, as the assembler reported them.
    pub spill_bytes: Option<u32>,
    /// Static and dynamic, per block.
    pub shared_bytes: Option<u32>,
    /// Per thread, as the assembler reported it.
    pub stack_bytes: Option<u32>,
    /// Resident warps over the most a multiprocessor holds, from registers, shared memory and block size.
    pub occupancy: Option<f64>,
}

/// Nsight Compute's counters of one kernel, averaged over its launches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NcuKernel {
    pub name: String,
    pub launches: u64,
    /// In base units: bytes, nanoseconds, percent.
    pub metrics: BTreeMap<String, f64>,
    /// The reason warps wait for most, if its counters were there.
    pub top_stall: Option<String>,
}

/// What one tool of compute-sanitizer found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SanitizerReport {
    pub tool: String,
    /// `null` when the tool did not come to its summary.
    pub errors: Option<u64>,
    pub log: String,
}
