//! From a policy and a task to a trajectory.
//!
//! A policy is asked, its reply is read, what it wrote is judged, and it is told how that went. What it says is data: a
//! reply that cannot be used is answered with what was wrong with it, and a policy that fails ends an episode with a name,
//! never with a crash.
//!
//! Two kinds of episode: [`run_single`], one reply with all files and a few repairs, for several samples side by side, and
//! [`run_agent`], a loop of tool calls in a workspace of its own. An agent's shell runs in the sandbox; what compiles, verifies, profiles and judges is behind
//! the [`Court`], out of its reach. [`mcp`] offers the same judge to agents of others.

mod clip;
mod court;
mod elision;
mod episode;
mod feedback;
mod fenced;
pub mod mcp;
mod profile;
mod prompt;
mod react;
mod records;
mod shell;
mod single;
mod tools;
mod wire;
mod workspace;

pub use court::{AgentError, Court, Watch};
pub use episode::{Sample, unjudged};
pub use fenced::{Files, Unreadable, read_files};
pub use profile::render_profile;
pub use prompt::skill;
pub use react::{AgentLimits, AgentSettings, Size, run_agent};
pub use shell::Confines;
pub use single::{Settings, run_single};
pub use tools::tool_schemas;
pub use wire::Wire;
pub use workspace::{Refused, Workspace};
