use warpsmith_judge::JudgeError;
use warpsmith_rollout::RolloutError;
use warpsmith_schema::{Failure, FailureKind};
use warpsmith_store::StoreError;

/// Why a search cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the judge failed")]
    Judge(#[from] JudgeError),
    /// Of a judge, told already in the wire form.
    #[error("{}", .0.message)]
    Failed(Failure),
    #[error("there is nothing to start from and no policy to write anything")]
    NothingToStartFrom,
    #[error("`{path}` of the solution to start from is not text")]
    NotText { path: String },
}

impl SearchError {
    /// The wire form.
    pub fn failure(&self) -> Failure {
        let (code, hint) = match self {
            Self::Rollout(error) => return error.failure(),
            Self::Store(error) => return error.failure(),
            Self::Judge(error) => return error.failure(),
            Self::Failed(failure) => return failure.clone(),
            Self::NothingToStartFrom => (
                "no_start",
                "give a policy with `--policy`, or a folder with `--start`",
            ),
            Self::NotText { .. } => ("not_text", "start from files that are text"),
        };
        Failure {
            kind: FailureKind::Config,
            code: code.to_owned(),
            message: self.to_string(),
            hint: Some(hint.to_owned()),
        }
    }
}
