//! A solution's machine code, by the compiler's own tools: `cuobjdump` on CUDA, `objdump` on the CPU. They read what the
//! candidate's sources became, so they run in the sandbox.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warpsmith_sandbox as sandbox;
use warpsmith_schema::{SubmissionForm, Target};

use super::tools::find;
use super::{ProfileContext, ProfileRequest};
use crate::JudgeError;
use crate::submission::folder_unit;
use crate::toolchain::BuildResult;

const LIMIT: Duration = Duration::from_mins(1);
/// Of one kind of code.
const KEPT_BYTES: usize = 2 << 20;

/// Machine code as text, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disassembly {
    /// `SASS`, `PTX` or what the processor's is called.
    pub kind: &'static str,
    pub text: Result<String, String>,
}

/// Disassembles what a solution with source files of its own is built to.
pub fn disassemble(request: &ProfileRequest) -> Result<Vec<Disassembly>, JudgeError> {
    let kinds: &[(&'static str, &str, &[&str])] = match request.target {
        Target::Cuda => &[
            ("SASS", "cuobjdump", &["--dump-sass"]),
            ("PTX", "cuobjdump", &["--dump-ptx"]),
        ],
        Target::Cpu => &[(
            "x86",
            "objdump",
            &["-d", "-C", "--no-show-raw-insn", "--section=.text"],
        )],
    };
    let refused = |why: &str| -> Vec<Disassembly> {
        let none = |(kind, ..): &(&'static str, &str, &[&str])| Disassembly {
            kind,
            text: Err(why.to_owned()),
        };
        kinds.iter().map(none).collect()
    };
    let Some(submission) = &request.solution else {
        return Ok(refused("there is no solution"));
    };
    if !matches!(
        submission.form,
        SubmissionForm::Plain | SubmissionForm::CudaAgent
    ) {
        return Ok(refused(
            "only solutions with files below `kernels/` are disassembled",
        ));
    }
    let bench = ProfileContext::new(request)?;
    let libraries = match bench
        .toolchain
        .build(submission, &[folder_unit(submission)])?
    {
        BuildResult::Ready { libraries, .. } => libraries,
        BuildResult::Failed { log } => return Ok(refused(&log)),
    };
    // Readable by whoever the sandbox runs as; the folder's name is nobody's business.
    let folder = tempfile::tempdir().map_err(JudgeError::io("make a job folder"))?;
    open(folder.path(), 0o755)?;
    let mut paths = Vec::new();
    for (number, library) in libraries.iter().enumerate() {
        let path = folder.path().join(format!("{number}.so"));
        fs_err::copy(&library.path, &path).map_err(JudgeError::io("copy a built library"))?;
        open(&path, 0o644)?;
        paths.push(path);
    }
    let one = |(kind, tool, flags): &(&'static str, &str, &[&str])| {
        let text = match find(tool, &bench) {
            None => Err(format!(
                "`{tool}` is not on the PATH or in the CUDA toolkit"
            )),
            Some(program) => text_of(&bench, &program, flags, &paths, folder.path())?,
        };
        Ok(Disassembly { kind, text })
    };
    kinds.iter().map(one).collect()
}

fn open(path: &Path, mode: u32) -> Result<(), JudgeError> {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
    fs_err::set_permissions(path, mode).map_err(JudgeError::io("open the job folder"))
}

fn text_of(
    bench: &ProfileContext<'_>,
    program: &Path,
    flags: &[&str],
    libraries: &[PathBuf],
    folder: &Path,
) -> Result<Result<String, String>, JudgeError> {
    let mut read = sandbox::system_paths();
    read.push(folder.to_path_buf());
    read.extend(super::tools::folders(program, bench));
    let mut args: Vec<OsString> = flags.iter().map(OsString::from).collect();
    args.extend(libraries.iter().map(OsString::from));
    let command = sandbox::Command {
        program: program.to_path_buf(),
        args,
        env: [("PATH", "/usr/bin:/bin"), ("HOME", "/tmp"), ("LC_ALL", "C")]
            .map(|(name, value)| (name.into(), value.into()))
            .to_vec(),
        cwd: "/tmp".into(),
        fds: Vec::new(),
        stderr_to: None,
    };
    let policy = sandbox::SandboxPolicy {
        read,
        write: Vec::new(),
        devices: Vec::new(),
        scratch_bytes: 64 << 20,
        limits: sandbox::ResourceLimits {
            memory_bytes: 2 << 30,
            processes: 16,
            wall_time: LIMIT,
            file_bytes: 64 << 20,
            output_bytes: KEPT_BYTES,
        },
        nested: false,
        isolation: bench.request.isolation,
    };
    let output = sandbox::run(command, &policy)?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(if text.is_empty() {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!(
            "it gave nothing ({:?}): {}",
            output.exit,
            said.trim()
        ))
    } else {
        Ok(text)
    })
}
