//! Kernels as C++ with OpenMP.

use super::loops::{Nest, is_steady, nest};
use super::{KernelWriter, c_type, float, integer};
use crate::index::{Index, Var, coordinates, linear};
use crate::plan::{Plan, ReduceOp, RowKernel, RowReduction, ScanKernel, ScanOp, Strategy};
use crate::scalar::{Scalar, ScalarType};

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

/// Rows are side by side in memory and the elements of one are not: the last rows are the lanes of a vector.
fn lanes_of(writer: &mut KernelWriter<'_>, kernel: &RowKernel) -> Option<(Var, Var)> {
    let plan = &mut *writer.plan;
    let count: i64 = kernel.outer.iter().product();
    let first = kernel.reductions.first()?;
    let reduction = plan.reductions[first.reduction.0].clone();
    if reduction.op == ReduceOp::ArgMax {
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
        let value = folded(plan, first, &kernel.reductions, &row, &at);
        if !is_steady(plan, &[value], lane) {
            continue;
        }
        let along = plan.arena.contiguous(&[value], length, 1);
        let across = plan.arena.contiguous(&[value], lane, 1);
        let rowwise = reduction.length() >= 16 && along > 0;
        return (!rowwise || across > along).then_some((outer, lane));
    }
    None
}

fn row_at(kernel: &RowKernel, outer: Var, lane: Var) -> Vec<Index> {
    let row = Index::from(outer).times(lane.extent).plus(&lane.into());
    coordinates(&kernel.outer, &row)
}

fn lanes(writer: &mut KernelWriter<'_>, kernel: &RowKernel, outer: Var, lane: Var) {
    let width = LANES.min(lane.extent);
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
        let long = reduction.op == ReduceOp::Sum && reduction.length() > 512;
        let name = writer.unique(reduction.name);
        let (kind, start) = if long {
            ("double", "0.0".to_owned())
        } else {
            ("float", float(reduction.op.identity()))
        };
        writer.line(format!("{kind} {name}[{width}];"));
        writer.line(format!("{each} {name}[i - first] = {start};"));
        let vars: Vec<Var> = reduction
            .extents
            .iter()
            .map(|extent| writer.plan.arena.var(*extent))
            .collect();
        let at: Vec<Index> = vars.iter().map(|var| (*var).into()).collect();
        let value = folded(writer.plan, pass, &kernel.reductions, &row, &at);
        let scope = writer.scope();
        let opened = open_loops(writer, &vars);
        writer.line("#pragma omp simd");
        writer.open(format!("{each} {{"));
        writer.define(&[value], &[]);
        let value = writer.operand(value);
        let into = format!("{name}[i - first]");
        writer.line(combine(reduction.op, &into, &value));
        writer.close();
        for _ in 0..opened {
            writer.close();
        }
        writer.exit_scope(scope);
        let finished = writer.plan.arena.finished(pass.reduction, reduction.kind);
        let text = if long {
            format!("float({name}[i - first])")
        } else {
            format!("{name}[i - first]")
        };
        writer.set(finished, text);
    }
    let vars: Vec<Var> = kernel
        .row_shape
        .iter()
        .map(|extent| writer.plan.arena.var(*extent))
        .collect();
    let element: Vec<Index> = vars.iter().map(|var| (*var).into()).collect();
    let at = (kernel.index_map)(&row, &element);
    let value = stored_value(writer.plan, kernel, &at);
    let opened = open_loops(writer, &vars);
    writer.line("#pragma omp simd");
    writer.open(format!("{each} {{"));
    writer.define(&[value], &[]);
    store(writer, kernel, &at, value);
    writer.close();
    for _ in 0..opened {
        writer.close();
    }
    writer.close();
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

fn row_by_row(writer: &mut KernelWriter<'_>, kernel: &RowKernel) {
    let count: i64 = kernel.outer.iter().product();
    let flat = writer.plan.arena.var(count);
    writer.name_variable(flat, "row");
    let row = coordinates(&kernel.outer, &flat.into());
    writer.line("#pragma omp parallel for schedule(static)");
    writer.open(format!("for (int64_t row = 0; row < {count}; ++row) {{"));
    for pass in &kernel.reductions {
        fold(writer, kernel, pass, &row);
    }
    let place = |element: &[Index]| (kernel.index_map)(&row, element);
    let nest = nest(writer.plan, &kernel.row_shape, &mut |plan, element| {
        vec![stored_value(plan, kernel, &place(element))]
    });
    let at = place(&nest.coordinates(&kernel.row_shape));
    let value = stored_value(writer.plan, kernel, &at);
    in_nest(writer, nest, &[value], "#pragma omp simd", |writer| {
        store(writer, kernel, &at, value);
    });
    writer.close();
}

/// Loops over a nest with what they share before them.
fn in_nest(
    writer: &mut KernelWriter<'_>,
    nest: Nest,
    values: &[Scalar],
    pragma: &str,
    inside: impl FnOnce(&mut KernelWriter<'_>),
) {
    let simd = writer.plan.strategy != Strategy::Plain && nest.inner.extent >= 4;
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
    writer.define(values, &[]);
    inside(writer);
    if nest.inner.extent > 1 {
        writer.close();
    }
    for _ in 0..opened {
        writer.close();
    }
    writer.exit_scope(scope);
}

fn fold(writer: &mut KernelWriter<'_>, kernel: &RowKernel, pass: &RowReduction, row: &[Index]) {
    let reduction = writer.plan.reductions[pass.reduction.0].clone();
    let nest = nest(writer.plan, &reduction.extents, &mut |plan, at| {
        vec![folded(plan, pass, &kernel.reductions, row, at)]
    });
    let at = nest.coordinates(&reduction.extents);
    let value = folded(writer.plan, pass, &kernel.reductions, row, &at);
    let name = writer.unique(reduction.name);
    let finished = writer.plan.arena.finished(pass.reduction, reduction.kind);
    let long = reduction.op == ReduceOp::Sum && reduction.length() > PART;
    if reduction.op == ReduceOp::ArgMax {
        let best = writer.unique("best");
        writer.line(format!("float {best} = -INFINITY;"));
        writer.line(format!("int64_t {name} = 0;"));
        let place = linear(&reduction.extents, &at);
        in_nest(writer, nest, &[value], "", |writer| {
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
        let value = writer.value(value);
        writer.line(format!("{part} += {value};"));
        writer.close();
        writer.line(format!("{name} += {part};"));
        writer.exit_scope(scope);
        writer.close();
    } else {
        let kind = if long { "double" } else { "float" };
        let start = if long {
            "0.0".to_owned()
        } else {
            float(reduction.op.identity())
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
        in_nest(writer, nest, &[value], &pragma, |writer| {
            let value = writer.operand(value);
            writer.line(combine(reduction.op, &name, &value));
        });
    }
    let text = if long { format!("float({name})") } else { name };
    writer.set(finished, text);
}

/// A statement that takes the next element in.
fn ran_over(how: ScanOp, into: &str, value: &str) -> String {
    match how {
        ScanOp::Sum => format!("{into} += {value};"),
        ScanOp::Product => format!("{into} *= {value};"),
        ScanOp::Max => format!("{into} = {into} < {value} ? {value} : {into};"),
        ScanOp::Min => format!("{into} = {value} < {into} ? {value} : {into};"),
        ScanOp::LogSum => format!(
            "{into} = {into} < {value} ? {value} + log1p(exp({into} - {value})) : {into} + log1p(exp({value} - {into}));"
        ),
    }
}

pub(crate) fn scan(writer: &mut KernelWriter<'_>, kernel: &ScanKernel) {
    let [before, length, after] = kernel.shape;
    let vars = [before, length, after].map(|extent| writer.plan.arena.var(extent));
    let at = vars.map(Index::from);
    let value = (kernel.value)(&mut writer.plan.arena, &at);
    let value = writer.plan.resolve(value, &[]);
    let place = linear(&kernel.shape, &at);
    let out = writer.buffer(kernel.out).to_owned();
    for (var, name) in vars.iter().zip(["row", "k", "i"]) {
        writer.name_variable(*var, name);
    }
    let start = match kernel.op {
        ScanOp::Sum => "0.0",
        ScanOp::Product => "1.0",
        ScanOp::Max | ScanOp::LogSum => "-INFINITY",
        ScanOp::Min => "INFINITY",
    };
    // In double: every element carries the rounding of all before it.
    if after == 1 {
        writer.line("#pragma omp parallel for schedule(static)");
        writer.open(format!("for (int64_t row = 0; row < {before}; ++row) {{"));
        writer.line(format!("double running = {start};"));
        writer.open(format!("for (int64_t k = 0; k < {length}; ++k) {{"));
        writer.define(&[value], &[]);
        let (value, place) = (writer.operand(value), writer.index(&place));
        writer.line(ran_over(kernel.op, "running", &value));
        writer.line(format!(
            "{out}[{place}] = {}(running);",
            c_type(ScalarType::Float)
        ));
        writer.close();
        writer.close();
        return;
    }
    let width = LANES.min(after);
    let blocks = (after + width - 1) / width;
    writer.line("#pragma omp parallel for schedule(static)");
    writer.open(format!(
        "for (int64_t block = 0; block < {}; ++block) {{",
        before * blocks
    ));
    if before > 1 {
        writer.line(format!("const int64_t row = block / {blocks};"));
    }
    writer.line(format!("const int64_t first = block % {blocks} * {width};"));
    writer.line(format!(
        "const int64_t last = first + {width} < {after} ? first + {width} : {after};"
    ));
    writer.line(format!("double running[{width}];"));
    writer.line(format!(
        "for (int64_t i = first; i < last; ++i) running[i - first] = {start};"
    ));
    writer.open(format!("for (int64_t k = 0; k < {length}; ++k) {{"));
    writer.line("#pragma omp simd");
    writer.open("for (int64_t i = first; i < last; ++i) {");
    writer.define(&[value], &[]);
    let (value, place) = (writer.operand(value), writer.index(&place));
    writer.line(ran_over(kernel.op, "running[i - first]", &value));
    writer.line(format!("{out}[{place}] = float(running[i - first]);"));
    writer.close();
    writer.close();
    writer.close();
}
