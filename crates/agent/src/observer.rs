//! Whoever follows an episode.

use warpsmith_schema::{Elision, ToolCall, Trajectory, Verdict};

use crate::{AgentError, FencedFiles, UnusableReply};

/// Follows one episode and keeps what it comes to.
pub trait EpisodeObserver {
    /// Something happened that a person who waits may want to see. What counts of it is in the trajectory.
    fn progress(&mut self, progress: &EpisodeProgress<'_>);

    /// Keeps the episode as it stands, after every step that cost something. Its ending is `interrupted` until it has come to
    /// another; till then it can be resumed as [`Sample::before`](crate::Sample).
    fn save(&mut self, so_far: &Trajectory) -> Result<(), AgentError>;

    /// Whether the episode is to stop where it stands.
    fn interrupted(&self) -> bool;
}

/// What happens in an episode, as it happens.
#[derive(Debug)]
pub enum EpisodeProgress<'a> {
    /// The policy is asked. Turns count from one.
    Asking {
        turn: u32,
    },
    /// A piece of a reply.
    Text(&'a str),
    /// A reply held nothing to act on.
    Unusable(&'a UnusableReply),
    /// Old tool output is no longer shown to the policy.
    Elided(&'a Elision),
    ToolCalled(&'a ToolCall),
    ToolAnswered {
        call: &'a ToolCall,
        text: &'a str,
        failed: bool,
    },
    /// A submission goes to the judge.
    Judging(&'a FencedFiles),
    Judged(&'a Verdict),
}
