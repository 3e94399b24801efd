//! Rows that threads share.

use super::vectors::{unpack, vector, vector_source, wide};
use super::{Launch, folded, integer, stored};
use crate::teacher::emit::cpu::combine;
use crate::teacher::emit::loops::contiguous;
use crate::teacher::emit::{Helper, Writer, float};
use crate::teacher::index::{Index, Var, coordinates, linear};
use crate::teacher::plan::{Fold, Rows, Strategy};
use crate::teacher::scalar::{Kind, Node, Scalar};

/// Values of a row that a thread may keep in registers.
const KEPT: i64 = 64;

/// How threads share a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct Team {
    /// Elements of a row.
    length: i64,
    /// Elements that are loaded at once.
    width: i64,
    threads: i64,
    /// Rows of a block; more than one where a warp has a row.
    rows: i64,
}

impl Team {
    fn groups(self) -> i64 {
        self.length / self.width
    }

    fn items(self) -> i64 {
        (self.groups() + self.threads - 1) / self.threads
    }
}

/// Whether threads should share rows: neighbouring elements of one lie side by side, and there are many of them.
pub(super) fn shared_out(writer: &mut Writer<'_>, kernel: &Rows) -> Option<Team> {
    let plan = &mut *writer.plan;
    if plan.strategy == Strategy::Plain {
        return None;
    }
    let count: i64 = kernel.outer.iter().product();
    let flat = plan.arena.var(count);
    let row = coordinates(&kernel.outer, &flat.into());
    let length = plan.reductions[kernel.passes.first()?.reduction.0].length();
    if length < 32 {
        return None;
    }
    let (mut along, mut loads) = (0, 0);
    for pass in &kernel.passes {
        let reduction = plan.reductions[pass.reduction.0].clone();
        let place = plan.arena.var(reduction.length());
        let at = coordinates(&reduction.extents, &place.into());
        let value = folded(plan, pass, &kernel.passes, &row, &at);
        along += contiguous(plan, &[value], place);
        loads += contiguous(plan, &[value], flat);
    }
    let few = count < 4096;
    if along == 0 && !(few && loads == 0) || loads > along {
        return None;
    }
    let width = if plan.strategy == Strategy::Tuned && length % 4 == 0 {
        4
    } else {
        1
    };
    let groups = length / width;
    let threads = match groups {
        0..=256 => 32,
        257..=1024 => 128,
        1025..=4096 => 256,
        _ => 512,
    };
    Some(Team {
        length,
        width,
        threads,
        rows: if threads == 32 { 8 } else { 1 },
    })
}

struct Phase {
    value: Scalar,
    /// Of this many elements; those of the team's length share its loop.
    length: i64,
}

pub(super) fn together(writer: &mut Writer<'_>, kernel: &Rows, team: Team) -> Launch {
    let int = integer(writer.plan);
    let count: i64 = kernel.outer.iter().product();
    let flat = writer.plan.arena.var(count);
    writer.call(flat, "row");
    if team.rows > 1 {
        writer.line(format!(
            "const {int} row = blockIdx.x * {} + threadIdx.y;",
            team.rows
        ));
        if count % team.rows != 0 {
            writer.line(format!("if (row >= {count}) return;"));
        }
    } else {
        writer.line(format!("const {int} row = blockIdx.x;"));
    }
    for name in ["row", "n", "c", "l"] {
        writer.unique(name);
    }
    let row = coordinates(&kernel.outer, &flat.into());
    let group = writer.plan.arena.var(team.groups());
    let lane = writer.plan.arena.var(team.width);
    writer.call(group, "c");
    writer.call(lane, "l");
    let flat_cell = Index::from(group).times(team.width).plus(&lane.into());

    // All values first: loads that several loops need are made once.
    let mut phases = Vec::new();
    for pass in &kernel.passes {
        let reduction = writer.plan.reductions[pass.reduction.0].clone();
        let length = reduction.length();
        let place = if length == team.length {
            flat_cell.clone()
        } else {
            Index::from(writer.plan.arena.var(length))
        };
        let at = coordinates(&reduction.extents, &place);
        let value = folded(writer.plan, pass, &kernel.passes, &row, &at);
        phases.push((Phase { value, length }, place));
    }
    let cells: i64 = kernel.cells.iter().product();
    let place = if cells == team.length {
        flat_cell.clone()
    } else {
        Index::from(writer.plan.arena.var(cells))
    };
    let at = (kernel.place)(&row, &coordinates(&kernel.cells, &place));
    let value = stored(writer.plan, kernel, &at);
    let last = Phase {
        value,
        length: cells,
    };
    let kept = kept(writer, &phases, &last, (group, lane), team);
    let kept = keep(writer, kept, lane, team);

    for ((phase, place), pass) in phases.iter().zip(&kernel.passes) {
        let reduction = writer.plan.reductions[pass.reduction.0].clone();
        let name = writer.unique(reduction.name);
        let is_place = reduction.fold == Fold::ArgMax;
        if is_place {
            writer.line(format!("Best {name} = {{-INFINITY, 0}};"));
        } else {
            writer.line(format!(
                "float {name} = {};",
                float(reduction.fold.neutral())
            ));
        }
        let linear_place = place.clone();
        over_row(writer, phase, place, &kept, lane, team, |writer, value| {
            if is_place {
                let at = writer.index(&linear_place);
                writer.line(format!("take({name}, {value}, {at});"));
            } else {
                writer.line(combine(reduction.fold, &name, value));
            }
        });
        combine_threads(writer, reduction.fold, &name, team);
        let finished = writer.plan.arena.finished(pass.reduction, reduction.kind);
        let text = if is_place {
            format!("{name}.place")
        } else {
            name
        };
        writer.set(finished, text);
    }
    let out = writer.buffer(kernel.out).to_owned();
    if cells == 1 {
        writer.open("if (threadIdx.x == 0) {");
        writer.define(&[last.value], &[]);
        let value = writer.value(last.value);
        let place = writer.index(&linear(&kernel.shape, &at));
        writer.line(format!("{out}[{place}] = {value};"));
        writer.close();
    } else {
        let target = linear(&kernel.shape, &at);
        let wide_store = team.width == 4
            && cells == team.length
            && target.stride(lane) == Some(1)
            && target.aligned(4, lane)
            && writer.plan.rooms[kernel.out.0].kind == Kind::Float;
        store_row(
            writer,
            &last,
            &place,
            &kept,
            (lane, team),
            &out,
            &target,
            wide_store,
        );
    }
    let blocks = (count + team.rows - 1) / team.rows;
    let threads = if team.rows > 1 {
        format!("dim3(32, {})", team.rows)
    } else {
        team.threads.to_string()
    };
    Launch { blocks, threads }
}

/// Loads that more than one loop over the row makes, if they all fit into registers.
fn kept(
    writer: &Writer<'_>,
    phases: &[(Phase, Index)],
    last: &Phase,
    (group, lane): (Var, Var),
    team: Team,
) -> Vec<Scalar> {
    let plan = &*writer.plan;
    if plan.strategy != Strategy::Tuned {
        return Vec::new();
    }
    let mut times: Vec<(Scalar, usize)> = Vec::new();
    let of_the_row = phases.iter().map(|(phase, _)| phase).chain([last]);
    for phase in of_the_row.filter(|phase| phase.length == team.length) {
        let loads: Vec<Scalar> = if team.width == 4 {
            wide(plan, &[phase.value], lane)
        } else {
            let ordered = plan.arena.ordered(&[phase.value]);
            let plain = |one: &Scalar| {
                matches!(plan.arena.node(*one), Node::Load { looked_up, guard, index, buffer }
                    if looked_up.is_empty() && guard.is_empty() && plan.rooms[buffer.0].kind == Kind::Float
                        && index.depends_on(group))
            };
            ordered.into_iter().filter(plain).collect()
        };
        for load in loads {
            match times.iter_mut().find(|(known, _)| *known == load) {
                Some((_, count)) => *count += 1,
                None => times.push((load, 1)),
            }
        }
    }
    let shared = times.into_iter().filter(|(_, count)| *count > 1);
    let mut room = KEPT / (team.items() * team.width);
    let mut kept = Vec::new();
    for (load, _) in shared {
        if room > 0 {
            room -= 1;
            kept.push(load);
        }
    }
    kept
}

/// A name and how an element of it is written.
type Kept = Vec<(Scalar, String)>;

fn keep(writer: &mut Writer<'_>, loads: Vec<Scalar>, lane: Var, team: Team) -> Kept {
    let mut kept = Vec::new();
    let mut lines = Vec::new();
    for load in loads {
        if team.width == 4 {
            let Some((name, from)) = vector_source(writer, load, lane) else {
                continue;
            };
            writer.line(format!("float4 {name}[{}];", team.items()));
            lines.push(format!("{name}[n] = {from};"));
            kept.push((load, name));
        } else {
            let from = writer.value(load);
            let name = writer.unique("kept");
            writer.line(format!("float {name}[{}];", team.items()));
            lines.push(format!("{name}[n] = {from};"));
            kept.push((load, name));
        }
    }
    if !kept.is_empty() {
        open_row(writer, team, Unrolled::Yes);
        for line in lines {
            writer.line(line);
        }
        close_row(writer, team, Unrolled::Yes);
    }
    kept
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unrolled {
    Yes,
    No,
}

/// A loop over the groups of a row that this thread has.
fn open_row(writer: &mut Writer<'_>, team: Team, unrolled: Unrolled) {
    let (threads, groups) = (team.threads, team.groups());
    if unrolled == Unrolled::No {
        writer.open(format!(
            "for (int c = threadIdx.x; c < {groups}; c += {threads}) {{"
        ));
        return;
    }
    writer.line("#pragma unroll");
    writer.open(format!("for (int n = 0; n < {}; ++n) {{", team.items()));
    writer.line(format!("const int c = threadIdx.x + n * {threads};"));
    if groups % threads != 0 {
        writer.open(format!("if (c < {groups}) {{"));
    }
}

fn close_row(writer: &mut Writer<'_>, team: Team, unrolled: Unrolled) {
    if unrolled == Unrolled::Yes && team.groups() % team.threads != 0 {
        writer.close();
    }
    writer.close();
}

/// Writes a loop over a row; `inside` gets the expression of each element.
fn over_row(
    writer: &mut Writer<'_>,
    phase: &Phase,
    place: &Index,
    kept: &Kept,
    lane: Var,
    team: Team,
    inside: impl FnOnce(&mut Writer<'_>, &str),
) {
    let value = phase.value;
    let vars: Vec<Var> = place.vars().into_iter().collect();
    writer.define(&[value], &vars);
    let scope = writer.scope();
    if phase.length != team.length {
        other_length(writer, phase, place, team, |writer| {
            let value = writer.operand(value);
            inside(writer, &value);
        });
        writer.leave(scope);
        return;
    }
    let unrolled = if kept.is_empty() {
        Unrolled::No
    } else {
        Unrolled::Yes
    };
    open_row(writer, team, unrolled);
    lanes_of(writer, value, kept, lane, team, |writer| {
        let value = writer.operand(value);
        inside(writer, &value);
    });
    close_row(writer, team, unrolled);
    writer.leave(scope);
}

/// The elements of a group, with its wide loads before them.
fn lanes_of(
    writer: &mut Writer<'_>,
    value: Scalar,
    kept: &Kept,
    lane: Var,
    team: Team,
    inside: impl FnOnce(&mut Writer<'_>),
) {
    if team.width == 1 {
        for (load, name) in kept {
            writer.set(*load, format!("{name}[n]"));
        }
        writer.define(&[value], &[]);
        inside(writer);
        return;
    }
    let mut vectors = Vec::new();
    for load in wide(writer.plan, &[value], lane) {
        if kept.iter().all(|(known, _)| *known != load) {
            vectors.extend(vector(writer, load, lane));
        }
    }
    writer.define(&[value], &[lane]);
    writer.line("#pragma unroll");
    writer.open("for (int l = 0; l < 4; ++l) {");
    unpack(writer, kept, "[n]");
    unpack(writer, &vectors, "");
    writer.define(&[value], &[]);
    inside(writer);
    writer.close();
}

fn other_length(
    writer: &mut Writer<'_>,
    phase: &Phase,
    place: &Index,
    team: Team,
    inside: impl FnOnce(&mut Writer<'_>),
) {
    let name = writer.unique("k");
    for var in place.vars() {
        writer.call(var, &name);
    }
    writer.open(format!(
        "for (int {name} = threadIdx.x; {name} < {}; {name} += {}) {{",
        phase.length, team.threads
    ));
    writer.define(&[phase.value], &[]);
    inside(writer);
    writer.close();
}

#[expect(clippy::too_many_arguments, reason = "the parts of one loop")]
fn store_row(
    writer: &mut Writer<'_>,
    last: &Phase,
    place: &Index,
    kept: &Kept,
    (lane, team): (Var, Team),
    out: &str,
    target: &Index,
    wide_store: bool,
) {
    if !wide_store {
        let target = target.clone();
        let out = out.to_owned();
        over_row(writer, last, place, kept, lane, team, |writer, value| {
            let place = writer.index(&target);
            writer.line(format!("{out}[{place}] = {value};"));
        });
        return;
    }
    let value = last.value;
    let vars: Vec<Var> = place.vars().into_iter().collect();
    writer.define(&[value], &vars);
    let unrolled = if kept.is_empty() {
        Unrolled::No
    } else {
        Unrolled::Yes
    };
    open_row(writer, team, unrolled);
    writer.line("float4 result;");
    lanes_of(writer, value, kept, lane, team, |writer| {
        let value = writer.value(value);
        writer.line(format!("(&result.x)[l] = {value};"));
    });
    let first = target.substituted(lane, &Index::default()).divided(4);
    let first = writer.index(&first);
    writer.line(format!(
        "reinterpret_cast<float4*>({out})[{first}] = result;"
    ));
    close_row(writer, team, unrolled);
}

/// What the threads of a row have found, put together for all of them.
fn combine_threads(writer: &mut Writer<'_>, fold: Fold, name: &str, team: Team) {
    let (warp, block, word) = match fold {
        Fold::Sum => (Helper::WarpSum, Helper::BlockSum, "sum"),
        Fold::Product => (Helper::WarpProduct, Helper::BlockProduct, "product"),
        Fold::Max => (Helper::WarpMax, Helper::BlockMax, "max"),
        Fold::Min => (Helper::WarpMin, Helper::BlockMin, "min"),
        Fold::ArgMax => (Helper::WarpArgMax, Helper::BlockArgMax, "best"),
    };
    writer.helpers.insert(warp);
    if team.rows > 1 {
        writer.line(format!("{name} = warp_{word}({name});"));
    } else {
        writer.helpers.insert(block);
        writer.line(format!("{name} = block_{word}<{}>({name});", team.threads));
    }
}
