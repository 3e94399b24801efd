//! Whether a result's package can be imported where there is no judge: in a fresh process, with nothing of ours on its path.
//!
//! The process is sandboxed, because a policy may have written what it runs. What it says about shapes goes into the package that it
//! came from, and nowhere else.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fs_err as fs;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warpsmith_machine::find_nvcc;
use warpsmith_sandbox as sandbox;
use warpsmith_schema::Target;

use crate::JudgeError;
use crate::judge::JudgeConfig;
use crate::profile::read_small;
use crate::zygote::{WorkerLimits, cuda_devices, cuda_paths, device_environment};

const SCRIPT: &str = include_str!("import_check/check.py");
/// Kernels are compiled in it.
const LIMIT: Duration = Duration::from_mins(5);

/// A package to import.
#[derive(Debug, Clone, Serialize)]
pub struct ImportJob {
    pub package: String,
    /// Where the kernels of each shape lie; none where the original is used.
    pub folders: Vec<Option<String>>,
    pub guard: bool,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq)]
pub enum ImportCheck {
    /// It was built, imported, and gave what the original gives. `shapes` is what its `_shapes.json` is to hold.
    Works {
        seconds: f64,
        shapes: Value,
    },
    Fails {
        message: String,
    },
}

#[derive(Deserialize)]
struct Answer {
    seconds: f64,
    shapes: Value,
}

/// Imports the package in `result`, and compares it with the `model.py` beside it.
pub fn check_import(
    config: &JudgeConfig,
    result: &Path,
    job: &ImportJob,
) -> Result<ImportCheck, JudgeError> {
    let io = JudgeError::io("lay out the package to import");
    let (folder, out) = (tempfile::tempdir(), tempfile::tempdir());
    let (folder, out) = (
        folder.map_err(JudgeError::io("make a folder"))?,
        out.map_err(io)?,
    );
    lay_out(config, result, job, folder.path()).map_err(JudgeError::io("lay out the package"))?;
    let output = run(config, folder.path(), out.path())?;
    let printed = String::from_utf8_lossy(&output.stderr);
    let last = printed.trim().lines().next_back().unwrap_or_default();
    let answer = read_small(&out.path().join("answer.json"));
    let answer = answer.and_then(|bytes| serde_json::from_slice::<Answer>(&bytes).ok());
    Ok(match (output.exit, answer) {
        (sandbox::Exit::Code(0), Some(Answer { seconds, shapes })) => {
            ImportCheck::Works { seconds, shapes }
        }
        (sandbox::Exit::Code(_), _) => ImportCheck::Fails {
            message: last.to_owned(),
        },
        (exit, _) => ImportCheck::Fails {
            message: format!("the process ended early: {exit:?}"),
        },
    })
}

/// A copy that another user may read.
fn lay_out(
    config: &JudgeConfig,
    result: &Path,
    job: &ImportJob,
    folder: &Path,
) -> std::io::Result<()> {
    let device = match config.target {
        Target::Cpu => "cpu",
        Target::Cuda => "cuda",
    };
    let mut told = json!(job);
    told["device"] = json!(device);
    fs::write(folder.join("check.py"), SCRIPT)?;
    fs::write(folder.join("job.json"), told.to_string())?;
    copy(result, &folder.join("result"))?;
    open(folder)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

fn open(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let is_folder = path.is_dir();
    let mode = if is_folder { 0o755 } else { 0o644 };
    fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
    if is_folder {
        for entry in fs::read_dir(path)? {
            open(&entry?.path())?;
        }
    }
    Ok(())
}

fn run(config: &JudgeConfig, folder: &Path, out: &Path) -> Result<sandbox::Output, JudgeError> {
    let allowance = WorkerLimits::of_this_machine();
    let mut read = sandbox::system_paths();
    read.extend(config.python.prefixes.iter().cloned());
    read.push(folder.to_path_buf());
    let mut path = "/usr/bin:/bin".to_owned();
    let mut environment: Vec<(OsString, OsString)> =
        device_environment(config.target, config.device)
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
    let mut devices = Vec::new();
    if config.target == Target::Cuda {
        read.extend(cuda_paths());
        devices = cuda_devices();
        if let Some(nvcc) = find_nvcc() {
            path = format!("{}:{path}", nvcc.cuda_home.join("bin").display());
            environment.push(("CUDA_HOME".into(), nvcc.cuda_home.clone().into()));
            read.push(nvcc.cuda_home);
        }
    } else {
        read.push(PathBuf::from("/sys/devices/system/cpu"));
    }
    environment.extend([
        ("PATH".into(), path.into()),
        ("HOME".into(), "/tmp".into()),
        ("TMPDIR".into(), "/tmp".into()),
        ("LC_ALL".into(), "C".into()),
        ("TORCHINDUCTOR_CACHE_DIR".into(), "/tmp/inductor".into()),
    ]);
    let arguments = [
        folder.join("check.py"),
        folder.join("result"),
        folder.join("job.json"),
        out.join("answer.json"),
    ];
    let arguments = arguments.map(OsString::from);
    let command = sandbox::Command {
        program: config.python.executable.clone(),
        args: [OsString::from("-IB")]
            .into_iter()
            .chain(arguments)
            .collect(),
        env: environment,
        cwd: "/tmp".into(),
        fds: Vec::new(),
        stderr_to: None,
    };
    let policy = sandbox::SandboxPolicy {
        read,
        write: vec![out.to_path_buf()],
        devices,
        scratch_bytes: 1 << 30,
        limits: sandbox::ResourceLimits {
            memory_bytes: allowance.memory_bytes,
            processes: allowance.processes,
            wall_time: LIMIT,
            file_bytes: 1 << 30,
            output_bytes: 64 << 10,
        },
        nested: false,
        isolation: config.isolation,
    };
    Ok(sandbox::run(command, &policy)?)
}
