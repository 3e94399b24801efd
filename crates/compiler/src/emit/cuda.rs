//! Kernels as CUDA C++.

mod cells;
mod helpers;
mod kept;
mod launch;
mod mathematics;
mod neighbours;
mod rows;
mod scan;
mod team;
mod vectors;

pub(crate) use helpers::helper;
pub(crate) use launch::Launch;
pub(crate) use scan::scan;

use super::cpu::{combine, open_loops};
use super::{Writer, float, integer};
use crate::index::{Index, Var, coordinates, linear};
use crate::plan::{Fold, Pass, Plan, Rows};
use crate::scalar::Scalar;
use cells::cells;
use rows::together;
use team::shared_out;

const THREADS: i64 = 256;

pub(crate) fn rows(writer: &mut Writer<'_>, kernel: &Rows) -> Launch {
    if kernel.passes.is_empty() {
        return cells(writer, kernel);
    }
    match shared_out(writer, kernel) {
        Some(team) => together(writer, kernel, team),
        None => alone(writer, kernel),
    }
}

/// Declares a thread's number among so many.
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
        let count = writer.count(count);
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

/// The extents that a kernel's rows are counted by, as a tensor has them before the others, where they were taken together.
fn rows_of(plan: &Plan, kernel: &Rows) -> Vec<i64> {
    let [count] = kernel.outer[..] else {
        return kernel.outer.clone();
    };
    let before = |shape: &[i64]| {
        let fits = |end: &usize| shape[..*end].iter().product::<i64>() == count;
        let end = (1..=shape.len()).find(fits)?;
        Some(shape[..end].to_vec())
    };
    let mut rooms = plan.rooms.iter();
    rooms
        .find_map(|room| before(&room.shape))
        .unwrap_or_else(|| vec![count])
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
    Launch::over(&rows_of(writer.plan, kernel), 1)
}
