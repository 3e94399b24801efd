//! One row after another: vectors along each.

use super::PART;
use super::division::with_reciprocals;
use super::kept::Kept;
use crate::emit::KernelWriter;
use crate::emit::loops::{Nest, is_steady, nest};
use crate::emit::row_kernel::{
    close_loops, combine, open_loops, reduction_operand, start, store, stored_value,
};
use crate::index::{Index, coordinates, linear};
use crate::plan::{Plan, ReduceOp, RowKernel, RowReduction, Strategy};
use crate::scalar::Scalar;

pub(super) fn row_by_row(writer: &mut KernelWriter<'_>, kernel: &RowKernel) {
    let count: i64 = kernel.outer.iter().product();
    let flat = writer.plan.arena.var(count);
    writer.name_variable(flat, "row");
    let row = coordinates(&kernel.outer, &flat.into());
    let kept = Kept::find(writer.plan, kernel, &row)
        .filter(|_| writer.plan.knobs.whether("terms kept in the result", true));
    writer.line("#pragma omp parallel for schedule(static)");
    writer.open(format!("for (int64_t row = 0; row < {count}; ++row) {{"));
    if let Some((last, before)) = kernel.reductions.split_last() {
        for pass in before {
            fold(writer, kernel, pass, &row, None);
        }
        fold(writer, kernel, last, &row, kept.as_ref());
    }
    let (nest, at) = match &kept {
        Some(kept) => (Nest::flat(writer.plan, kept.var), kept.at.clone()),
        None => stored_nest(writer.plan, kernel, &row),
    };
    let value = stored_value(writer.plan, kernel, &at);
    let value = with_reciprocals(writer.plan, value, &[nest.outer, nest.inner]);
    let pragma = "#pragma omp simd";
    in_nest(writer, nest, (&[value], kept.as_ref()), pragma, |writer| {
        store(writer, kernel, &at, value);
    });
    writer.close();
}

/// Loops over the elements that are stored for a row. Where a row has several lines of the result, and something changes from
/// one to the next, the inner loop is along a line.
fn stored_nest(plan: &mut Plan, kernel: &RowKernel, row: &[Index]) -> (Nest, Vec<Index>) {
    let cells: i64 = kernel.row_shape.iter().product();
    let mut shapes = vec![kernel.row_shape.clone()];
    let mut line = 1;
    for extent in kernel.shape.iter().rev() {
        line *= extent;
        if (8..cells).contains(&line) && cells % line == 0 {
            shapes.insert(1, vec![cells / line, line]);
        }
    }
    let mut first = None;
    for shape in shapes {
        let place = |at: &[Index]| {
            let element = coordinates(&kernel.row_shape, &linear(&shape, at));
            (kernel.index_map)(row, &element)
        };
        let nest = nest(plan, &shape, &mut |plan, at| {
            vec![stored_value(plan, kernel, &place(at))]
        });
        let at = place(&nest.coordinates(&shape));
        let value = stored_value(plan, kernel, &at);
        if nest.inner.extent >= 8 && is_steady(plan, &[value], nest.inner) {
            return (nest, at);
        }
        first.get_or_insert((nest, at));
    }
    first.unwrap_or_else(|| {
        let one = plan.arena.var(1);
        (Nest::flat(plan, one), Vec::new())
    })
}

/// Loops over a nest with what they share before them. What was kept is read and not computed again.
fn in_nest(
    writer: &mut KernelWriter<'_>,
    nest: Nest,
    (values, kept): (&[Scalar], Option<&Kept>),
    pragma: &str,
    inside: impl FnOnce(&mut KernelWriter<'_>),
) {
    let simd = writer.plan.strategy != Strategy::Plain && nest.inner.extent >= 4;
    if let Some(kept) = kept {
        // Named again, with its place in the result, where the loop has a name for its variable.
        writer.set(kept.value, String::new());
    }
    writer.define(values, &[nest.outer, nest.inner]);
    let scope = writer.scope();
    let opened = open_loops(writer, &[nest.outer]);
    if opened > 0 {
        writer.define(values, &[nest.inner]);
    }
    if nest.inner.extent > 1 {
        let name = writer.unique("i");
        writer.name_variable(nest.inner, &name);
        if simd && !pragma.is_empty() {
            writer.line(pragma);
        }
        writer.open(format!(
            "for (int64_t {name} = 0; {name} < {}; ++{name}) {{",
            nest.inner.extent
        ));
    }
    if let Some(kept) = kept {
        let place = kept.element(writer);
        writer.set(kept.value, place);
    }
    writer.define(values, &[]);
    inside(writer);
    if nest.inner.extent > 1 {
        writer.close();
    }
    close_loops(writer, opened);
    writer.exit_scope(scope);
}

fn fold(
    writer: &mut KernelWriter<'_>,
    kernel: &RowKernel,
    pass: &RowReduction,
    row: &[Index],
    kept: Option<&Kept>,
) {
    let reduction = writer.plan.reductions[pass.reduction.0].clone();
    let (nest, at) = if let Some(kept) = kept {
        let at = coordinates(&reduction.extents, &kept.var.into());
        (Nest::flat(writer.plan, kept.var), at)
    } else {
        let nest = nest(writer.plan, &reduction.extents, &mut |plan, at| {
            vec![reduction_operand(plan, pass, &kernel.reductions, row, at)]
        });
        (nest, nest.coordinates(&reduction.extents))
    };
    let value = reduction_operand(writer.plan, pass, &kernel.reductions, row, &at);
    let name = writer.unique(reduction.name);
    let finished = writer.plan.arena.finished(pass.reduction, reduction.kind);
    let long = reduction.op == ReduceOp::Sum && !reduction.is_whole() && reduction.length() > PART;
    if reduction.op == ReduceOp::ArgMax {
        let best = writer.unique("best");
        writer.line(format!("float {best} = -INFINITY;"));
        writer.line(format!("int64_t {name} = 0;"));
        let place = linear(&reduction.extents, &at);
        in_nest(writer, nest, (&[value], None), "", |writer| {
            let (value, place) = (writer.operand(value), writer.index(&place));
            writer.open(format!("if ({best} < {value}) {{"));
            writer.line(format!("{best} = {value};"));
            writer.line(format!("{name} = {place};"));
            writer.close();
        });
    } else if long && nest.outer.extent == 1 {
        // Parts in single precision for vectors, their sum in double.
        let (from, part) = (writer.unique("from"), writer.unique("part"));
        writer.line(format!("double {name} = 0.0;"));
        writer.define(&[value], &[nest.inner]);
        let length = nest.inner.extent;
        writer.open(format!(
            "for (int64_t {from} = 0; {from} < {length}; {from} += {PART}) {{"
        ));
        let scope = writer.scope();
        let end = if length % PART == 0 {
            format!("{from} + {PART}")
        } else {
            format!("({from} + {PART} < {length} ? {from} + {PART} : {length})")
        };
        let i = writer.unique("i");
        writer.name_variable(nest.inner, &i);
        writer.line(format!("float {part} = 0.0f;"));
        writer.line(format!("#pragma omp simd reduction(+ : {part})"));
        writer.open(format!("for (int64_t {i} = {from}; {i} < {end}; ++{i}) {{"));
        writer.define(&[value], &[]);
        keep(writer, kept);
        let value = writer.value(value);
        writer.line(format!("{part} += {value};"));
        writer.close();
        writer.line(format!("{name} += {part};"));
        writer.exit_scope(scope);
        writer.close();
    } else {
        let (kind, start) = if long {
            ("double", "0.0".to_owned())
        } else {
            start(&reduction)
        };
        writer.line(format!("{kind} {name} = {start};"));
        let sign = match reduction.op {
            ReduceOp::Sum => "+",
            ReduceOp::Product => "*",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
            ReduceOp::ArgMax => "",
        };
        let pragma = format!("#pragma omp simd reduction({sign} : {name})");
        in_nest(writer, nest, (&[value], None), &pragma, |writer| {
            keep(writer, kept);
            let value = writer.operand(value);
            writer.line(combine(reduction.op, &name, &value));
        });
    }
    let text = if long { format!("float({name})") } else { name };
    writer.set(finished, text);
}

fn keep(writer: &mut KernelWriter<'_>, kept: Option<&Kept>) {
    if let Some(kept) = kept {
        let (place, value) = (kept.element(writer), writer.value(kept.value));
        writer.line(format!("{place} = {value};"));
    }
}
