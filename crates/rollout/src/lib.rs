//! Many episodes at once on one machine.
//!
//! Each running episode has a thread that goes through the loops of `agent`. It has a handle on the one policy
//! ([`SharedPolicy`](warpsmith_model::policy::SharedPolicy)) and one on the queue in front of a pool of judges. So there are
//! never more requests or submissions waiting than episodes running, and their number is fixed.
//!
//! `events.jsonl` in the run's folder is the truth. Every reply and every verdict is a line there before anything follows
//! from it, so that a process can be killed at any moment and the next one goes on ([`History`]): no episode is lost and
//! nothing that has a verdict is judged again. What fails for reasons of ours is tried again and never counted.
//!
//! [`optimize`] is a rollout of one task whose best submission is the result.
//!
//! Not covered: several machines. Judges share a GPU by the judge's own lease; a model of this process takes part in it.

mod baselines;
mod context;
mod control;
mod episode;
mod error;
mod history;
mod judging;
mod meter;
mod monitor;
pub mod optimize;
mod plan;
mod queue;
mod queued_judge;
mod recorder;
mod run;
mod tally;
mod tuning;
mod worker;

pub use baselines::compare_baselines;
pub use error::RolloutError;
pub use history::{History, RemeasuredKey, trajectories};
pub use judging::{QueuedJudges, SharedLog};
pub use monitor::RolloutOutcome;
pub use plan::{EpisodeKind, RolloutPlan, RolloutResources, StopRequest, WatchEpisodes};
pub use run::run;
pub use tally::{BestAttempt, Tally, TaskTally};
pub use tuning::{
    BaselineTimes, ComparedTimes, TuningEvent, TuningKey, TuningLog, TuningOutcome, TuningRequest,
    tune_by_judge,
};
/// What a run asks for verdicts.
pub use warpsmith_judge::Judge;
