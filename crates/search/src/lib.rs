//! A search for the fastest kernel of one task.
//!
//! It starts from the compiler's solutions or the user's. Candidates are made from those in the [`Archive`] by changing
//! parameters of the source (no model is needed) or by asking policies, and every one is judged by the one trait
//! [`Judge`](warpsmith_judge::Judge), behind a run's queue. In the end the best few are measured afresh, in turn with each other, and
//! only that second measurement is reported: a maximum over noise overstates.
//!
//! The run's log is the truth. Each candidate and each verdict is a line before anything follows from it. A resumed search takes
//! every decision again, in the same order and by the same random numbers, and where the log has what came of it, that is taken:
//! so a process can be killed at any moment and the next has the same archive.
//!
//! Not covered: several machines, and training during the search.

mod archive;
mod ask;
mod bandit;
mod budget;
mod candidate;
mod cascade;
mod descriptor;
mod error;
mod finals;
mod logged;
mod moves;
mod plan;
mod prompt;
mod reply;
mod run;
mod source;
mod start;
mod statistics;
mod strategy;

pub use archive::{Archive, Elite, Island};
pub use bandit::{ArmTally, Bandit};
pub use budget::{BudgetSpent, SearchBudget, SearchLimit};
pub use candidate::Candidate;
pub use cascade::{Cascade, CascadeStage};
pub use error::SearchError;
pub use finals::{Challenger, Finalist, Finals, SearchWinner};
pub use plan::{SearchPlan, SearchPolicy, SearchProgress, SearchResources, TokenPrice};
pub use run::{SearchOutcome, search};
pub use source::{normalized_hash, normalized_source};
pub use start::{SearchStart, compiled_candidates};
pub use statistics::{SpeedInterval, interval_of};
