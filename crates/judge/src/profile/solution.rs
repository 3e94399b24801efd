//! The untrusted half: a solution is built as the judge builds it and run by a driver inside the sandbox. The driver's
//! answer is a file that is read with care and believed in nothing.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err as fs;
use serde::Deserialize;
use serde_json::{Value, json};
use warpsmith_sandbox as sandbox;
use warpsmith_schema::Target;

use super::ProfileContext;
use super::reference::{lower_quartile, ratio};
use super::report::{ReferenceProfile, SolutionFailure, SolutionKernel, SolutionProfile};
use super::resources::{KernelResources, occupancy, parse_ptxas, resources_of};
use super::tools;
use crate::JudgeError;
use crate::submission::{
    BuildUnit, Extension, MODEL_NEW, Submission, SubmissionForm, folder_unit, inline_units,
};
use crate::toolchain::{BuildResult, BuiltLibrary};
use crate::zygote::{WorkerLimits, cuda_devices, cuda_paths, device_environment};

const RUN_LIMIT: Duration = Duration::from_mins(3);
const EXTRACT_LIMIT: Duration = Duration::from_mins(1);
/// The driver's honest answers are a few kilobytes.
const RESULT_LIMIT: u64 = 4 << 20;
const KERNELS_KEPT: usize = 64;

/// What the driver says; every field may be a lie.
#[derive(Debug, Deserialize)]
struct DriverAnswer {
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    times_us: Vec<f64>,
    #[serde(default)]
    kernels: Vec<DriverKernel>,
    #[serde(default)]
    extensions: Vec<Extension>,
}

#[derive(Debug, Deserialize)]
struct DriverKernel {
    name: String,
    calls: f64,
    time_us: f64,
    #[serde(default)]
    threads: Option<u32>,
    #[serde(default)]
    blocks: Option<u64>,
    #[serde(default)]
    registers: Option<u32>,
    #[serde(default)]
    shared_bytes: Option<u32>,
}

/// Why a solution has no profile: its own fault, or ours.
enum ProfileStop {
    Solution(SolutionFailure),
    Ours(JudgeError),
}

impl<E: Into<JudgeError>> From<E> for ProfileStop {
    fn from(error: E) -> Self {
        Self::Ours(error.into())
    }
}

fn solution_failure(stage: &str, message: impl Into<String>) -> ProfileStop {
    ProfileStop::Solution(SolutionFailure {
        stage: stage.to_owned(),
        message: message.into(),
    })
}

/// A program that runs the driver, or the driver by itself.
pub(super) struct ToolWrapper<'a> {
    pub(super) program: &'a Path,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(OsString, OsString)>,
    /// Folders the program needs.
    pub(super) read: Vec<PathBuf>,
}

/// A solution laid out to be run.
pub(super) struct SolutionJob<'a> {
    pub(super) bench: &'a ProfileContext<'a>,
    folder: &'a Path,
}

/// Builds and runs `submission` on what the trusted process left in `folder`.
pub(super) fn profile(
    bench: &ProfileContext<'_>,
    submission: &Submission,
    saved: &Value,
    folder: &Path,
    reference: &ReferenceProfile,
) -> Result<SolutionProfile, JudgeError> {
    let mut report = SolutionProfile {
        untrusted: true,
        failure: None,
        kernels: Vec::new(),
        total_us: None,
        gbps: None,
        headroom: None,
        ncu: None,
        ncu_why: None,
        sanitizer: None,
        sanitizer_why: None,
        build_log: String::new(),
    };
    match stages(bench, submission, saved, folder, reference, &mut report) {
        Ok(()) => {}
        Err(ProfileStop::Ours(error)) => return Err(error),
        Err(ProfileStop::Solution(failure)) => report.failure = Some(failure),
    }
    Ok(report)
}

fn stages(
    bench: &ProfileContext<'_>,
    submission: &Submission,
    saved: &Value,
    folder: &Path,
    reference: &ReferenceProfile,
    report: &mut SolutionProfile,
) -> Result<(), ProfileStop> {
    let job = SolutionJob { bench, folder };
    let Some(source) = submission.files.get(MODEL_NEW) else {
        return Err(solution_failure("form", "model_new.py is missing"));
    };
    job.lay_out(MODEL_NEW, source)?;
    let units = job.units(submission, saved)?;
    let libraries = match bench.toolchain.build(submission, &units)? {
        BuildResult::Ready { libraries, log } => {
            report.build_log = log;
            libraries
        }
        BuildResult::Failed { log } => {
            report.build_log.clone_from(&log);
            return Err(solution_failure("compile", log));
        }
    };
    job.describe("time", submission.form, &libraries, saved)?;
    let said = job.ask(RUN_LIMIT);
    if !matches!(said, Err(ProfileStop::Ours(_))) {
        // Above all where the solution crashed.
        (report.sanitizer, report.sanitizer_why) = tools::sanitizer(&job)?;
    }
    let said = said?;

    let total_us =
        Some(lower_quartile(&said.times_us)).filter(|total| *total > 0.0 && total.is_finite());
    report.total_us = total_us;
    report.gbps = total_us.map(|total| ratio(reference.min_bytes as f64 / 1e3, total));
    report.headroom = total_us.map(|total| ratio(total, reference.floor_us));
    report.kernels = kernels(&said.kernels, bench, &parse_ptxas(&report.build_log));

    (report.ncu, report.ncu_why) = tools::ncu(&job)?;
    Ok(())
}

/// What was said, with what is known from elsewhere about each kernel.
fn kernels(
    said: &[DriverKernel],
    bench: &ProfileContext<'_>,
    known: &[KernelResources],
) -> Vec<SolutionKernel> {
    let finite = |value: f64| {
        if value.is_finite() {
            value.max(0.0)
        } else {
            0.0
        }
    };
    let all: f64 = said.iter().map(|kernel| finite(kernel.time_us)).sum();
    let capability = bench.gpu.as_ref().map(|gpu| gpu.compute_capability);
    let one = |kernel: &DriverKernel| {
        let built = resources_of(&kernel.name, known);
        let registers = kernel.registers.or(built.map(|built| built.registers));
        let shared_bytes = kernel
            .shared_bytes
            .or(built.map(|built| built.shared_bytes));
        let occupancy = match (capability, kernel.threads, registers) {
            (Some(capability), Some(threads), Some(registers)) => {
                occupancy(capability, threads, registers, shared_bytes.unwrap_or(0))
            }
            _ => None,
        };
        SolutionKernel {
            name: kernel.name.chars().take(400).collect(),
            calls: finite(kernel.calls),
            time_us: finite(kernel.time_us),
            share: ratio(finite(kernel.time_us), all),
            threads: kernel.threads,
            blocks: kernel.blocks,
            registers,
            spill_bytes: built.map(|built| {
                built
                    .spill_store_bytes
                    .saturating_add(built.spill_load_bytes)
            }),
            shared_bytes,
            stack_bytes: built.map(|built| built.stack_bytes),
            occupancy,
        }
    };
    said.iter().take(KERNELS_KEPT).map(one).collect()
}

impl SolutionJob<'_> {
    /// What is to be built. A single file is run once in the sandbox to learn it.
    fn units(&self, submission: &Submission, saved: &Value) -> Result<Vec<BuildUnit>, ProfileStop> {
        match submission.form {
            SubmissionForm::Plain | SubmissionForm::CudaAgent => {
                return Ok(vec![folder_unit(submission)]);
            }
            SubmissionForm::Triton => {
                return Err(solution_failure(
                    "form",
                    "Triton solutions cannot be profiled yet: `warpsmith judge` judges them, and `warpsmith profile TASK` shows the reference",
                ));
            }
            SubmissionForm::Inline => {}
        }
        self.describe("extract", submission.form, &[], saved)?;
        let said = self.ask(EXTRACT_LIMIT)?;
        inline_units(said.extensions, self.bench.request.target)
            .map_err(|text| solution_failure("form", text))
    }

    /// Writes the driver's instructions and the libraries.
    fn describe(
        &self,
        mode: &str,
        form: SubmissionForm,
        libraries: &[BuiltLibrary],
        saved: &Value,
    ) -> Result<(), JudgeError> {
        for (index, library) in libraries.iter().enumerate() {
            let bytes = fs::read(&library.path).map_err(JudgeError::io("read a built library"))?;
            self.lay_out(&format!("{index}.so"), &bytes)?;
        }
        let named = |library: &BuiltLibrary| json!({ "name": library.name, "fingerprint": library.fingerprint });
        let job = json!({
            "mode": mode, "form": form.name(), "target": self.bench.request.target.name(),
            "threads": WorkerLimits::of_this_machine().threads,
            "support": self.bench.harness.support,
            "libraries": libraries.iter().map(named).collect::<Vec<_>>(),
            "inputs": saved["inputs"], "state": saved["state"], "init": saved["init"], "mutates": saved["mutates"],
        });
        self.lay_out("job.json", job.to_string().as_bytes())?;
        // The sandbox may run under another uid; everything here is the task's or the solution's own.
        let open = |path: &Path, mode| {
            fs::set_permissions(path, PermissionsExt::from_mode(mode))
                .map_err(JudgeError::io("open the job folder"))
        };
        open(self.folder, 0o755)?;
        open(&self.folder.join("tensors.bin"), 0o644)
    }

    fn lay_out(&self, name: &str, bytes: &[u8]) -> Result<(), JudgeError> {
        let path = self.folder.join(name);
        fs::write(&path, bytes).map_err(JudgeError::io("lay out the solution"))?;
        fs::set_permissions(path, PermissionsExt::from_mode(0o644))
            .map_err(JudgeError::io("lay out the solution"))
    }

    /// Runs the driver by itself and takes its answer.
    fn ask(&self, limit: Duration) -> Result<DriverAnswer, ProfileStop> {
        let out = tempfile::tempdir().map_err(JudgeError::io("make an output folder"))?;
        let output = self.run(None, out.path(), false, limit)?;
        let printed = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let said = read_small(&out.path().join("result.json"))
            .map(|bytes| serde_json::from_slice::<DriverAnswer>(&bytes));
        match (output.exit, said) {
            (sandbox::Exit::TimedOut, _) => Err(solution_failure(
                "run",
                format!("it took longer than {} s", limit.as_secs()),
            )),
            (sandbox::Exit::OutOfMemory, _) => {
                Err(solution_failure("run", "it was killed at its memory limit"))
            }
            (
                _,
                Some(Ok(DriverAnswer {
                    error: Some(error), ..
                })),
            ) => Err(solution_failure("run", error)),
            (sandbox::Exit::Code(0), Some(Ok(said))) => Ok(said),
            (sandbox::Exit::Code(0), Some(Err(error))) => Err(solution_failure(
                "run",
                format!("its answer cannot be read: {error}"),
            )),
            (exit, _) => Err(solution_failure(
                "run",
                format!("it ended without an answer ({exit:?})\n{}", printed()),
            )),
        }
    }

    /// Runs the driver, perhaps under another program, with `out` to write to.
    pub(super) fn run(
        &self,
        wrapper: Option<&ToolWrapper<'_>>,
        out: &Path,
        once: bool,
        limit: Duration,
    ) -> Result<sandbox::Output, JudgeError> {
        let request = self.bench.request;
        let harness = &self.bench.harness;
        let allowance = WorkerLimits::of_this_machine();
        let mut read = warpsmith_sandbox::system_paths();
        read.extend(request.python.prefixes.iter().cloned());
        read.push(harness.dir.clone());
        read.extend(harness.support.parent().map(PathBuf::from));
        read.push(self.folder.to_path_buf());
        let mut devices = Vec::new();
        if request.target == Target::Cuda {
            read.extend(cuda_paths());
            devices = cuda_devices();
        } else {
            read.push(PathBuf::from("/sys/devices/system/cpu"));
        }
        let mut environment: Vec<(OsString, OsString)> =
            device_environment(request.target, request.device)
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect();
        environment.extend([
            ("PATH".into(), "/usr/bin:/bin".into()),
            ("HOME".into(), "/tmp".into()),
            ("TMPDIR".into(), "/tmp".into()),
            ("LC_ALL".into(), "C".into()),
            (
                "OMP_NUM_THREADS".into(),
                allowance.threads.to_string().into(),
            ),
            ("CUDA_CACHE_DISABLE".into(), "1".into()),
            // Else PyTorch looks up a user who has no name in there.
            ("TORCHINDUCTOR_CACHE_DIR".into(), "/tmp/inductor".into()),
        ]);
        let mut driver: Vec<OsString> = vec![
            "-I".into(),
            harness.dir.join("profiling.py").into(),
            "--solution".into(),
            self.folder.into(),
            out.into(),
        ];
        driver.extend(once.then(|| OsString::from("--once")));
        let mut program = request.python.executable.clone();
        if let Some(wrapper) = wrapper {
            read.extend(wrapper.read.iter().cloned());
            environment.extend(wrapper.environment.iter().cloned());
            driver.insert(0, program.into());
            driver.splice(0..0, wrapper.arguments.iter().cloned());
            program = wrapper.program.to_path_buf();
        }
        let command = sandbox::Command {
            program,
            args: driver,
            env: environment,
            cwd: "/tmp".into(),
            fds: Vec::new(),
            stderr_to: None,
        };
        let policy = sandbox::SandboxPolicy {
            read,
            write: vec![out.to_path_buf()],
            devices,
            // Traces and the tools' own files.
            scratch_bytes: 1 << 30,
            limits: sandbox::ResourceLimits {
                memory_bytes: allowance.memory_bytes,
                processes: allowance.processes,
                wall_time: limit,
                file_bytes: 1 << 30,
                output_bytes: 64 << 10,
            },
            nested: false,
            isolation: request.isolation,
        };
        Ok(sandbox::run(command, &policy)?)
    }
}

/// A file that the sandbox left, if it is a plain one of a sane size: a link or a pipe would be an attack.
pub(crate) fn read_small(path: &Path) -> Option<Vec<u8>> {
    let meta = fs::symlink_metadata(path).ok()?;
    (meta.is_file() && meta.len() <= RESULT_LIMIT).then(|| fs::read(path).ok())?
}
