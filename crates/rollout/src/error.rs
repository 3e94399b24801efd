use std::io;

use warpsmith_schema::{Failure, FailureKind};
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
}

impl RolloutError {
    /// The wire form.
    pub fn failure(&self) -> Failure {
        let (kind, code) = match self {
            Self::Store(error) => return error.failure(),
            Self::Thread(_) => (FailureKind::Infrastructure, "io"),
            Self::SameTask { .. } => (FailureKind::Config, "same_task"),
        };
        let cause = std::error::Error::source(self).map(|cause| format!(": {cause}"));
        Failure {
            kind,
            code: code.to_owned(),
            message: format!("{self}{}", cause.unwrap_or_default()),
            hint: None,
        }
    }
}
