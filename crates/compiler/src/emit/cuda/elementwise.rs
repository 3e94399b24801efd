//! Kernels without rows: every result on its own.

use super::unroll::{overlap, unroll};
use super::vectors::{unpack, vector, wide};
use super::{LaunchConfig, block_size, thread_number};
use crate::emit::KernelWriter;
use crate::emit::row_kernel::stored_value;
use crate::index::{Index, Var, coordinates, linear};
use crate::plan::{Plan, RowKernel, Strategy};
use crate::scalar::{ElementType, Node, Scalar};

pub(super) fn elementwise(writer: &mut KernelWriter<'_>, kernel: &RowKernel) -> LaunchConfig {
    let count: i64 = kernel.row_shape.iter().product();
    let tuned = writer.plan.strategy == Strategy::Tuned;
    let element = writer.plan.buffers[kernel.out.0].element;
    if tuned && count % 4 == 0 && element == ElementType::Float {
        let width = writer.plan.knobs.choose("results of a thread", 4, &[1]);
        if width == 4
            && let Some(config) = vectorized(writer, kernel, count)
        {
            return config;
        }
    }
    let threads = block_size(writer);
    let flat = writer.plan.arena.var(count);
    let at = coordinates(&kernel.row_shape, &flat.into());
    let value = stored_value(writer.plan, kernel, &at);
    writer.name_variable(flat, "i");
    thread_number(writer, "i", &kernel.row_shape, threads);
    writer.define(&[value], &[]);
    let out = writer.buffer(kernel.out).to_owned();
    let value = writer.value(value);
    writer.line(format!("{out}[i] = {value};"));
    LaunchConfig::over(&kernel.row_shape, 1, threads)
}

/// Four neighbouring results a thread, loaded and stored at once. More of them a thread are slower: 4.0 instead of 4.2 TB/s
/// for a copy on an H200 (`scripts/gpu/bandwidth`). `None` where four neighbours read windows and do not share a row: they have no
/// element in common, and a warp would read each line of memory four times.
fn vectorized(
    writer: &mut KernelWriter<'_>,
    kernel: &RowKernel,
    count: i64,
) -> Option<LaunchConfig> {
    let threads = block_size(writer);
    let (group, lane) = (writer.plan.arena.var(count / 4), writer.plan.arena.var(4));
    let flat = Index::from(group).times(4).plus(&lane.into());
    let mut at = coordinates(&kernel.row_shape, &flat);
    let mut place = Index::from(group);
    if let Some(tiled) = tiles(writer.plan, kernel, (group, lane))
        && writer.plan.knobs.whether("tiles of a transposition", true)
    {
        at = tiled;
        let target = linear(&kernel.row_shape, &at);
        place = target.substituted(lane, &Index::default()).divided(4);
    }
    let value = stored_value(writer.plan, kernel, &at);
    let loads = wide(writer.plan, &[value], lane, &|_| false);
    if overlap(writer.plan, value, lane, &loads) {
        let lane_at = |lane_now: i64| {
            let of_lane = |index: &Index| index.substituted(lane, &Index::constant(lane_now));
            at.iter().map(of_lane).collect()
        };
        if kernel.row_shape.last().is_none_or(|last| last % 4 != 0) {
            return None;
        }
        let config = LaunchConfig::over(&kernel.row_shape, 4, threads);
        let place = (&place, group);
        return Some(unrolled(writer, kernel, &lane_at, place, config));
    }
    writer.name_variable(group, "i");
    writer.name_variable(lane, "l");
    thread_number(writer, "i", &[group.extent], threads);
    let loads = loads.into_iter();
    let vectors: Vec<_> = loads
        .filter_map(|load| vector(writer, load, lane))
        .collect();
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
    let place = writer.index(&place);
    writer.line(format!(
        "reinterpret_cast<float4*>({out})[{place}] = result;"
    ));
    Some(LaunchConfig::over(&kernel.row_shape, 4, threads))
}

/// The same where the four read what lies around them.
fn unrolled(
    writer: &mut KernelWriter<'_>,
    kernel: &RowKernel,
    at: &dyn Fn(i64) -> Vec<Index>,
    (place, group): (&Index, Var),
    config: LaunchConfig,
) -> LaunchConfig {
    writer.name_variable(group, "i");
    thread_number(writer, "i", &[group.extent], config.max_threads);
    let results = unroll(writer, kernel, at).join(", ");
    let out = writer.buffer(kernel.out).to_owned();
    let place = writer.index(place);
    writer.line(format!(
        "reinterpret_cast<float4*>({out})[{place}] = make_float4({results});"
    ));
    config
}

/// Where results are written along one dimension and read along another, a warp has a tile of both: eight neighbours
/// along the one that is read, sixteen along the other, so that every sector of memory is used whole.
fn tiles(plan: &mut Plan, kernel: &RowKernel, (group, lane): (Var, Var)) -> Option<Vec<Index>> {
    const DOWN: i64 = 8;
    const RIGHT: i64 = 4;
    let (last, before) = kernel.row_shape.split_last()?;
    if last % (RIGHT * 4) != 0 {
        return None;
    }
    let vars: Vec<Var> = kernel
        .row_shape
        .iter()
        .map(|extent| plan.arena.var(*extent))
        .collect();
    let at: Vec<Index> = vars.iter().map(|var| (*var).into()).collect();
    let value = stored_value(plan, kernel, &at);
    let along = *vars.last()?;
    let read = |dim: usize| {
        let loads = plan.arena.ordered(&[value]).into_iter();
        let fits = |one: &Scalar| {
            matches!(plan.arena.node(*one), Node::Load { index, looked_up, .. }
            if looked_up.is_empty() && index.stride(vars[dim]) == Some(1)
                && !matches!(index.stride(along), Some(0 | 1)))
        };
        loads.filter(fits).count() > 0
    };
    let down = (0..before.len()).find(|dim| before[*dim] % DOWN == 0 && read(*dim))?;
    let mut shape = kernel.row_shape.clone();
    shape[down] /= DOWN;
    *shape.last_mut()? /= RIGHT * 4;
    shape.extend([DOWN, RIGHT]);
    let mut tiled = coordinates(&shape, &group.into());
    let (right, below) = (tiled.pop()?, tiled.pop()?);
    tiled[down] = tiled[down].times(DOWN).plus(&below);
    let end = tiled.last_mut()?;
    *end = end.times(RIGHT).plus(&right).times(4).plus(&lane.into());
    Some(tiled)
}
