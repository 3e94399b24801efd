//! What a sandboxed command may do, and the command itself.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

/// What one command may access and consume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxPolicy {
    /// Files and folders it may read and execute, at the same absolute paths. Missing ones are skipped. If we are root,
    /// the command runs under another uid, so they must be readable by others.
    pub read: Vec<PathBuf>,
    /// Files and folders it may change. If we are root, their contents are given to the uid the command runs under.
    pub write: Vec<PathBuf>,
    /// Device nodes (or folders of them) beside `null`, `zero`, `full`, `random` and `urandom`.
    pub devices: Vec<PathBuf>,
    /// Size of the private `/tmp`. Without a mount namespace there is no `/tmp` at all.
    pub scratch_bytes: u64,
    pub limits: ResourceLimits,
    /// The command may make namespaces of its own and mount in them. It then goes without landlock, which forbids every
    /// mount.
    pub nested: bool,
    pub isolation: Isolation,
}

/// What happens where a required protection is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// The command is not started.
    Strict,
    /// The command is started, and [`Effective`](crate::Effective) says what is missing.
    Weak,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceLimits {
    pub memory_bytes: u64,
    /// Processes and threads together.
    pub processes: u32,
    /// Holds for [`run`](crate::run) only: a spawned child lives until it is killed.
    pub wall_time: Duration,
    /// The largest single file it may write.
    pub file_bytes: u64,
    /// How much of each of stdout and stderr is kept.
    pub output_bytes: usize,
}

/// A command to run; nothing is inherited that is not named here.
#[derive(Debug)]
pub struct Command {
    /// An absolute path, or a bare name looked up in `env`'s `PATH`.
    pub program: PathBuf,
    /// Without the program's own name.
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub cwd: PathBuf,
    /// Become descriptors 3, 4, … of the command.
    pub fds: Vec<OwnedFd>,
    /// Where stderr goes; `None` captures it.
    pub stderr_to: Option<OwnedFd>,
}

/// The result of a finished command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub exit: Exit,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// The middle of a stream was dropped.
    pub clipped: bool,
    pub elapsed: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    TimedOut,
    OutOfMemory,
}

/// The system folders that programs need to run, for [`SandboxPolicy::read`].
pub fn system_paths() -> Vec<PathBuf> {
    [
        "/usr",
        "/lib",
        "/lib64",
        "/bin",
        "/sbin",
        "/etc/alternatives",
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d",
    ]
    .map(PathBuf::from)
    .to_vec()
}
