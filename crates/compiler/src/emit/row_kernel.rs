//! What kernels over rows have in common, whoever runs them.

use super::{KernelWriter, float, integer};
use crate::index::{Index, Var, linear};
use crate::plan::{Plan, ReduceOp, Reduction, RowKernel, RowReduction};
use crate::scalar::Scalar;

/// What is stored at a place of the result.
pub(super) fn stored_value(plan: &mut Plan, kernel: &RowKernel, at: &[Index]) -> Scalar {
    let value = (kernel.value)(&mut plan.arena, at);
    plan.resolve(value, &kernel.reductions)
}

pub(super) fn store(
    writer: &mut KernelWriter<'_>,
    kernel: &RowKernel,
    at: &[Index],
    value: Scalar,
) {
    let place = writer.index(&linear(&kernel.shape, at));
    let value = writer.value(value);
    let out = writer.buffer(kernel.out).to_owned();
    writer.line(format!("{out}[{place}] = {value};"));
}

/// What goes into a reduction, for a row and an element.
pub(super) fn reduction_operand(
    plan: &mut Plan,
    pass: &RowReduction,
    passes: &[RowReduction],
    row: &[Index],
    at: &[Index],
) -> Scalar {
    let body = plan.reductions[pass.reduction.0].body.clone();
    let value = body(&mut plan.arena, &(pass.outer)(row), at);
    plan.resolve(value, passes)
}

/// A variable for each extent, and the place they name.
pub(super) fn variables(plan: &mut Plan, extents: &[i64]) -> (Vec<Var>, Vec<Index>) {
    let vars = extents.iter().map(|extent| plan.arena.var(*extent));
    let vars: Vec<Var> = vars.collect();
    let at = vars.iter().map(|var| (*var).into()).collect();
    (vars, at)
}

/// Opens a loop for each variable; says how many.
pub(super) fn open_loops(writer: &mut KernelWriter<'_>, vars: &[Var]) -> usize {
    let mut opened = 0;
    for var in vars.iter().filter(|var| var.extent > 1) {
        let name = writer.unique(["k", "l", "m", "n", "o"][opened.min(4)]);
        writer.name_variable(*var, &name);
        let int = integer(writer.plan);
        writer.open(format!(
            "for ({int} {name} = 0; {name} < {}; ++{name}) {{",
            var.extent
        ));
        opened += 1;
    }
    opened
}

pub(super) fn close_loops(writer: &mut KernelWriter<'_>, opened: usize) {
    for _ in 0..opened {
        writer.close();
    }
}

/// The type of a reduction's variable, and what it starts with.
pub(super) fn start(reduction: &Reduction) -> (&'static str, String) {
    if !reduction.is_whole() {
        return ("float", float(reduction.op.identity()));
    }
    let start = match reduction.op {
        ReduceOp::Product => "1",
        ReduceOp::Max => "INT64_MIN",
        ReduceOp::Min => "INT64_MAX",
        ReduceOp::Sum | ReduceOp::ArgMax => "0",
    };
    ("int64_t", start.to_owned())
}

/// A statement that takes another element in.
pub(super) fn combine(fold: ReduceOp, into: &str, value: &str) -> String {
    match fold {
        ReduceOp::Sum => format!("{into} += {value};"),
        ReduceOp::Product => format!("{into} *= {value};"),
        ReduceOp::Max => format!("{into} = {into} < {value} ? {value} : {into};"),
        ReduceOp::Min => format!("{into} = {value} < {into} ? {value} : {into};"),
        ReduceOp::ArgMax => format!("if ({into} < {value}) {into} = {value};"),
    }
}
