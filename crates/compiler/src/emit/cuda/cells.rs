//! Kernels without rows: every result on its own.

use super::neighbours::{overlap, written_out};
use super::vectors::{unpack, vector, wide};
use super::{Launch, stored, thread_number};
use crate::emit::Writer;
use crate::index::{Index, Var, coordinates, linear};
use crate::plan::{Plan, Rows, Strategy};
use crate::scalar::{Kind, Node, Scalar};

pub(super) fn cells(writer: &mut Writer<'_>, kernel: &Rows) -> Launch {
    let count: i64 = kernel.cells.iter().product();
    let tuned = writer.plan.strategy == Strategy::Tuned;
    let kind = writer.plan.rooms[kernel.out.0].kind;
    if tuned && count % 4 == 0 && kind == Kind::Float {
        return by_four(writer, kernel, count);
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
    Launch::over(&kernel.cells, 1)
}

/// Four neighbouring results a thread, loaded and stored at once. More of them a thread are slower: 4.0 instead of 4.2 TB/s
/// for a copy on an H200 (`scripts/gpu/bandwidth`).
fn by_four(writer: &mut Writer<'_>, kernel: &Rows, count: i64) -> Launch {
    let (group, lane) = (writer.plan.arena.var(count / 4), writer.plan.arena.var(4));
    let flat = Index::from(group).times(4).plus(&lane.into());
    let mut at = coordinates(&kernel.cells, &flat);
    let mut place = Index::from(group);
    if let Some(tiled) = tiles(writer.plan, kernel, (group, lane)) {
        at = tiled;
        let target = linear(&kernel.cells, &at);
        place = target.substituted(lane, &Index::default()).divided(4);
    }
    let value = stored(writer.plan, kernel, &at);
    let loads = wide(writer.plan, &[value], lane, &|_| false);
    if overlap(writer.plan, value, lane, &loads) {
        let lane_at = |lane_now: i64| {
            let of_lane = |index: &Index| index.substituted(lane, &Index::constant(lane_now));
            at.iter().map(of_lane).collect()
        };
        return neighbours(writer, kernel, &lane_at, &place, group);
    }
    writer.call(group, "i");
    writer.call(lane, "l");
    thread_number(writer, "i", group.extent);
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
    Launch::over(&kernel.cells, 4)
}

/// The same where the four read what lies around them.
fn neighbours(
    writer: &mut Writer<'_>,
    kernel: &Rows,
    at: &dyn Fn(i64) -> Vec<Index>,
    place: &Index,
    group: Var,
) -> Launch {
    writer.call(group, "i");
    thread_number(writer, "i", group.extent);
    let results = written_out(writer, kernel, at).join(", ");
    let out = writer.buffer(kernel.out).to_owned();
    let place = writer.index(place);
    writer.line(format!(
        "reinterpret_cast<float4*>({out})[{place}] = make_float4({results});"
    ));
    Launch::over(&kernel.cells, 4)
}

/// Where results are written along one dimension and read along another, a warp has a tile of both: eight neighbours
/// along the one that is read, sixteen along the other, so that every sector of memory is used whole.
fn tiles(plan: &mut Plan, kernel: &Rows, (group, lane): (Var, Var)) -> Option<Vec<Index>> {
    const DOWN: i64 = 8;
    const RIGHT: i64 = 4;
    let (last, before) = kernel.cells.split_last()?;
    if last % (RIGHT * 4) != 0 {
        return None;
    }
    let vars: Vec<Var> = kernel
        .cells
        .iter()
        .map(|extent| plan.arena.var(*extent))
        .collect();
    let at: Vec<Index> = vars.iter().map(|var| (*var).into()).collect();
    let value = stored(plan, kernel, &at);
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
    let mut shape = kernel.cells.clone();
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
