//! The agent's shell: one bash that lives as long as the episode, in the sandbox, with the workspace and nothing else.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use warpsmith_sandbox as sandbox;

/// Reads a name and a command, each ended by a zero byte; answers with the exit status. Output goes to a file of that name,
/// so a command that closes or redirects its streams takes nothing from the next one. `WORK` is the workspace, wherever the
/// shell has gone since.
const DRIVER: &str = r#"
readonly WORK=$PWD
while IFS= read -r -d '' -u 3 name && IFS= read -r -d '' -u 3 command; do
    eval "$command" >"$WORK/.shell/$name" 2>&1 </dev/null 3>&-
    printf '%s\0' "$?" >&3
done
"#;

/// Where output lies, below the workspace.
pub(crate) const OUTPUT: &str = ".shell";

const MEMORY_BYTES: u64 = 4 << 30;
const PROCESSES: u32 = 256;
const FILE_BYTES: u64 = 256 << 20;

/// What a shell may see beside its workspace.
#[derive(Debug, Clone)]
pub struct ShellSandbox {
    /// Programs and libraries.
    pub read: Vec<PathBuf>,
    pub isolation: sandbox::Isolation,
}

pub(crate) struct Shell {
    child: sandbox::Child,
    stream: UnixStream,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandEnd {
    Status(i32),
    TimedOut,
    /// The command ended the shell itself.
    ShellGone,
}

impl Shell {
    pub(crate) fn start(
        workspace: &Path,
        confinement: &ShellSandbox,
    ) -> Result<Self, sandbox::SandboxError> {
        let (ours, theirs) = UnixStream::pair().map_err(failed("open the shell's channel"))?;
        let output = workspace.join(OUTPUT);
        fs_err::create_dir_all(&output).map_err(failed("make the shell's folder"))?;
        let command = sandbox::Command {
            program: "bash".into(),
            args: ["--noprofile", "--norc", "-c", DRIVER]
                .map(Into::into)
                .to_vec(),
            env: vec![
                ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
                ("HOME".into(), workspace.into()),
                ("TMPDIR".into(), "/tmp".into()),
                ("LANG".into(), "C.UTF-8".into()),
            ],
            cwd: workspace.into(),
            fds: vec![OwnedFd::from(theirs)],
            stderr_to: None,
        };
        let policy = sandbox::SandboxPolicy {
            read: confinement.read.clone(),
            write: vec![workspace.into()],
            devices: Vec::new(),
            scratch_bytes: 256 << 20,
            limits: sandbox::ResourceLimits {
                memory_bytes: MEMORY_BYTES,
                processes: PROCESSES,
                wall_time: Duration::MAX,
                file_bytes: FILE_BYTES,
                output_bytes: 64 << 10,
            },
            nested: false,
            isolation: confinement.isolation,
        };
        let child = sandbox::spawn(command, &policy)?;
        Ok(Self {
            child,
            stream: ours,
        })
    }

    /// Runs `command` in the shell itself, so that folders and variables stay; its output is in the file `name`.
    pub(crate) fn run(&mut self, name: &str, command: &str, limit: Duration) -> CommandEnd {
        let request = [name.as_bytes(), command.as_bytes()]
            .map(|part| [part, b"\0"].concat())
            .concat();
        if self.stream.write_all(&request).is_err() {
            return CommandEnd::ShellGone;
        }
        let deadline = Instant::now() + limit;
        let mut answer = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return CommandEnd::TimedOut;
            }
            if self.stream.set_read_timeout(Some(left)).is_err() {
                return CommandEnd::ShellGone;
            }
            let mut byte = [0];
            match self.stream.read(&mut byte) {
                Ok(0) => return CommandEnd::ShellGone,
                Ok(_) if byte == [0] => break,
                Ok(_) => answer.extend(byte),
                Err(error) if would_block(&error) => {}
                Err(_) => return CommandEnd::ShellGone,
            }
        }
        let status = String::from_utf8_lossy(&answer).trim().parse();
        status.map_or(CommandEnd::ShellGone, CommandEnd::Status)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.child.kill();
    }
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> sandbox::SandboxError {
    move |source| sandbox::SandboxError::Io { what, source }
}

fn would_block(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
