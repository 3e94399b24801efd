//! The judge, as an episode sees it.

use warpsmith_judge::{JudgeDepth, JudgeError};
use warpsmith_schema::{Elision, Failure, ToolCall, Trajectory, Verdict};

use crate::{Files, Unreadable};

/// Judges what a policy wrote and keeps what stands behind each verdict.
pub trait Court {
    fn judge(&mut self, files: &Files) -> Result<Verdict, JudgeError>;

    /// The next verdict is reached anew, even if the same files were judged before.
    fn forget(&mut self) {}

    /// Part of the way: `None` if nothing is wrong that far.
    fn rehearse(&mut self, files: &Files, reach: JudgeDepth)
    -> Result<Option<Verdict>, JudgeError>;

    /// Where the time goes, in words: of the original, and of a solution if there is one.
    fn profile(&mut self, files: Option<&Files>) -> Result<String, JudgeError>;
}

/// Sees episodes as they go, each by the number of its sample, and keeps them.
pub trait Watch {
    /// A policy is asked, of these samples together; the first time is turn number one.
    fn asking(&mut self, samples: &[u32], turn: u32);
    /// Old tool output is no longer shown to the policy.
    fn elided(&mut self, sample: u32, elision: &Elision);
    /// A piece of a reply.
    fn text(&mut self, sample: u32, piece: &str);
    /// A reply that held nothing to act on.
    fn unreadable(&mut self, sample: u32, why: &Unreadable);
    /// A tool is called.
    fn called(&mut self, sample: u32, call: &ToolCall);
    fn answered(&mut self, sample: u32, call: &ToolCall, text: &str, failed: bool);
    fn judging(&mut self, sample: u32, files: &Files);
    fn judged(&mut self, sample: u32, verdict: &Verdict);
    /// Where an episode stands, after every step that cost something. Its ending is `interrupted` until it has come to one;
    /// till then it can be gone on with as [`Sample::before`](crate::Sample).
    fn reached(&mut self, so_far: &Trajectory) -> Result<(), AgentError>;
    /// Whether somebody wants it to end.
    fn interrupted(&self) -> bool;
}

/// Why an episode did not come to an end. What a policy or a submission does wrong is part of one; this is neither.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the judge failed")]
    Judge(#[from] JudgeError),
    #[error("the workspace could not be made")]
    Workspace(#[from] std::io::Error),
    /// Of whoever keeps episodes.
    #[error("{}", .0.message)]
    Keep(Failure),
}
