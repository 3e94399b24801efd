//! Graph in, kernels out.
//!
//! A graph's operators become tensors that are not there yet (`lower`), these become kernels (`plan`), and kernels become
//! text (`emit`, `solution`).

mod emit;
mod epilogue;
mod index;
mod library;
mod lower;
mod plan;
mod scalar;
mod simplify;
mod solution;
mod tensor;

use warpsmith_schema::{Target, Task};

pub use lower::NotCovered;
pub use plan::Strategy;
pub use solution::{Files, Solution, write};

/// Every solution that is written for a task, from simple to fast, by the name of its strategy.
pub fn solutions(task: &Task, target: Target) -> Result<Vec<(&'static str, Files)>, NotCovered> {
    let strategies = [Strategy::Plain, Strategy::Fused, Strategy::Tuned];
    let write = |strategy: Strategy| {
        let files = solution::write(task, target, strategy)?.files;
        Ok((strategy.name(), files))
    };
    strategies.into_iter().map(write).collect()
}
