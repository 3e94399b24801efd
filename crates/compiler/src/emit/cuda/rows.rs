//! Kernels with several threads for each row.

use super::register_cache::{CachedValues, cache_in_registers, choose_cached_values};
use super::schedule::RowSchedule;
use super::vectors::{unpack, vector, wide};
use super::{LaunchConfig, rows_of};
use crate::emit::row_kernel::{combine, reduction_operand, stored_value};
use crate::emit::{KernelWriter, float};
use crate::index::{Index, Var, coordinates, linear};
use crate::plan::{RowKernel, Strategy};
use crate::scalar::{ElementType, Node, Scalar, ScalarType};

/// A group of a row, and an element of it.
pub(super) type RowElement = (Var, Var);

/// One loop over a row, with all that it computes.
struct RowLoop {
    values: Vec<Scalar>,
    /// The passes of the kernel that these values go into.
    passes: Vec<usize>,
    /// Its number of elements. Loops of the schedule's length are divided among threads in groups.
    length: i64,
    place: Index,
}

pub(super) fn threads_per_row(
    writer: &mut KernelWriter<'_>,
    kernel: &RowKernel,
    schedule: RowSchedule,
) -> LaunchConfig {
    let count: i64 = kernel.outer.iter().product();
    let flat = writer.plan.arena.var(count);
    writer.name_variable(flat, "row");
    let rows = rows_of(writer.plan, kernel);
    schedule.declare_row(writer, &rows);
    for name in ["row", "n", "c", "l"] {
        writer.unique(name);
    }
    let row = coordinates(&kernel.outer, &flat.into());
    let group = writer.plan.arena.var(schedule.groups());
    let lane = writer.plan.arena.var(schedule.width);
    writer.name_variable(group, "c");
    writer.name_variable(lane, "l");
    let element = Index::from(group).times(schedule.width).plus(&lane.into());
    let place_of = |writer: &mut KernelWriter<'_>, length: i64| {
        if length == schedule.length {
            element.clone()
        } else {
            Index::from(writer.plan.arena.var(length))
        }
    };

    // All values first: what several loops need is computed once.
    let mut loops: Vec<RowLoop> = Vec::new();
    for (number, pass) in kernel.reductions.iter().enumerate() {
        let reduction = writer.plan.reductions[pass.reduction.0].clone();
        let length = reduction.length();
        let place = place_of(writer, length);
        let at = coordinates(&reduction.extents, &place);
        let value = reduction_operand(writer.plan, pass, &kernel.reductions, &row, &at);
        match loops.last_mut() {
            Some(last)
                if length == schedule.length && joins(writer, kernel, last, schedule, value) =>
            {
                last.values.push(value);
                last.passes.push(number);
            }
            _ => loops.push(RowLoop {
                values: vec![value],
                passes: vec![number],
                length,
                place,
            }),
        }
    }
    let cells: i64 = kernel.row_shape.iter().product();
    let place = place_of(writer, cells);
    let at = (kernel.index_map)(&row, &coordinates(&kernel.row_shape, &place));
    let last = RowLoop {
        values: vec![stored_value(writer.plan, kernel, &at)],
        passes: Vec::new(),
        length: cells,
        place,
    };
    let of_the_row: Vec<&[Scalar]> = loops
        .iter()
        .chain([&last])
        .filter(|one| one.length == schedule.length)
        .map(|one| one.values.as_slice())
        .collect();
    let chosen = choose_cached_values(writer, &of_the_row, (group, lane), schedule);
    let cached = cache_in_registers(writer, chosen, (group, lane), schedule);

    for one in &loops {
        reduce(writer, kernel, one, &cached, lane, schedule);
    }
    let target = linear(&kernel.shape, &at);
    store(writer, kernel, &last, &target, &cached, (lane, schedule));
    schedule.launch(&rows)
}

/// Whether a value can be computed in the same loop: it needs nothing that the loop finds.
fn joins(
    writer: &KernelWriter<'_>,
    kernel: &RowKernel,
    into: &RowLoop,
    schedule: RowSchedule,
    value: Scalar,
) -> bool {
    let arena = &writer.plan.arena;
    let found = |one: &Scalar| match arena.node(*one) {
        Node::Finished(reduction) => into
            .passes
            .iter()
            .any(|pass| kernel.reductions[*pass].reduction == *reduction),
        _ => false,
    };
    into.length == schedule.length && !arena.ordered(&[value]).iter().any(found)
}

/// A loop over the row, and what its threads have found put together.
fn reduce(
    writer: &mut KernelWriter<'_>,
    kernel: &RowKernel,
    one: &RowLoop,
    cached: &CachedValues,
    lane: Var,
    schedule: RowSchedule,
) {
    let mut found = Vec::new();
    for pass in &one.passes {
        let number = kernel.reductions[*pass].reduction;
        let reduction = writer.plan.reductions[number.0].clone();
        let name = writer.unique(reduction.name);
        if reduction.kind == ScalarType::Int {
            let arg_max = writer.provided("ArgMax");
            writer.line(format!("{arg_max} {name} = {{-INFINITY, 0}};"));
        } else {
            let start = float(reduction.op.identity());
            writer.line(format!("float {name} = {start};"));
        }
        found.push((number, reduction, name));
    }
    over_row(writer, one, cached, lane, schedule, |writer, values| {
        for ((_, reduction, name), value) in found.iter().zip(values) {
            if reduction.kind == ScalarType::Int {
                let at = writer.index(&one.place);
                writer.line(format!("{name}.take({value}, {at});"));
            } else {
                writer.line(combine(reduction.op, name, value));
            }
        }
    });
    for (number, reduction, name) in found {
        schedule.combine(writer, reduction.op, &name);
        let finished = writer.plan.arena.finished(number, reduction.kind);
        let text = if reduction.kind == ScalarType::Int {
            format!("{name}.index")
        } else {
            name
        };
        writer.set(finished, text);
    }
}

fn store(
    writer: &mut KernelWriter<'_>,
    kernel: &RowKernel,
    last: &RowLoop,
    target: &Index,
    cached: &CachedValues,
    (lane, schedule): (Var, RowSchedule),
) {
    let out = writer.buffer(kernel.out).to_owned();
    let value = last.values[0];
    if last.length == 1 {
        if let Some(member) = schedule.thread_in_row() {
            writer.open(format!("if ({member} == 0) {{"));
        }
        writer.define(&[value], &[]);
        let value = writer.value(value);
        let place = writer.index(target);
        writer.line(format!("{out}[{place}] = {value};"));
        if schedule.thread_in_row().is_some() {
            writer.close();
        }
        return;
    }
    let by_four = schedule.width == 4
        && last.length == schedule.length
        && target.stride(lane) == Some(1)
        && target.aligned(4, lane)
        && writer.plan.buffers[kernel.out.0].element == ElementType::Float;
    if !by_four {
        over_row(writer, last, cached, lane, schedule, |writer, values| {
            let place = writer.index(target);
            writer.line(format!("{out}[{place}] = {};", values[0]));
        });
        return;
    }
    let vars: Vec<Var> = last.place.vars().into_iter().collect();
    writer.define(&[value], &vars);
    open_row(writer, schedule, cached.is_empty());
    writer.line("float4 result;");
    lanes_of(writer, &[value], cached, lane, schedule, |writer| {
        let value = writer.value(value);
        writer.line(format!("(&result.x)[l] = {value};"));
    });
    let first = target.substituted(lane, &Index::default()).divided(4);
    let first = writer.index(&first);
    writer.line(format!(
        "reinterpret_cast<float4*>({out})[{first}] = result;"
    ));
    close_row(writer, schedule, cached.is_empty());
}

/// A loop over the groups of a row that this thread has: a rolled one where nothing is kept.
pub(super) fn open_row(writer: &mut KernelWriter<'_>, schedule: RowSchedule, rolled: bool) {
    let (threads, groups) = (schedule.threads, schedule.groups());
    if rolled {
        if writer.plan.strategy == Strategy::Tuned {
            writer.line(match (schedule.thread_in_row(), groups, schedule.width) {
                (None, ..=64, _) => "#pragma unroll",
                (_, _, 4) => "#pragma unroll 4",
                _ => "#pragma unroll 8",
            });
        }
        let first = schedule.thread_in_row().unwrap_or("0");
        let groups = writer.count(groups);
        writer.open(format!(
            "for (int c = {first}; c < {groups}; c += {threads}) {{"
        ));
        return;
    }
    writer.line("#pragma unroll");
    writer.open(format!("for (int n = 0; n < {}; ++n) {{", schedule.items()));
    match schedule.thread_in_row() {
        Some(member) => writer.line(format!("const int c = {member} + n * {threads};")),
        None => writer.line("const int c = n;"),
    }
    if groups % threads != 0 {
        let groups = writer.count(groups);
        writer.open(format!("if (c < {groups}) {{"));
    }
}

pub(super) fn close_row(writer: &mut KernelWriter<'_>, schedule: RowSchedule, rolled: bool) {
    if !rolled && schedule.groups() % schedule.threads != 0 {
        writer.close();
    }
    writer.close();
}

/// Writes a loop over a row; `inside` gets the expressions of each element.
fn over_row(
    writer: &mut KernelWriter<'_>,
    one: &RowLoop,
    cached: &CachedValues,
    lane: Var,
    schedule: RowSchedule,
    inside: impl FnOnce(&mut KernelWriter<'_>, &[String]),
) {
    let vars: Vec<Var> = one.place.vars().into_iter().collect();
    writer.define(&one.values, &vars);
    let scope = writer.scope();
    let expressed = |writer: &mut KernelWriter<'_>| {
        let texts = one.values.iter().map(|value| writer.operand(*value));
        texts.collect::<Vec<String>>()
    };
    if one.length == schedule.length {
        open_row(writer, schedule, cached.is_empty());
        lanes_of(writer, &one.values, cached, lane, schedule, |writer| {
            let values = expressed(writer);
            inside(writer, &values);
        });
        close_row(writer, schedule, cached.is_empty());
    } else {
        let name = writer.unique("k");
        for var in &vars {
            writer.name_variable(*var, &name);
        }
        let length = writer.count(one.length);
        writer.open(format!(
            "for (int {name} = {}; {name} < {length}; {name} += {}) {{",
            schedule.thread_in_row().unwrap_or("0"),
            schedule.threads
        ));
        writer.define(&one.values, &[]);
        let values = expressed(writer);
        inside(writer, &values);
        writer.close();
    }
    writer.exit_scope(scope);
}

/// The elements of a group, with its wide loads before them.
pub(super) fn lanes_of(
    writer: &mut KernelWriter<'_>,
    values: &[Scalar],
    cached: &CachedValues,
    lane: Var,
    schedule: RowSchedule,
    inside: impl FnOnce(&mut KernelWriter<'_>),
) {
    if schedule.width == 1 {
        for (value, name) in cached {
            writer.set(*value, format!("{name}[n]"));
        }
        writer.define(values, &[]);
        inside(writer);
        return;
    }
    let is_cached = |one: Scalar| cached.iter().any(|(known, _)| *known == one);
    let mut vectors = Vec::new();
    for load in wide(writer.plan, values, lane, &is_cached) {
        vectors.extend(vector(writer, load, lane));
    }
    // What is kept belongs to its element: nothing of it may be taken out of the loop below.
    unpack(writer, cached, "[n]");
    writer.define(values, &[lane]);
    writer.line("#pragma unroll");
    writer.open("for (int l = 0; l < 4; ++l) {");
    unpack(writer, &vectors, "");
    writer.define(values, &[]);
    inside(writer);
    writer.close();
}
