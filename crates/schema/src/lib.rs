//! Nouns on the wire. Others script against these types: within [`FORMAT`] 1 fields are only added, an absent value is
//! `null` and never missing, and non-finite numbers travel as strings.

mod conversation;
mod event;
mod failure;
mod graph;
mod number;
mod reward;
mod submission;
mod task;
mod trajectory;
mod verdict;

pub use conversation::{Message, ToolCall, ToolSchema};
pub use event::{
    CountedAttempt, EpisodeId, EpisodeStep, Event, EventKind, Gauges, PlannedTask, RunHead,
    SplitPart, StepCursor, TokenPiece,
};
pub use failure::{Failure, FailureKind, FailureReport};
pub use graph::{Dtype, GraphValue, OpGraph, ValueSource};
pub use number::Number;
pub use reward::{CompositeWeights, Reward, composite, faster, ladder, raw, robust};
pub use submission::{Form, MODEL_NEW, Submission, clashing_path, is_solution_path};
pub use task::Task;
pub use trajectory::{
    Attempt, ElidedMessage, Elision, Ending, EpisodeMode, Limit, PolicyVersion, TokenRecord,
    Trajectory, Usage,
};
pub use verdict::{
    Isolation, MatchedPrecision, Numerics, Precision, Profile, Progress, Rule, Speedup,
    StageSeconds, Status, Target, Times, Trust, TrustCheck, Verdict,
};

/// The version of verdicts, of failures and of what `--json` prints.
pub const FORMAT: u32 = 1;
/// The version of `events.jsonl`.
pub const EVENT_FORMAT: u32 = 1;
/// The version of trajectories.
pub const TRAJECTORY_FORMAT: u32 = 1;
/// The version of a run's `config.json`.
pub const CONFIG_FORMAT: u32 = 1;

/// The JSON Schema of a named document, or `None` for an unknown name.
pub fn json_schema(name: &str) -> Option<serde_json::Value> {
    let schema = match name {
        "verdict" => schemars::schema_for!(Verdict),
        "task" => schemars::schema_for!(Task),
        "failure" => schemars::schema_for!(FailureReport),
        "reward" => schemars::schema_for!(Reward),
        "trajectory" => schemars::schema_for!(Trajectory),
        "event" => schemars::schema_for!(Event),
        _ => return None,
    };
    Some(schema.to_value())
}

/// Names that [`json_schema`] knows.
pub const SCHEMA_NAMES: [&str; 6] = [
    "verdict",
    "task",
    "failure",
    "reward",
    "trajectory",
    "event",
];
