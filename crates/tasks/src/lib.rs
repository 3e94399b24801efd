//! Loaders for tasks (a module, a `KernelBench` folder, JSONL) and for solutions; a seeded split, and smaller shapes.
//!
//! A task is the user's and trusted. A solution is hostile: it is read once, by the rules in
//! `freeze`, and nobody looks at its folder again.

mod benchmark;
mod error;
mod families;
mod freeze;
mod imports;
mod kernelbench;
mod python;
mod scale;
mod selector;
mod solution;
mod split;
mod structure;

pub use benchmark::{Benchmark, Near};
pub use error::TaskError;
pub use families::{FAMILY, validation};
pub use kernelbench::load_all;
pub use scale::scaled;
pub use selector::load;
pub use solution::{form, load_solution, solution_hash, submission};
pub use split::Split;
pub use structure::{NEAR, Structure, Why};
/// What the loaders give.
pub use warpsmith_schema::Task as LoadedTask;
