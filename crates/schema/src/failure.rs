use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why there is no verdict. A failure is never a verdict and never a reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    pub kind: FailureKind,
    /// A stable word to branch on, such as `random` or `noisy_machine`.
    pub code: String,
    pub message: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}

impl Failure {
    /// A thread of this program ended where it should not have.
    pub fn panicked() -> Self {
        Self {
            kind: FailureKind::Infrastructure,
            code: "panic".to_owned(),
            message: "a thread of this program panicked".to_owned(),
            hint: Some("please report it with what stands above".to_owned()),
        }
    }
}

/// Whose fault it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The task cannot be judged: `model.py` is broken, random or constant.
    Task,
    /// Wrong usage or configuration.
    Config,
    /// This machine or this program.
    Infrastructure,
}

/// What `--json` prints when there is no verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FailureReport {
    pub format: u32,
    pub failure: Failure,
}

impl FailureReport {
    pub fn new(failure: Failure) -> Self {
        Self {
            format: crate::FORMAT,
            failure,
        }
    }
}
