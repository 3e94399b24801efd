use std::io;
use std::path::PathBuf;

use warpsmith_compiler::NotCovered;
use warpsmith_judge::JudgeError;
use warpsmith_schema::{Failure, FailureKind, PolicyVersion};
use warpsmith_store::StoreError;

/// Why a run could not be begun, or not be concluded.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("failed to start a thread")]
    Thread(#[from] io::Error),
    #[error("the plan has task `{id}` twice")]
    SameTask { id: String },
    #[error(
        "the run was begun with {}, and this is {}",
        described(before),
        described(now)
    )]
    OtherPolicy {
        before: Box<PolicyVersion>,
        now: Box<PolicyVersion>,
    },
    #[error("the judge failed")]
    Judge(#[from] JudgeError),
    /// The event log could not be written.
    #[error("{}", .0.message)]
    Log(Failure),
    #[error("failed to read or write the log of tuning")]
    Tuning(#[source] io::Error),
    #[error(transparent)]
    NotCovered(#[from] NotCovered),
    #[error("failed to write the result `{}`", path.display())]
    Result {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl RolloutError {
    /// The wire form.
    pub fn failure(&self) -> Failure {
        let (kind, code) = match self {
            Self::Store(error) => return error.failure(),
            Self::Judge(error) => return error.failure(),
            Self::Log(failure) => return failure.clone(),
            Self::Thread(_) | Self::Result { .. } | Self::Tuning(_) => {
                (FailureKind::Infrastructure, "io")
            }
            Self::NotCovered(_) => (FailureKind::Task, "not_covered"),
            Self::SameTask { .. } => (FailureKind::Config, "same_task"),
            Self::OtherPolicy { .. } => (FailureKind::Config, "other_run"),
        };
        let cause = std::error::Error::source(self).map(|cause| format!(": {cause}"));
        Failure {
            kind,
            code: code.to_owned(),
            message: format!("{self}{}", cause.unwrap_or_default()),
            hint: match self {
                Self::OtherPolicy { .. } => Some("give another folder with `--out`".to_owned()),
                _ => None,
            },
        }
    }
}

fn described(policy: &PolicyVersion) -> String {
    let hash = policy.hash.as_ref().and_then(|hash| hash.get(..8));
    match hash {
        Some(hash) => format!("`{}` ({hash})", policy.name),
        None => format!("`{}`", policy.name),
    }
}
