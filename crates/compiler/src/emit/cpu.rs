//! Kernels as C++ with OpenMP.

use super::loops::{Nest, is_steady, nest};
use super::{Writer, c_type, float, integer};
use crate::index::{Index, Var, coordinates, linear};
use crate::plan::{Fold, Pass, Plan, Rows, Scan, Scanning, Strategy};
use crate::scalar::{Kind, Scalar};

/// Neighbouring results that are computed side by side.
const LANES: i64 = 128;
/// A sum longer than this is taken in parts: every addition rounds.
const PART: i64 = 2048;

pub(crate) fn rows(writer: &mut Writer<'_>, kernel: &Rows) {
    if kernel.passes.is_empty() {
        cells(writer, kernel);
    } else if let Some((outer, lane)) = lanes_of(writer, kernel) {
        lanes(writer, kernel, outer, lane);
    } else {
        row_by_row(writer, kernel);
    }
}

/// Everything that is stored, without rows.
fn cells(writer: &mut Writer<'_>, kernel: &Rows) {
    let all: Vec<i64> = kernel.outer.iter().chain(&kernel.cells).copied().collect();
    let rows = kernel.outer.len();
    let place = |at: &[Index]| (kernel.place)(&at[..rows], &at[rows..]);
    let nest = nest(writer.plan, &all, &mut |plan, at| {
        vec![stored(plan, kernel, &place(at))]
    });
    let at = place(&nest.coordinates(&all));
    let value = stored(writer.plan, kernel, &at);
    writer.call(nest.outer, "row");
    writer.call(nest.inner, "i");
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

fn stored(plan: &mut Plan, kernel: &Rows, at: &[Index]) -> Scalar {
    let value = (kernel.value)(&mut plan.arena, at);
    plan.resolved(value, &kernel.passes)
}

fn store(writer: &mut Writer<'_>, kernel: &Rows, at: &[Index], value: Scalar) {
    let place = writer.index(&linear(&kernel.shape, at));
    let value = writer.value(value);
    let out = writer.buffer(kernel.out).to_owned();
    writer.line(format!("{out}[{place}] = {value};"));
}

/// What goes into a pass, for a row and an element.
fn folded(plan: &mut Plan, pass: &Pass, passes: &[Pass], row: &[Index], at: &[Index]) -> Scalar {
    let body = plan.reductions[pass.reduction.0].body.clone();
    let value = body(&mut plan.arena, &(pass.outer)(row), at);
    plan.resolved(value, passes)
}

/// Rows are side by side in memory and the elements of one are not: the last rows are the lanes of a vector.
fn lanes_of(writer: &mut Writer<'_>, kernel: &Rows) -> Option<(Var, Var)> {
    let plan = &mut *writer.plan;
    let count: i64 = kernel.outer.iter().product();
    let first = kernel.passes.first()?;
    let reduction = plan.reductions[first.reduction.0].clone();
    if reduction.fold == Fold::ArgMax {
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
        let value = folded(plan, first, &kernel.passes, &row, &at);
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

fn row_at(kernel: &Rows, outer: Var, lane: Var) -> Vec<Index> {
    let row = Index::from(outer).times(lane.extent).plus(&lane.into());
    coordinates(&kernel.outer, &row)
}

fn lanes(writer: &mut Writer<'_>, kernel: &Rows, outer: Var, lane: Var) {
    let width = LANES.min(lane.extent);
    let blocks = (lane.extent + width - 1) / width;
    let ragged = lane.extent % width != 0;
    writer.call(outer, "row");
    writer.call(lane, "i");
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
    for pass in &kernel.passes {
        let reduction = writer.plan.reductions[pass.reduction.0].clone();
        let long = reduction.fold == Fold::Sum && reduction.length() > 512;
        let name = writer.unique(reduction.name);
        let (kind, start) = if long {
            ("double", "0.0".to_owned())
        } else {
            ("float", float(reduction.fold.neutral()))
        };
        writer.line(format!("{kind} {name}[{width}];"));
        writer.line(format!("{each} {name}[i - first] = {start};"));
        let vars: Vec<Var> = reduction
            .extents
            .iter()
            .map(|extent| writer.plan.arena.var(*extent))
            .collect();
        let at: Vec<Index> = vars.iter().map(|var| (*var).into()).collect();
        let value = folded(writer.plan, pass, &kernel.passes, &row, &at);
        let scope = writer.scope();
        let opened = open_loops(writer, &vars);
        writer.line("#pragma omp simd");
        writer.open(format!("{each} {{"));
        writer.define(&[value], &[]);
        let value = writer.operand(value);
        let into = format!("{name}[i - first]");
        writer.line(combine(reduction.fold, &into, &value));
        writer.close();
        for _ in 0..opened {
            writer.close();
        }
        writer.leave(scope);
        let finished = writer.plan.arena.finished(pass.reduction, reduction.kind);
        let text = if long {
            format!("float({name}[i - first])")
        } else {
            format!("{name}[i - first]")
        };
        writer.set(finished, text);
    }
    let vars: Vec<Var> = kernel
        .cells
        .iter()
        .map(|extent| writer.plan.arena.var(*extent))
        .collect();
    let cell: Vec<Index> = vars.iter().map(|var| (*var).into()).collect();
    let at = (kernel.place)(&row, &cell);
    let value = stored(writer.plan, kernel, &at);
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
pub(super) fn open_loops(writer: &mut Writer<'_>, vars: &[Var]) -> usize {
    let mut opened = 0;
    for var in vars.iter().filter(|var| var.extent > 1) {
        let name = writer.unique(["k", "l", "m", "n", "o"][opened.min(4)]);
        writer.call(*var, &name);
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
pub(super) fn combine(fold: Fold, into: &str, value: &str) -> String {
    match fold {
        Fold::Sum => format!("{into} += {value};"),
        Fold::Product => format!("{into} *= {value};"),
        Fold::Max => format!("{into} = {into} < {value} ? {value} : {into};"),
        Fold::Min => format!("{into} = {value} < {into} ? {value} : {into};"),
        Fold::ArgMax => format!("if ({into} < {value}) {into} = {value};"),
    }
}

fn row_by_row(writer: &mut Writer<'_>, kernel: &Rows) {
    let count: i64 = kernel.outer.iter().product();
    let flat = writer.plan.arena.var(count);
    writer.call(flat, "row");
    let row = coordinates(&kernel.outer, &flat.into());
    writer.line("#pragma omp parallel for schedule(static)");
    writer.open(format!("for (int64_t row = 0; row < {count}; ++row) {{"));
    for pass in &kernel.passes {
        fold(writer, kernel, pass, &row);
    }
    let place = |cell: &[Index]| (kernel.place)(&row, cell);
    let nest = nest(writer.plan, &kernel.cells, &mut |plan, cell| {
        vec![stored(plan, kernel, &place(cell))]
    });
    let at = place(&nest.coordinates(&kernel.cells));
    let value = stored(writer.plan, kernel, &at);
    in_nest(writer, nest, &[value], "#pragma omp simd", |writer| {
        store(writer, kernel, &at, value);
    });
    writer.close();
}

/// Loops over a nest with what they share before them.
fn in_nest(
    writer: &mut Writer<'_>,
    nest: Nest,
    values: &[Scalar],
    pragma: &str,
    inside: impl FnOnce(&mut Writer<'_>),
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
        writer.call(nest.inner, &name);
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
    writer.leave(scope);
}

fn fold(writer: &mut Writer<'_>, kernel: &Rows, pass: &Pass, row: &[Index]) {
    let reduction = writer.plan.reductions[pass.reduction.0].clone();
    let nest = nest(writer.plan, &reduction.extents, &mut |plan, at| {
        vec![folded(plan, pass, &kernel.passes, row, at)]
    });
    let at = nest.coordinates(&reduction.extents);
    let value = folded(writer.plan, pass, &kernel.passes, row, &at);
    let name = writer.unique(reduction.name);
    let finished = writer.plan.arena.finished(pass.reduction, reduction.kind);
    let long = reduction.fold == Fold::Sum && reduction.length() > PART;
    if reduction.fold == Fold::ArgMax {
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
        writer.call(nest.inner, &i);
        writer.line(format!("float {part} = 0.0f;"));
        writer.line(format!("#pragma omp simd reduction(+ : {part})"));
        writer.open(format!("for (int64_t {i} = {from}; {i} < {end}; ++{i}) {{"));
        writer.define(&[value], &[]);
        let value = writer.value(value);
        writer.line(format!("{part} += {value};"));
        writer.close();
        writer.line(format!("{name} += {part};"));
        writer.leave(scope);
        writer.close();
    } else {
        let kind = if long { "double" } else { "float" };
        let start = if long {
            "0.0".to_owned()
        } else {
            float(reduction.fold.neutral())
        };
        writer.line(format!("{kind} {name} = {start};"));
        let sign = match reduction.fold {
            Fold::Sum => "+",
            Fold::Product => "*",
            Fold::Max => "max",
            Fold::Min => "min",
            Fold::ArgMax => "",
        };
        let pragma = format!("#pragma omp simd reduction({sign} : {name})");
        in_nest(writer, nest, &[value], &pragma, |writer| {
            let value = writer.operand(value);
            writer.line(combine(reduction.fold, &name, &value));
        });
    }
    let text = if long { format!("float({name})") } else { name };
    writer.set(finished, text);
}

/// A statement that takes the next element in.
fn ran_over(how: Scanning, into: &str, value: &str) -> String {
    match how {
        Scanning::Sum => format!("{into} += {value};"),
        Scanning::Product => format!("{into} *= {value};"),
        Scanning::Max => format!("{into} = {into} < {value} ? {value} : {into};"),
        Scanning::Min => format!("{into} = {value} < {into} ? {value} : {into};"),
        Scanning::LogSum => format!(
            "{into} = {into} < {value} ? {value} + log1p(exp({into} - {value})) : {into} + log1p(exp({value} - {into}));"
        ),
    }
}

pub(crate) fn scan(writer: &mut Writer<'_>, kernel: &Scan) {
    let [before, length, after] = kernel.shape;
    let vars = [before, length, after].map(|extent| writer.plan.arena.var(extent));
    let at = vars.map(Index::from);
    let value = (kernel.value)(&mut writer.plan.arena, &at);
    let value = writer.plan.resolved(value, &[]);
    let place = linear(&kernel.shape, &at);
    let out = writer.buffer(kernel.out).to_owned();
    for (var, name) in vars.iter().zip(["row", "k", "i"]) {
        writer.call(*var, name);
    }
    let start = match kernel.how {
        Scanning::Sum => "0.0",
        Scanning::Product => "1.0",
        Scanning::Max | Scanning::LogSum => "-INFINITY",
        Scanning::Min => "INFINITY",
    };
    // In double: every element carries the rounding of all before it.
    if after == 1 {
        writer.line("#pragma omp parallel for schedule(static)");
        writer.open(format!("for (int64_t row = 0; row < {before}; ++row) {{"));
        writer.line(format!("double running = {start};"));
        writer.open(format!("for (int64_t k = 0; k < {length}; ++k) {{"));
        writer.define(&[value], &[]);
        let (value, place) = (writer.operand(value), writer.index(&place));
        writer.line(ran_over(kernel.how, "running", &value));
        writer.line(format!(
            "{out}[{place}] = {}(running);",
            c_type(Kind::Float)
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
    writer.line(ran_over(kernel.how, "running[i - first]", &value));
    writer.line(format!("{out}[{place}] = float(running[i - first]);"));
    writer.close();
    writer.close();
    writer.close();
}
