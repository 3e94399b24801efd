//! Loaders for tasks (a module, a `KernelBench` folder, JSONL, Parquet) and for solutions; seeded splits, and
//! smaller shapes; reading Python.
//!
//! A task is the user's and trusted. A solution is hostile: it is read once, by the rules in
//! `freeze`, and nobody looks at its folder again.

mod error;
mod freeze;
mod imports;
mod kernelbench;
mod parquet;
pub mod python;
mod scale;
mod selector;
mod set;
mod solution;
mod split;

pub use error::TaskError;
pub use kernelbench::load_all;
pub use scale::scaled;
pub use selector::load;
pub use set::{Portion, SetTask, write_set};
pub use solution::{form, load_solution, solution_hash, submission};
pub use split::Split;
/// What the loaders give.
pub use warpsmith_schema::Task as LoadedTask;
