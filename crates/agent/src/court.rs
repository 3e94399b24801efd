//! The judge, as an episode sees it.

use warpsmith_judge::{JudgeError, Reach};
use warpsmith_schema::{Elision, ToolCall, Verdict};

use crate::{Files, Unreadable};

/// Judges what a policy wrote and keeps what stands behind each verdict.
pub trait Court {
    fn judge(&mut self, files: &Files) -> Result<Verdict, JudgeError>;

    /// The next verdict is reached anew, even if the same files were judged before.
    fn forget(&mut self) {}

    /// Part of the way: `None` if nothing is wrong that far.
    fn rehearse(&mut self, files: &Files, reach: Reach) -> Result<Option<Verdict>, JudgeError>;

    /// Where the time goes, in words: of the original, and of a solution if there is one.
    fn profile(&mut self, files: Option<&Files>) -> Result<String, JudgeError>;
}

/// Sees an episode as it goes.
pub trait Watch {
    /// A policy is asked; the first time is number one.
    fn asking(&mut self, turn: u32);
    /// Old tool output is no longer shown to the policy.
    fn elided(&mut self, elision: &Elision);
    /// A piece of its reply.
    fn text(&mut self, piece: &str);
    /// A reply that held nothing to act on.
    fn unreadable(&mut self, why: &Unreadable);
    /// A tool is called.
    fn called(&mut self, call: &ToolCall);
    fn answered(&mut self, call: &ToolCall, text: &str, failed: bool);
    fn judging(&mut self, files: &Files);
    fn judged(&mut self, verdict: &Verdict);
    /// Whether somebody wants it to end.
    fn interrupted(&self) -> bool;
}

/// Why there is no trajectory. What a policy or a submission does wrong is part of one; this is neither.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error("the judge failed")]
    Judge(#[from] JudgeError),
    #[error("the workspace could not be made")]
    Workspace(#[from] std::io::Error),
}
