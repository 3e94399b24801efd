//! Kernels without rows: every result on its own.

use super::neighbours::{overlap, written_out};
use super::vectors::{unpack, vector, vector_source, wide};
use super::{Launch, THREADS, integer, stored, thread_number};
use crate::teacher::emit::Writer;
use crate::teacher::index::{Index, Var, coordinates, linear};
use crate::teacher::plan::{Plan, Rows, Strategy};
use crate::teacher::scalar::{Kind, Node, Scalar};

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
    Launch::over(count)
}

/// Four neighbouring results a thread, several times: their loads are under way together and each four are stored at once.
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
    let rounds = rounds(writer.plan, &loads, group);
    writer.call(group, "i");
    writer.call(lane, "l");
    let mut vectors = Vec::new();
    if rounds == 1 {
        thread_number(writer, "i", group.extent);
        for load in loads {
            vectors.extend(vector(writer, load, lane));
        }
    } else {
        writer.unique("i");
        writer.unique("n");
        // All loads before the first result: nothing that is computed keeps them waiting.
        let mut lines = Vec::new();
        for load in loads {
            if let Some((name, from)) = vector_source(writer, load, lane) {
                writer.line(format!("float4 {name}[{rounds}];"));
                lines.push(format!("{name}[n] = {from};"));
                vectors.push((load, name));
            }
        }
        if !lines.is_empty() {
            open_round(writer, rounds);
            for line in lines {
                writer.line(line);
            }
            writer.close();
        }
        open_round(writer, rounds);
    }
    let which = if rounds == 1 { "" } else { "[n]" };
    writer.define(&[value], &[lane]);
    writer.line("float4 result;");
    writer.line("#pragma unroll");
    writer.open("for (int l = 0; l < 4; ++l) {");
    unpack(writer, &vectors, which);
    writer.define(&[value], &[]);
    let value = writer.value(value);
    writer.line(format!("(&result.x)[l] = {value};"));
    writer.close();
    let out = writer.buffer(kernel.out).to_owned();
    let place = writer.index(&place);
    writer.line(format!(
        "reinterpret_cast<float4*>({out})[{place}] = result;"
    ));
    if rounds > 1 {
        writer.close();
    }
    Launch::over(group.extent / rounds)
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
    writer.unique("i");
    let rounds = rounds(writer.plan, &[], group);
    if rounds == 1 {
        thread_number(writer, "i", group.extent);
    } else {
        writer.unique("n");
        open_round(writer, rounds);
    }
    let results = written_out(writer, kernel, at).join(", ");
    let out = writer.buffer(kernel.out).to_owned();
    let place = writer.index(place);
    writer.line(format!(
        "reinterpret_cast<float4*>({out})[{place}] = make_float4({results});"
    ));
    if rounds > 1 {
        writer.close();
    }
    Launch::over(group.extent / rounds)
}

/// How many groups a thread has: about 64 bytes of it should be on their way.
fn rounds(plan: &Plan, loads: &[Scalar], group: Var) -> i64 {
    let large = |load: &&Scalar| {
        matches!(plan.arena.node(**load), Node::Load { buffer, .. }
        if plan.rooms[buffer.0].shape.iter().product::<i64>() >= group.extent)
    };
    let wanted: &[i64] = match loads.iter().filter(large).count() {
        0 | 2 => &[2, 1],
        1 => &[4, 2, 1],
        _ => &[1],
    };
    // Small tensors need every thread more than every thread needs work.
    let fits = |rounds: &&i64| group.extent % (*rounds * THREADS) == 0 && group.extent >= 1 << 19;
    wanted.iter().find(fits).copied().unwrap_or(1)
}

/// A loop over the groups of a thread: a block's lie side by side.
fn open_round(writer: &mut Writer<'_>, rounds: i64) {
    let int = integer(writer.plan);
    let block = if int == "int" {
        "blockIdx.x"
    } else {
        "int64_t(blockIdx.x)"
    };
    writer.line("#pragma unroll");
    writer.open(format!("for (int n = 0; n < {rounds}; ++n) {{"));
    writer.line(format!(
        "const {int} i = ({block} * {rounds} + n) * {THREADS} + threadIdx.x;"
    ));
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
