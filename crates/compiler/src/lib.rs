//! Graph in, kernels out.
//!
//! [`compile`] rewrites the graph (`simplify`), lowers its operators to lazy tensors (`lower`), decides which kernels
//! compute them (`plan`, `epilogue`), and writes these kernels and their launchers as text (`emit`, `solution`). Decisions that only a measurement
//! can settle are knobs (`knob`), and [`tune`] settles them with a measuring function that it is handed.

mod attention;
mod emit;
mod epilogue;
mod explain;
mod index;
mod knob;
mod library;
mod lower;
mod mutants;
mod not_covered;
mod parameters;
mod plan;
mod scalar;
mod simplify;
mod solution;
mod tensor;
mod tuning;

use warpsmith_schema::{Precision, Target, Task};

pub use explain::{ExplainedKernel, Explanation, Gap, explain};
pub use knob::{Knob, TuningConfig};
pub use mutants::GraphMutants;
pub use not_covered::NotCovered;
pub use parameters::{SourceParameter, SourceParameterKind, parameters, skeleton};
pub use plan::{FusedOperator, Strategy};
pub use solution::{CompileOptions, Solution, SolutionFiles, WrittenKernel, compile, compile_with};
pub use tuning::{
    MeasureVariant, MeasuredTime, TunedSolution, TuningProgress, TuningVariant, tune,
};

/// The kernels of a solution that the compiler wrote; none where somebody else did.
pub fn kernels_of(
    task: &Task,
    target: Target,
    files: &SolutionFiles,
) -> Result<Option<Vec<WrittenKernel>>, NotCovered> {
    for precision in [Precision::Fp32, Precision::Tf32] {
        for strategy in [Strategy::Tuned, Strategy::Fused, Strategy::Plain] {
            let options = CompileOptions {
                precision,
                ..strategy.into()
            };
            let solution = compile_with(task, target, &options)?;
            if solution.files == *files {
                return Ok(Some(solution.kernels));
            }
        }
    }
    Ok(None)
}

/// The solutions of a task by all strategies, from simple to fast, each with the name of its strategy.
pub fn solutions(
    task: &Task,
    target: Target,
) -> Result<Vec<(&'static str, SolutionFiles)>, NotCovered> {
    solutions_in(task, target, Precision::Fp32)
}

/// The same with the library's products in this precision.
pub fn solutions_in(
    task: &Task,
    target: Target,
    precision: Precision,
) -> Result<Vec<(&'static str, SolutionFiles)>, NotCovered> {
    let strategies = [Strategy::Plain, Strategy::Fused, Strategy::Tuned];
    let named_files = |strategy: Strategy| {
        let options = CompileOptions {
            precision,
            ..strategy.into()
        };
        let files = compile_with(task, target, &options)?.files;
        Ok((strategy.name(), files))
    };
    strategies.into_iter().map(named_files).collect()
}
