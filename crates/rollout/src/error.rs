use std::io;

use warpsmith_schema::{Failure, FailureKind, PolicyVersion};
use warpsmith_store::StoreError;

/// Why a run could not be taken up.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("failed to start a thread")]
    Thread(#[from] io::Error),
    #[error("the plan has task `{id}` twice")]
    SameTask { id: String },
    #[error("the run was begun with {}, and this is {}", words(before), words(now))]
    OtherPolicy {
        before: Box<PolicyVersion>,
        now: Box<PolicyVersion>,
    },
}

impl RolloutError {
    /// The wire form.
    pub fn failure(&self) -> Failure {
        let (kind, code) = match self {
            Self::Store(error) => return error.failure(),
            Self::Thread(_) => (FailureKind::Infrastructure, "io"),
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

fn words(policy: &PolicyVersion) -> String {
    let hash = policy.hash.as_ref().and_then(|hash| hash.get(..8));
    match hash {
        Some(hash) => format!("`{}` ({hash})", policy.name),
        None => format!("`{}`", policy.name),
    }
}
