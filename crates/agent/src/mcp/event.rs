//! What a session hears, from its client and from the judge.

use serde_json::Value;

/// What the session waits for.
#[derive(Debug)]
pub(super) enum SessionEvent {
    /// A line from the client.
    Received(String),
    /// The client left.
    Closed,
    /// The judge is done with the running call.
    Answered(CallResult),
}

/// What a client is told of a call.
#[derive(Debug)]
pub(super) struct CallResult {
    pub(super) text: String,
    pub(super) structured: Option<Value>,
    pub(super) failed: bool,
}
