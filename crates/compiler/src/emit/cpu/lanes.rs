//! Rows side by side: each is a lane of a vector.

use super::lane_count;
use crate::emit::loops::is_steady;
use crate::emit::row_kernel::{
    close_loops, combine, open_loops, reduction_operand, store, stored_value, variables,
};
use crate::emit::{KernelWriter, row_kernel};
use crate::index::{Index, Var, coordinates};
use crate::plan::{ReduceOp, RowKernel, RowReduction, Strategy};

/// Rows are side by side in memory and the elements of one are not: the last rows are the lanes of a vector.
pub(super) fn lanes_of(writer: &mut KernelWriter<'_>, kernel: &RowKernel) -> Option<(Var, Var)> {
    let plan = &mut *writer.plan;
    let count: i64 = kernel.outer.iter().product();
    let first = kernel.reductions.first()?;
    let reduction = plan.reductions[first.reduction.0].clone();
    let finds_place =
        |pass: &RowReduction| plan.reductions[pass.reduction.0].op == ReduceOp::ArgMax;
    if kernel.reductions.iter().any(finds_place) {
        return None;
    }
    let mut widths: Vec<i64> = Vec::new();
    for shape in [&kernel.outer, &reduction.outer] {
        let mut width = 1;
        for extent in shape.iter().rev() {
            width *= extent;
            widths.push(width);
        }
    }
    widths.sort_unstable();
    widths.dedup();
    let length = plan.arena.var(reduction.length());
    for width in widths.into_iter().rev() {
        if width < 8 || count % width != 0 {
            continue;
        }
        let (outer, lane) = (plan.arena.var(count / width), plan.arena.var(width));
        let row = row_at(kernel, outer, lane);
        let at = coordinates(&reduction.extents, &length.into());
        let value = reduction_operand(plan, first, &kernel.reductions, &row, &at);
        if !is_steady(plan, &[value], lane) {
            continue;
        }
        let along = plan.arena.contiguous(&[value], length, 1);
        let across = plan.arena.contiguous(&[value], lane, 1);
        let rowwise = reduction.length() >= 16 && along > 0;
        let usual = !rowwise || across > along;
        let tuned = plan.strategy == Strategy::Tuned;
        let side_by_side = if tuned {
            plan.knobs.whether("rows side by side", usual)
        } else {
            usual
        };
        return side_by_side.then_some((outer, lane));
    }
    None
}

fn row_at(kernel: &RowKernel, outer: Var, lane: Var) -> Vec<Index> {
    let row = Index::from(outer).times(lane.extent).plus(&lane.into());
    coordinates(&kernel.outer, &row)
}

pub(super) fn lanes(writer: &mut KernelWriter<'_>, kernel: &RowKernel, outer: Var, lane: Var) {
    let width = lane_count(writer, lane.extent);
    let blocks = (lane.extent + width - 1) / width;
    let ragged = lane.extent % width != 0;
    writer.name_variable(outer, "row");
    writer.name_variable(lane, "i");
    for name in ["block", "first", "last"] {
        writer.unique(name);
    }
    writer.line("#pragma omp parallel for schedule(static)");
    writer.open(format!(
        "for (int64_t block = 0; block < {}; ++block) {{",
        outer.extent * blocks
    ));
    if outer.extent > 1 {
        writer.line(format!("const int64_t row = block / {blocks};"));
        writer.line(format!("const int64_t first = block % {blocks} * {width};"));
    } else {
        writer.line(format!("const int64_t first = block * {width};"));
    }
    let last = if ragged {
        format!(
            "first + {width} < {extent} ? first + {width} : {extent}",
            extent = lane.extent
        )
    } else {
        format!("first + {width}")
    };
    writer.line(format!("const int64_t last = {last};"));
    let row = row_at(kernel, outer, lane);
    let each = "for (int64_t i = first; i < last; ++i)";
    for pass in &kernel.reductions {
        let reduction = writer.plan.reductions[pass.reduction.0].clone();
        let long =
            reduction.op == ReduceOp::Sum && !reduction.is_whole() && reduction.length() > 512;
        let name = writer.unique(reduction.name);
        let (kind, start) = if long {
            ("double", "0.0".to_owned())
        } else {
            row_kernel::start(&reduction)
        };
        writer.line(format!("{kind} {name}[{width}];"));
        writer.line(format!("{each} {name}[i - first] = {start};"));
        let (vars, at) = variables(writer.plan, &reduction.extents);
        let value = reduction_operand(writer.plan, pass, &kernel.reductions, &row, &at);
        let scope = writer.scope();
        let opened = open_loops(writer, &vars);
        writer.line("#pragma omp simd");
        writer.open(format!("{each} {{"));
        writer.define(&[value], &[]);
        let value = writer.operand(value);
        let into = format!("{name}[i - first]");
        writer.line(combine(reduction.op, &into, &value));
        writer.close();
        close_loops(writer, opened);
        writer.exit_scope(scope);
        let finished = writer.plan.arena.finished(pass.reduction, reduction.kind);
        let text = if long {
            format!("float({name}[i - first])")
        } else {
            format!("{name}[i - first]")
        };
        writer.set(finished, text);
    }
    let (vars, element) = variables(writer.plan, &kernel.row_shape);
    let at = (kernel.index_map)(&row, &element);
    let value = stored_value(writer.plan, kernel, &at);
    let opened = open_loops(writer, &vars);
    writer.line("#pragma omp simd");
    writer.open(format!("{each} {{"));
    writer.define(&[value], &[]);
    store(writer, kernel, &at, value);
    writer.close();
    close_loops(writer, opened);
    writer.close();
}
