//! Kernels as C++ with OpenMP.

mod division;
mod helpers;
mod kept;
mod lanes;
mod mathematics;
mod row_by_row;
mod scan;

pub(crate) use helpers::preamble;
pub(crate) use mathematics::SimdFunction;
pub(crate) use scan::scan;

use super::loops::nest;
use super::{KernelWriter, integer};
use crate::index::{Index, Var, linear};
use crate::plan::{Plan, ReduceOp, RowKernel, RowReduction, Strategy};
use crate::scalar::Scalar;
use division::with_reciprocals;
use lanes::{lanes, lanes_of};
use row_by_row::row_by_row;

/// Neighbouring results that are computed side by side.
const LANES: i64 = 128;
/// A sum longer than this is taken in parts: every addition rounds.
const PART: i64 = 2048;

pub(crate) fn rows(writer: &mut KernelWriter<'_>, kernel: &RowKernel) {
    if kernel.reductions.is_empty() {
        elementwise(writer, kernel);
    } else if let Some((outer, lane)) = lanes_of(writer, kernel) {
        lanes(writer, kernel, outer, lane);
    } else {
        row_by_row(writer, kernel);
    }
}

/// Everything that is stored, without rows.
fn elementwise(writer: &mut KernelWriter<'_>, kernel: &RowKernel) {
    let all: Vec<i64> = kernel
        .outer
        .iter()
        .chain(&kernel.row_shape)
        .copied()
        .collect();
    let rows = kernel.outer.len();
    let place = |at: &[Index]| (kernel.index_map)(&at[..rows], &at[rows..]);
    let nest = nest(writer.plan, &all, &mut |plan, at| {
        vec![stored_value(plan, kernel, &place(at))]
    });
    let at = place(&nest.coordinates(&all));
    let value = stored_value(writer.plan, kernel, &at);
    let value = with_reciprocals(writer.plan, value, &[nest.inner]);
    writer.name_variable(nest.outer, "row");
    writer.name_variable(nest.inner, "i");
    let inner_is_parallel = nest.outer.extent < 8;
    if nest.outer.extent > 1 {
        if !inner_is_parallel {
            writer.line("#pragma omp parallel for schedule(static)");
        }
        writer.open(format!(
            "for (int64_t row = 0; row < {}; ++row) {{",
            nest.outer.extent
        ));
        writer.define(&[value], &[nest.inner]);
    }
    let simd = if writer.plan.strategy == Strategy::Plain {
        ""
    } else {
        " simd"
    };
    if inner_is_parallel {
        writer.line(format!("#pragma omp parallel for{simd} schedule(static)"));
    } else if !simd.is_empty() {
        writer.line("#pragma omp simd");
    }
    writer.open(format!(
        "for (int64_t i = 0; i < {}; ++i) {{",
        nest.inner.extent
    ));
    writer.define(&[value], &[]);
    store(writer, kernel, &at, value);
    writer.close();
    if nest.outer.extent > 1 {
        writer.close();
    }
}

fn stored_value(plan: &mut Plan, kernel: &RowKernel, at: &[Index]) -> Scalar {
    let value = (kernel.value)(&mut plan.arena, at);
    plan.resolve(value, &kernel.reductions)
}

fn store(writer: &mut KernelWriter<'_>, kernel: &RowKernel, at: &[Index], value: Scalar) {
    let place = writer.index(&linear(&kernel.shape, at));
    let value = writer.value(value);
    let out = writer.buffer(kernel.out).to_owned();
    writer.line(format!("{out}[{place}] = {value};"));
}

/// What goes into a pass, for a row and an element.
fn folded(
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
