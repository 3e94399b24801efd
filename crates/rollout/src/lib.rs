//! Many episodes at once on one machine.
//!
//! A thread for each running episode goes through the loops of `agent`, unchanged. Each has a handle on the one policy
//! ([`SharedPolicy`](warpsmith_model::policy::SharedPolicy)) and one on the [`docket`], a queue in front of a pool of
//! judges. So there are never more questions or submissions waiting than episodes running, and their number is fixed.
//!
//! `events.jsonl` in the run's folder is the truth. Every reply and every verdict is a line there before anything follows
//! from it, so that a process can be killed at any moment and the next one goes on ([`History`]): no episode is lost and
//! nothing that has a verdict is judged again. What fails for reasons of ours is tried again and never counted.
//!
//! Not covered: several machines. Judges share a GPU by the judge's own lease; a model of this process takes part in it.

mod compare;
mod docket;
mod episode;
mod error;
mod fate;
mod history;
mod journal;
mod judging;
mod meter;
mod plan;
mod run;
mod tally;

pub use compare::compare;
pub use error::RolloutError;
pub use history::{History, trajectories};
pub use judging::{JudgePool, Judging, KeptJudge};
pub use plan::{Means, Plan, StopRequest, Way};
pub use run::{Outcome, run};
pub use tally::{Best, Tally, TaskTally};

/// The log's name in a run's folder, without its ending.
pub const EVENTS: &str = "events";
