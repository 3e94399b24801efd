//! Why a command could not be started.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("required protections cannot be had on this machine: {}", list(.missing))]
    Uncontained {
        missing: Vec<(&'static str, String)>,
    },
    #[error("`{path}` is not readable by the uid the command runs under")]
    Unreadable { path: PathBuf },
    #[error("`{path}` cannot be given to the uid the command runs under")]
    Unwritable {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("program `{path}` was not found")]
    Program { path: PathBuf },
    #[error("an argument, variable or path holds a NUL byte")]
    Nul(#[from] std::ffi::NulError),
    #[error("failed to compile the system-call filter")]
    Filter(#[source] seccompiler::BackendError),
    #[error("failed to {stage}")]
    Setup {
        stage: String,
        #[source]
        source: io::Error,
    },
    #[error("failed to {what}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

impl SandboxError {
    /// What the user can do about it, where something can be done.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Uncontained { .. } => Some(
                "run as root or allow unprivileged user namespaces (`sysctl user.max_user_namespaces`, \
                 `kernel.apparmor_restrict_unprivileged_userns=0`), on Linux 5.13 or later",
            ),
            Self::Unreadable { .. } => Some("make it readable by others: `chmod -R o+rX`"),
            _ => None,
        }
    }
}

pub(crate) trait Context<T> {
    fn context(self, what: &'static str) -> Result<T, SandboxError>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: &'static str) -> Result<T, SandboxError> {
        self.map_err(|source| SandboxError::Io { what, source })
    }
}

fn list(missing: &[(&'static str, String)]) -> String {
    let parts: Vec<String> = missing
        .iter()
        .map(|(name, why)| format!("{name} ({why})"))
        .collect();
    parts.join(", ")
}
