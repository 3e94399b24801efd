use warpsmith_judge::JudgeError;
use warpsmith_schema::Failure;

/// Why an episode did not come to an end. What a policy or a submission does wrong is part of one; this is neither.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the judge failed")]
    Judge(#[from] JudgeError),
    #[error("the workspace could not be made")]
    Workspace(#[from] std::io::Error),
    /// The observer could not keep the episode.
    #[error("{}", .0.message)]
    Save(Failure),
}
