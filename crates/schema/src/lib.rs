//! The types that travel between processes and lie in files.
//!
//! Others script against the verdict and the failure report: within [`FORMAT`] 1 fields are only added. Events,
//! trajectories and run configurations have a format of their own and are read in that format only
//! ([`read_document`]). In all of them an absent value is `null` and never missing, and non-finite numbers travel as
//! strings.

mod conversation;
mod delta;
mod event;
mod failure;
mod format;
mod graph;
mod mutant;
mod number;
mod reward;
mod search;
mod submission;
mod task;
mod trajectory;
mod verdict;

pub use conversation::{Message, ToolCall, ToolSchema};
pub use delta::{DeltaCursor, EpisodeDelta, TokenDelta};
pub use event::{
    CountedAttempt, EpisodeId, Event, EventKind, PlannedTask, RunHeader, RunMetrics, SplitPart,
    StartAuthor,
};
pub use failure::{Failure, FailureKind, FailureReport};
pub use format::{
    CONFIG_FORMAT, DocumentError, EVENT_FORMAT, FORMAT, OtherFormat, TRAJECTORY_FORMAT, Versioned,
    read_document,
};
pub use graph::{Dtype, GRAPH_FORMS, GraphValue, OpGraph, OutputNesting, ValueSource};
pub use mutant::{MUTANTS_VERSION, Mutant, MutantKind, Mutants};
pub use number::Number;
pub use reward::{
    CompositeWeights, Reward, composite_reward, is_faster, ladder_reward, raw_reward, robust_reward,
};
pub use search::{ArchiveCell, CandidatePlace, ProposedCandidate, ReferenceBound, SearchMove};
pub use submission::{MODEL_NEW, Submission, SubmissionForm, clashing_path, is_solution_path};
pub use task::{Task, TaskSetIdentity};
pub use trajectory::{
    Attempt, ElidedMessage, Elision, EpisodeEnding, EpisodeLimit, EpisodeMode, PolicyVersion,
    TokenRecord, Trajectory, Usage,
};
pub use verdict::{
    AttemptProgress, IsolationReport, MatchedPrecision, Numerics, OperatorShare, Precision,
    Profile, Rule, Rules, Speedup, StageSeconds, Status, Target, Times, Trust, TrustCheck, Verdict,
};

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
