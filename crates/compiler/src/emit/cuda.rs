//! Kernels as CUDA C++.

mod attention;
mod elementwise;
mod launch;
mod register_cache;
mod rows;
mod scan;
mod schedule;
mod unroll;
mod vectors;

pub(crate) use attention::{attention, tile as attention_tile};
pub(crate) use launch::LaunchConfig;
use launch::product;
pub(crate) use scan::scan;

use super::row_kernel::{
    close_loops, combine, open_loops, reduction_operand, start, store, stored_value, variables,
};
use super::{KernelWriter, integer};
use crate::index::{coordinates, linear};
use crate::plan::{Plan, ReduceOp, RowKernel, Strategy};
use elementwise::elementwise;
use rows::threads_per_row;
use schedule::schedule_rows;

const THREADS: i64 = 256;

pub(crate) fn rows(writer: &mut KernelWriter<'_>, kernel: &RowKernel) -> LaunchConfig {
    if kernel.reductions.is_empty() {
        return elementwise(writer, kernel);
    }
    match schedule_rows(writer, kernel) {
        Some(schedule) => threads_per_row(writer, kernel, schedule),
        None => thread_per_row(writer, kernel),
    }
}

/// Threads of a block that need nothing of each other.
fn block_size(writer: &mut KernelWriter<'_>) -> i64 {
    match writer.plan.strategy {
        Strategy::Tuned => {
            writer
                .plan
                .knobs
                .choose("threads of a block", THREADS, &[128, 512, 64, 1024])
        }
        Strategy::Plain | Strategy::Fused => THREADS,
    }
}

/// Declares the thread's index among as many as a shape has places.
fn thread_number(writer: &mut KernelWriter<'_>, name: &str, shape: &[i64], threads: i64) {
    let int = integer(writer.plan);
    let block = if int == "int" {
        "blockIdx.x"
    } else {
        "int64_t(blockIdx.x)"
    };
    writer.unique(name);
    writer.line(format!(
        "const {int} {name} = {block} * {threads} + threadIdx.x;"
    ));
    // Also where the threads are exactly as many: who learns from this code need not divide.
    // The same words as where the blocks are counted.
    let count = match shape {
        [count] => writer.count(*count),
        shape => product(shape),
    };
    writer.line(format!("if ({name} >= {count}) return;"));
}

/// The extents of a kernel's rows as the tensor has them, where the kernel flattened them.
fn rows_of(plan: &Plan, kernel: &RowKernel) -> Vec<i64> {
    let [count] = kernel.outer[..] else {
        return kernel.outer.clone();
    };
    // The reduction's own: another tensor may have as many by chance.
    if let Some(pass) = kernel.reductions.first() {
        let own = &plan.reductions[pass.reduction.0];
        if own.rows() == count {
            return own.outer.clone();
        }
    }
    let before = |shape: &[i64]| {
        let fits = |end: &usize| shape[..*end].iter().product::<i64>() == count;
        let end = (1..=shape.len()).find(fits)?;
        Some(shape[..end].to_vec())
    };
    let mut buffers = plan.buffers.iter();
    buffers
        .find_map(|buffer| before(&buffer.shape))
        .unwrap_or_else(|| vec![count])
}

/// One thread for each row.
fn thread_per_row(writer: &mut KernelWriter<'_>, kernel: &RowKernel) -> LaunchConfig {
    let count: i64 = kernel.outer.iter().product();
    let flat = writer.plan.arena.var(count);
    writer.name_variable(flat, "row");
    let threads = block_size(writer);
    thread_number(writer, "row", &rows_of(writer.plan, kernel), threads);
    let row = coordinates(&kernel.outer, &flat.into());
    for pass in &kernel.reductions {
        let reduction = writer.plan.reductions[pass.reduction.0].clone();
        // Windows lie where the rows say, in the order of the rows.
        let in_order = coordinates(&reduction.outer, &flat.into()) == (pass.outer)(&row);
        let window = if reduction.windows && in_order && writer.plan.is_regular() {
            writer.declare_window(&reduction.outer)
        } else {
            None
        };
        writer.by_coordinates = window.is_some();
        // Where a window lies comes before the place in it.
        let (vars, at) = variables(writer.plan, &reduction.extents);
        let value = match window {
            Some(window) => {
                let value = (reduction.body)(&mut writer.plan.arena, &window, &at);
                writer.plan.resolve(value, &kernel.reductions)
            }
            None => reduction_operand(writer.plan, pass, &kernel.reductions, &row, &at),
        };
        writer.define(&[value], &vars);
        let name = writer.unique(reduction.name);
        let scope = writer.scope();
        if reduction.op == ReduceOp::ArgMax {
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
            close_loops(writer, opened);
        } else {
            let (kind, start) = start(&reduction);
            writer.line(format!("{kind} {name} = {start};"));
            let opened = open_loops(writer, &vars);
            writer.define(&[value], &[]);
            let value = writer.operand(value);
            writer.line(combine(reduction.op, &name, &value));
            close_loops(writer, opened);
        }
        writer.exit_scope(scope);
        writer.by_coordinates = false;
        let finished = writer.plan.arena.finished(pass.reduction, reduction.kind);
        writer.set(finished, name);
    }
    let (vars, element) = variables(writer.plan, &kernel.row_shape);
    let at = (kernel.index_map)(&row, &element);
    let value = stored_value(writer.plan, kernel, &at);
    writer.define(&[value], &vars);
    let opened = open_loops(writer, &vars);
    writer.define(&[value], &[]);
    store(writer, kernel, &at, value);
    close_loops(writer, opened);
    LaunchConfig::over(&rows_of(writer.plan, kernel), 1, threads)
}
