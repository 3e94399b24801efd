//! Tasks that no benchmark contains, and a teacher that can solve them.
//!
//! Seeds are operators with arguments and shapes that work; a composer stacks them into a module and writes down what it
//! computes (its graph); filters run it; what is too near a benchmark is dropped. The teacher is a policy that solves
//! composed tasks because it reads their graphs.

mod candidate;
mod compose;
mod exercises;
mod filter;
mod grammar;
mod llm;
mod mix;
mod record;
mod run;
mod seeds;
mod set;
mod spent;
pub mod teacher;

pub use candidate::{Candidate, Made};
pub use compose::{Composer, Grammar, Unmade};
pub use exercises::exercises;
pub use filter::{Containment, Dropped, Facts, Worker, WorkerError, Workshop};
pub use grammar::{Composition, MOST_OPS, Size};
pub use llm::Llm;
pub use mix::{Group, Mix};
pub use record::{Fate, Record, Row};
pub use run::{Means, Plan, Progress, SynthError, Wish, run};
pub use seeds::{BrokenSeed, Domain, Family, Form, Layer, Seed, Seeds, Variant, transformers};
pub use set::{Decontamination, GroupCount, Set, Summary};
pub use spent::{Spent, Stage, StageCount};
