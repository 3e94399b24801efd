use warpsmith_schema::{Failure, FailureKind};

use crate::channel::ChannelError;
use crate::judge::device_memory::MemoryShortage;

/// Why there is no verdict. Never a reward: the task's fault is reported, ours is retried.
#[derive(Debug, thiserror::Error)]
pub enum JudgeError {
    /// `model.py` cannot be judged.
    #[error("the task cannot be judged ({code}): {message}")]
    Task { code: String, message: String },
    /// Something the user asked for cannot be done.
    #[error("{message}")]
    Config {
        code: &'static str,
        message: String,
        hint: Option<String>,
    },
    #[error("{message}")]
    Infrastructure {
        code: &'static str,
        message: String,
        hint: Option<String>,
    },
    #[error("could not {doing}")]
    Io {
        doing: String,
        #[source]
        source: std::io::Error,
    },
    #[error("the sandbox failed")]
    Sandbox(#[from] warpsmith_sandbox::SandboxError),
    #[error("the machine lacks something")]
    Machine(#[from] warpsmith_machine::MachineError),
    /// Whoever holds the judge failed before or after it, and has said how.
    #[error("{}", .0.message)]
    Around(Failure),
}

/// The code of a call that nobody waits for any more.
pub const CANCELLED: &str = "cancelled";

/// The code of a candidate's failure that others' use of the device's memory explains.
const MEMORY_SHORTAGE: &str = "memory_shortage";

/// The code of a device that was at work where nobody had a call on it; other judges explain it.
const DEVICE_BUSY: &str = "device_busy";

/// As the trusted process names it.
const OUT_OF_MEMORY: &str = "out_of_memory";

impl JudgeError {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    pub(crate) fn infrastructure(code: &'static str, message: impl Into<String>) -> Self {
        Self::Infrastructure {
            code,
            message: message.into(),
            hint: None,
        }
    }

    /// Something ran on the device that may have been another judge's.
    pub(crate) fn device_busy(reason: &str) -> Self {
        Self::infrastructure(DEVICE_BUSY, reason)
    }

    /// Others had the cores while something was timed on them.
    pub(crate) fn crowded(what: &str, cores: f64) -> Self {
        Self::Infrastructure {
            code: "noisy_machine",
            message: format!(
                "other processes had {cores:.1} cores at work while {what} was timed, and its threads waited for them"
            ),
            hint: Some("stop other work on this machine and judge again".to_owned()),
        }
    }

    /// The call was given up, and what it ran was killed.
    pub fn cancelled() -> Self {
        Self::infrastructure(CANCELLED, "the call was cancelled")
    }

    /// A trusted process failed to answer: the task's fault when it says so, ours otherwise.
    pub(crate) fn trusted(doing: &str, error: ChannelError, tail: &str) -> Self {
        match error {
            ChannelError::Refused(refusal) if refusal.kind == "task" => Self::Task {
                code: refusal.code,
                message: refusal.message,
            },
            ChannelError::TimedOut(limit) => Self::Task {
                code: "too_slow".to_owned(),
                message: format!("{doing} took longer than {} s", limit.as_secs()),
            },
            ChannelError::Refused(refusal) if refusal.code == OUT_OF_MEMORY => {
                Self::Infrastructure {
                    code: OUT_OF_MEMORY,
                    message: format!("{doing}: {}", refusal.message),
                    hint: Some("free the GPU's memory, or judge a smaller task".to_owned()),
                }
            }
            other => Self::Infrastructure {
                code: "harness",
                message: format!(
                    "{doing}: {other}{}{tail}",
                    if tail.is_empty() { "" } else { "\n" }
                ),
                hint: None,
            },
        }
    }

    /// Whether the device's memory was full: the candidate's doing, if it was loaded and the task fits without it.
    pub(crate) fn out_of_device_memory(&self) -> bool {
        match self {
            Self::Infrastructure { code, .. } => *code == OUT_OF_MEMORY,
            Self::Task { code, .. } => code == "too_large",
            _ => false,
        }
    }

    /// Whether the candidate may hold where no other judge has anything on the device.
    pub(crate) fn lacks_memory(&self) -> bool {
        matches!(self, Self::Infrastructure { code, .. } if *code == MEMORY_SHORTAGE)
    }

    /// Whether the device was busy, which says nothing of the candidate where others use it too.
    pub(crate) fn found_device_busy(&self) -> bool {
        matches!(self, Self::Infrastructure { code, .. } if *code == DEVICE_BUSY)
    }

    /// Whether others were in the way of a measurement, and nothing is wrong with what was measured.
    pub(crate) fn is_noise(&self) -> bool {
        matches!(self, Self::Infrastructure { code, .. } if ["noisy_machine", "stale_baseline"].contains(code))
    }

    /// Whether judging again, beside whoever else is here, may help.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Infrastructure { code, .. } if !["noisy_machine", MEMORY_SHORTAGE, CANCELLED].contains(code))
    }

    /// The wire form.
    pub fn failure(&self) -> Failure {
        let (kind, code, hint) = match self {
            Self::Task { code, .. } => (
                FailureKind::Task,
                code.clone(),
                Some("fix model.py; a task needs deterministic, finite, input-dependent outputs".to_owned()),
            ),
            Self::Config { code, hint, .. } => (FailureKind::Config, (*code).to_owned(), hint.clone()),
            Self::Infrastructure { code, hint, .. } => (FailureKind::Infrastructure, (*code).to_owned(), hint.clone()),
            Self::Io { .. } => (FailureKind::Infrastructure, "io".to_owned(), None),
            Self::Sandbox(_) => (
                FailureKind::Infrastructure,
                "isolation".to_owned(),
                Some("run `warpsmith doctor` to see which protection is missing; `--isolation weak` goes without".to_owned()),
            ),
            Self::Machine(error) => (FailureKind::Infrastructure, "machine".to_owned(), error.hint()),
            Self::Around(failure) => return failure.clone(),
        };
        Failure {
            kind,
            code,
            message: chain(self),
            hint,
        }
    }
}

impl From<MemoryShortage> for JudgeError {
    fn from(shortage: MemoryShortage) -> Self {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        Self::Infrastructure {
            code: MEMORY_SHORTAGE,
            message: format!(
                "the candidate failed while other processes held {:.1} GiB of the GPU's memory and {:.1} GiB were free",
                gib(shortage.taken),
                gib(shortage.free)
            ),
            hint: Some(
                "free the GPU's memory (`nvidia-smi` shows who holds it) and judge again"
                    .to_owned(),
            ),
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
