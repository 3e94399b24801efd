//! From a policy and a task to a trajectory.
//!
//! A policy is asked, its reply is read, what it wrote is judged, and it is told how that went. What it says is data: a
//! reply that cannot be used is answered with what was wrong with it, and a policy that fails ends an episode with a name,
//! never with a crash.

mod feedback;
mod fenced;
mod prompt;
mod single;

pub use fenced::{Files, Unreadable, read_files};
pub use single::{AgentError, Court, Settings, Watch, run_single};
