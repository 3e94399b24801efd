//! Graph in, kernels out.
//!
//! [`compile`] rewrites the graph (`simplify`), lowers its operators to lazy tensors (`lower`), decides which kernels
//! compute them (`plan`, `epilogue`), and writes these kernels and their launchers as text (`emit`, `solution`).

mod attention;
mod emit;
mod epilogue;
mod explain;
mod index;
mod library;
mod lower;
mod mutants;
mod not_covered;
mod plan;
mod scalar;
mod simplify;
mod solution;
mod tensor;

use warpsmith_schema::{Target, Task};

pub use explain::{ExplainedKernel, Explanation, Gap, explain};
pub use mutants::GraphMutants;
pub use not_covered::NotCovered;
pub use plan::{FusedOperator, Strategy};
pub use solution::{Solution, SolutionFiles, WrittenKernel, compile};

/// The kernels of a solution that the compiler wrote; none where somebody else did.
pub fn kernels_of(
    task: &Task,
    target: Target,
    files: &SolutionFiles,
) -> Result<Option<Vec<WrittenKernel>>, NotCovered> {
    for strategy in [Strategy::Tuned, Strategy::Fused, Strategy::Plain] {
        let solution = solution::compile(task, target, strategy)?;
        if solution.files == *files {
            return Ok(Some(solution.kernels));
        }
    }
    Ok(None)
}

/// The solutions of a task by all strategies, from simple to fast, each with the name of its strategy.
pub fn solutions(
    task: &Task,
    target: Target,
) -> Result<Vec<(&'static str, SolutionFiles)>, NotCovered> {
    let strategies = [Strategy::Plain, Strategy::Fused, Strategy::Tuned];
    let named_files = |strategy: Strategy| {
        let files = solution::compile(task, target, strategy)?.files;
        Ok((strategy.name(), files))
    };
    strategies.into_iter().map(named_files).collect()
}
