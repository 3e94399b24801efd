//! Kernels as CUDA C++.

mod helpers;
mod scan;
mod team;
mod vectors;

pub(in crate::teacher) use helpers::helper;
pub(in crate::teacher) use scan::scan;

use super::cpu::{combine, open_loops};
use super::{Writer, float};
use crate::teacher::index::{Index, Var, coordinates, linear};
use crate::teacher::plan::{Fold, Pass, Plan, Rows, Strategy};
use crate::teacher::scalar::{Kind, Scalar};
use team::{shared_out, together};
use vectors::{unpack, vector, wide};

const THREADS: i64 = 256;

/// Blocks, and the threads of one.
pub(in crate::teacher) struct Launch {
    pub(in crate::teacher) blocks: i64,
    pub(in crate::teacher) threads: String,
}

impl Launch {
    fn over(count: i64) -> Self {
        Self {
            blocks: (count + THREADS - 1) / THREADS,
            threads: THREADS.to_string(),
        }
    }
}

pub(in crate::teacher) fn rows(writer: &mut Writer<'_>, kernel: &Rows) -> Launch {
    if kernel.passes.is_empty() {
        return cells(writer, kernel);
    }
    match shared_out(writer, kernel) {
        Some(team) => together(writer, kernel, team),
        None => alone(writer, kernel),
    }
}

/// The type of an index: 32 bits are quicker where they suffice.
fn integer(plan: &Plan) -> &'static str {
    let large = |shape: &[i64]| shape.iter().product::<i64>() >= 1 << 31;
    if plan.rooms.iter().any(|room| large(&room.shape)) {
        "int64_t"
    } else {
        "int"
    }
}

fn thread_number(writer: &mut Writer<'_>, name: &str, count: i64) {
    let int = integer(writer.plan);
    let block = if int == "int" {
        "blockIdx.x"
    } else {
        "int64_t(blockIdx.x)"
    };
    writer.unique(name);
    writer.line(format!(
        "const {int} {name} = {block} * {THREADS} + threadIdx.x;"
    ));
    if count % THREADS != 0 {
        writer.line(format!("if ({name} >= {count}) return;"));
    }
}

fn stored(plan: &mut Plan, kernel: &Rows, at: &[Index]) -> Scalar {
    let value = (kernel.value)(&mut plan.arena, at);
    plan.resolved(value, &kernel.passes)
}

fn folded(plan: &mut Plan, pass: &Pass, passes: &[Pass], row: &[Index], at: &[Index]) -> Scalar {
    let body = plan.reductions[pass.reduction.0].body.clone();
    let value = body(&mut plan.arena, &(pass.outer)(row), at);
    plan.resolved(value, passes)
}

fn cells(writer: &mut Writer<'_>, kernel: &Rows) -> Launch {
    let count: i64 = kernel.cells.iter().product();
    let tuned = writer.plan.strategy == Strategy::Tuned;
    let kind = writer.plan.rooms[kernel.out.0].kind;
    if tuned && count % 4 == 0 && kind == Kind::Float {
        let (group, lane) = (writer.plan.arena.var(count / 4), writer.plan.arena.var(4));
        let flat = Index::from(group).times(4).plus(&lane.into());
        let value = stored(writer.plan, kernel, &coordinates(&kernel.cells, &flat));
        let loads = wide(writer.plan, &[value], lane);
        if !loads.is_empty() {
            return cells_by_four(writer, kernel, value, &loads, (group, lane));
        }
    }
    let flat = writer.plan.arena.var(count);
    let at = coordinates(&kernel.cells, &flat.into());
    let value = stored(writer.plan, kernel, &at);
    writer.call(flat, "i");
    thread_number(writer, "i", count);
    writer.define(&[value], &[]);
    let out = writer.buffer(kernel.out).to_owned();
    let value = writer.value(value);
    writer.line(format!("{out}[i] = {value};"));
    Launch::over(count)
}

fn cells_by_four(
    writer: &mut Writer<'_>,
    kernel: &Rows,
    value: Scalar,
    loads: &[Scalar],
    (group, lane): (Var, Var),
) -> Launch {
    writer.call(group, "i");
    writer.call(lane, "l");
    thread_number(writer, "i", group.extent);
    let mut vectors = Vec::new();
    for load in loads {
        vectors.extend(vector(writer, *load, lane));
    }
    writer.define(&[value], &[lane]);
    writer.line("float4 result;");
    writer.line("#pragma unroll");
    writer.open("for (int l = 0; l < 4; ++l) {");
    unpack(writer, &vectors, "");
    writer.define(&[value], &[]);
    let value = writer.value(value);
    writer.line(format!("(&result.x)[l] = {value};"));
    writer.close();
    let out = writer.buffer(kernel.out).to_owned();
    writer.line(format!("reinterpret_cast<float4*>({out})[i] = result;"));
    Launch::over(group.extent)
}

/// One thread a row.
fn alone(writer: &mut Writer<'_>, kernel: &Rows) -> Launch {
    let count: i64 = kernel.outer.iter().product();
    let flat = writer.plan.arena.var(count);
    writer.call(flat, "row");
    thread_number(writer, "row", count);
    let row = coordinates(&kernel.outer, &flat.into());
    for pass in &kernel.passes {
        let reduction = writer.plan.reductions[pass.reduction.0].clone();
        let vars: Vec<Var> = reduction
            .extents
            .iter()
            .map(|extent| writer.plan.arena.var(*extent))
            .collect();
        let at: Vec<Index> = vars.iter().map(|var| (*var).into()).collect();
        let value = folded(writer.plan, pass, &kernel.passes, &row, &at);
        writer.define(&[value], &vars);
        let name = writer.unique(reduction.name);
        let scope = writer.scope();
        if reduction.fold == Fold::ArgMax {
            let best = writer.unique("best");
            writer.line(format!("float {best} = -INFINITY;"));
            writer.line(format!("int64_t {name} = 0;"));
            let opened = open_loops(writer, &vars);
            writer.define(&[value], &[]);
            let place = writer.index(&linear(&reduction.extents, &at));
            let value = writer.operand(value);
            writer.open(format!("if ({best} < {value}) {{"));
            writer.line(format!("{best} = {value};"));
            writer.line(format!("{name} = {place};"));
            writer.close();
            for _ in 0..opened {
                writer.close();
            }
        } else {
            writer.line(format!(
                "float {name} = {};",
                float(reduction.fold.neutral())
            ));
            let opened = open_loops(writer, &vars);
            writer.define(&[value], &[]);
            let value = writer.operand(value);
            writer.line(combine(reduction.fold, &name, &value));
            for _ in 0..opened {
                writer.close();
            }
        }
        writer.leave(scope);
        let finished = writer.plan.arena.finished(pass.reduction, reduction.kind);
        writer.set(finished, name);
    }
    let vars: Vec<Var> = kernel
        .cells
        .iter()
        .map(|extent| writer.plan.arena.var(*extent))
        .collect();
    let cell: Vec<Index> = vars.iter().map(|var| (*var).into()).collect();
    let at = (kernel.place)(&row, &cell);
    let value = stored(writer.plan, kernel, &at);
    writer.define(&[value], &vars);
    let opened = open_loops(writer, &vars);
    writer.define(&[value], &[]);
    let place = writer.index(&linear(&kernel.shape, &at));
    let value = writer.value(value);
    let out = writer.buffer(kernel.out).to_owned();
    writer.line(format!("{out}[{place}] = {value};"));
    for _ in 0..opened {
        writer.close();
    }
    Launch::over(count)
}
