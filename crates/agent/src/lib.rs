//! From a policy and a task to a trajectory.
//!
//! A policy is asked, its reply is read, what it wrote is judged, and it is told how that went. A reply is data: one that
//! cannot be used is answered with what was wrong with it, and a policy that fails ends an episode with a named ending, never
//! with a crash.
//!
//! There are two kinds of episode: [`run_single`], one reply with all files and a few repairs, and [`run_agent`], a loop of
//! tool calls in a workspace of its own. An agent's shell runs in the sandbox; what compiles, verifies, profiles and judges is
//! behind an [`EpisodeJudge`], out of its reach. [`mcp`] offers the same judge to agents of others.

mod clip;
mod demonstration;
mod elision;
mod episode;
mod episode_judge;
mod error;
mod export;
mod feedback;
mod fenced;
pub mod mcp;
mod observer;
mod profile;
mod prompt;
mod react;
mod settings;
mod shell;
mod single;
mod start;
mod token_records;
mod tools;
mod wire;
mod workspace;

pub use demonstration::{failed_reply, repaired_trajectory, unjudged_trajectory};
pub use episode::Sample;
pub use episode_judge::EpisodeJudge;
pub use error::AgentError;
pub use export::{export_harbor, export_inspect};
pub use feedback::describe as describe_verdict;
pub use fenced::{FencedFiles, UnusableReply, read_files};
pub use observer::{EpisodeObserver, EpisodeProgress};
pub use profile::render_profile;
pub use prompt::{for_single as opening_messages, skill};
pub use react::run_agent;
pub use settings::{AgentLimits, AgentSettings, ModelSize, PromptStyle, SingleSettings};
pub use shell::ShellSandbox;
pub use single::run_single;
pub use start::StartingPoint;
pub use tools::tool_schemas;
pub use wire::WireFormat;
pub use workspace::{Workspace, WorkspaceError};
