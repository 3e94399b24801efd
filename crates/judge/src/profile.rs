//! Where the time goes: the reference by operator against the machine's roofline, and a solution by kernel.
//!
//! The reference is trusted code and is profiled in a process of its own. A solution runs only inside the sandbox, and
//! what is said there (times, kernel names, counters) is the candidate's own word: [`SolutionProfile::untrusted`] marks
//! it. For a time to bet on there is the judge.
//!
//! Calls start with cold caches and repeat on the same inputs. Not covered: several input variants (the first is taken),
//! kernels that a solution launches from other processes, and traffic inside an operator that `PyTorch` does not show.

mod disassembly;
mod reference;
mod report;
mod resources;
mod solution;
mod tools;

use warpsmith_machine::{Caches, GpuInfo, Nvcc, Python};
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{FORMAT, Submission, Target, Task};

use crate::JudgeError;
use crate::harness::Harness;
use crate::lease::lease_device;
use crate::toolchain::Toolchain;

pub use disassembly::{Disassembly, disassemble};
pub use report::{
    Bound, KernelTime, NcuKernel, OperatorTime, ProfileReport, ReferenceProfile, Roofline,
    SanitizerReport, SolutionFailure, SolutionKernel, SolutionProfile,
};
pub use resources::{KernelResources, occupancy, parse_ptxas};
pub(crate) use solution::read_small;

/// What to profile, and with what.
#[derive(Debug, Clone)]
pub struct ProfileRequest {
    pub task: Task,
    /// Profiled beside the reference, if given.
    pub solution: Option<Submission>,
    pub target: Target,
    /// The GPU's number, as the driver counts.
    pub device: u32,
    pub python: Python,
    pub caches: Caches,
    /// Runs compute-sanitizer on the solution too.
    pub sanitize: bool,
    pub isolation: Isolation,
}

/// What both halves need.
struct ProfileContext<'a> {
    request: &'a ProfileRequest,
    harness: Harness,
    gpu: Option<GpuInfo>,
    toolchain: Toolchain,
}

/// Profiles the reference and, if given, a solution. A solution that does not build or run is part of the report.
pub fn profile(request: &ProfileRequest) -> Result<ProfileReport, JudgeError> {
    let bench = ProfileContext::new(request)?;
    // Whoever is timed meanwhile would be timed wrong, and what is measured here too.
    let _lease = lease_device(bench.gpu.as_ref())?;
    // Readable by whoever the sandbox runs as; the folder's name is nobody's business.
    let job = tempfile::tempdir().map_err(JudgeError::io("make a job folder"))?;
    let mut trusted = reference::ReferenceProcess::start(&bench)?;
    let roofline = trusted.roofline(&bench, false)?;
    let taken = trusted.profile(&bench, request.solution.as_ref().map(|_| job.path()))?;
    let torch = trusted.torch().to_owned();
    let mut reference = reference::conclude(&taken, roofline, request.target);
    if reference.headroom < 1.0 {
        // Nothing beats the floor: the machine was busy when it was measured.
        reference = reference::conclude(&taken, trusted.roofline(&bench, true)?, request.target);
    }
    // Its memory and its device are free before the solution starts.
    drop(trusted);
    let solution = match (&request.solution, &taken.job) {
        (Some(submission), Some(saved)) => Some(solution::profile(
            &bench,
            submission,
            saved,
            job.path(),
            &reference,
        )?),
        _ => None,
    };
    Ok(ProfileReport {
        format: FORMAT,
        task: request.task.name.clone(),
        target: request.target,
        device: bench.device_name(),
        torch,
        reference,
        solution,
    })
}

impl<'a> ProfileContext<'a> {
    fn new(request: &'a ProfileRequest) -> Result<Self, JudgeError> {
        let cxx = warpsmith_machine::find_cxx().ok_or_else(|| JudgeError::Infrastructure {
            code: "no_compiler",
            message: "no C++ compiler was found".to_owned(),
            hint: Some("install g++ (`apt install g++`)".to_owned()),
        })?;
        let (gpu, nvcc) = cuda_parts(request)?;
        let harness = Harness::install(&request.caches, &request.python, &cxx)?;
        let toolchain = Toolchain {
            caches: request.caches.clone(),
            python: request.python.clone(),
            cxx,
            nvcc,
            target: request.target,
            arch: gpu
                .as_ref()
                .map(|gpu| format!("{}{}", gpu.compute_capability.0, gpu.compute_capability.1)),
            isolation: request.isolation,
        };
        Ok(Self {
            request,
            harness,
            gpu,
            toolchain,
        })
    }

    fn device_name(&self) -> String {
        self.gpu
            .as_ref()
            .map_or_else(|| warpsmith_machine::cpu().name, |gpu| gpu.name.clone())
    }
}

/// The GPU asked for, and nvcc where a solution must be compiled: a reference needs none.
fn cuda_parts(request: &ProfileRequest) -> Result<(Option<GpuInfo>, Option<Nvcc>), JudgeError> {
    if request.target == Target::Cpu {
        return Ok((None, None));
    }
    let gpu = warpsmith_machine::gpus()
        .into_iter()
        .find(|gpu| gpu.index == request.device);
    let gpu = gpu.ok_or_else(|| JudgeError::Config {
        code: "no_gpu",
        message: format!("there is no GPU {} on this machine", request.device),
        hint: Some(
            "use `--target cpu`, or another `--device`; `warpsmith doctor` lists what was found"
                .to_owned(),
        ),
    })?;
    let nvcc = warpsmith_machine::find_nvcc();
    if nvcc.is_none() && request.solution.is_some() {
        return Err(JudgeError::Infrastructure {
            code: "no_nvcc",
            message: "the CUDA compiler nvcc was not found".to_owned(),
            hint: Some("install the CUDA toolkit, or set CUDA_HOME".to_owned()),
        });
    }
    Ok((Some(gpu), nvcc))
}
