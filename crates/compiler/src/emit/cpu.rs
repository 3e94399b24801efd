//! Kernels as C++ with OpenMP.

mod attention;
mod division;
mod helpers;
mod kept;
mod lanes;
mod mathematics;
mod row_by_row;
mod scan;

pub(crate) use attention::attention;
pub(crate) use helpers::{BFLOAT16, HALF, preamble};
pub(crate) use mathematics::SimdFunction;
pub(crate) use scan::scan;

use super::KernelWriter;
use super::loops::nest;
use super::row_kernel::{store, stored_value};
use crate::index::Index;
use crate::plan::{RowKernel, Strategy};
use division::with_reciprocals;
use lanes::{lanes, lanes_of};
use row_by_row::row_by_row;

/// Neighbouring results that are computed side by side.
const LANES: i64 = 128;
/// A sum longer than this is taken in parts: every addition rounds.
const PART: i64 = 2048;

/// How many of so many neighbours are computed side by side.
fn lane_count(writer: &mut KernelWriter<'_>, neighbours: i64) -> i64 {
    let lanes = match writer.plan.strategy {
        Strategy::Tuned => {
            let others: Vec<i64> = [64, 256, 32, 512]
                .into_iter()
                .filter(|lanes| *lanes <= neighbours)
                .collect();
            let usual = LANES.min(neighbours);
            writer.plan.knobs.choose("lanes", usual, &others)
        }
        Strategy::Plain | Strategy::Fused => LANES,
    };
    lanes.min(neighbours)
}

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
