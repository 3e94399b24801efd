//! Loaders for tasks (a module, a `KernelBench` folder, JSONL, Parquet) and for solutions; seeded splits; tasks with smaller
//! shapes; a reader of Python source.
//!
//! A task belongs to the user and is trusted. A solution is hostile: it is read once, by the rules in `freeze`, and its folder
//! is not read again.

mod capture;
mod dataset;
mod error;
mod freeze;
mod imports;
mod inputs;
mod kernelbench;
mod parquet;
pub mod python;
mod scale;
mod selector;
mod set;
mod solution;
mod split;

pub use capture::{
    CaptureError, CaptureStage, NotCaptured, capture, capture_graphs, capture_missing,
};
pub use dataset::write_dataset;
pub use error::TaskError;
pub use inputs::{variants, with_inputs};
pub use kernelbench::load_all;
pub use scale::scaled;
pub use selector::load;
pub use set::{SetSplit, SetTask, read_set, write_set};
pub use solution::{load_solution, submission_from_text};
pub use split::KernelBenchSplit;
