//! Kernels whose rows are shared out among threads.

use super::kept::{Kept, keep, worth_keeping};
use super::team::Team;
use super::vectors::{unpack, vector, wide};
use super::{Launch, folded, rows_of, stored};
use crate::emit::cpu::combine;
use crate::emit::{Writer, float};
use crate::index::{Index, Var, coordinates, linear};
use crate::plan::{Rows, Strategy};
use crate::scalar::{Kind, Node, Scalar};

/// A group of a row, and an element of it.
pub(super) type Cell = (Var, Var);

/// One loop over a row, with all that it computes.
struct Loop {
    values: Vec<Scalar>,
    /// The passes of the kernel that these values go into.
    passes: Vec<usize>,
    /// Of this many elements; those of the team's length are shared out in groups.
    length: i64,
    place: Index,
}

pub(super) fn together(writer: &mut Writer<'_>, kernel: &Rows, team: Team) -> Launch {
    let count: i64 = kernel.outer.iter().product();
    let flat = writer.plan.arena.var(count);
    writer.call(flat, "row");
    team.announce(writer, count);
    for name in ["row", "n", "c", "l"] {
        writer.unique(name);
    }
    let row = coordinates(&kernel.outer, &flat.into());
    let group = writer.plan.arena.var(team.groups());
    let lane = writer.plan.arena.var(team.width);
    writer.call(group, "c");
    writer.call(lane, "l");
    let element = Index::from(group).times(team.width).plus(&lane.into());
    let place_of = |writer: &mut Writer<'_>, length: i64| {
        if length == team.length {
            element.clone()
        } else {
            Index::from(writer.plan.arena.var(length))
        }
    };

    // All values first: what several loops need is computed once.
    let mut loops: Vec<Loop> = Vec::new();
    for (number, pass) in kernel.passes.iter().enumerate() {
        let reduction = writer.plan.reductions[pass.reduction.0].clone();
        let length = reduction.length();
        let place = place_of(writer, length);
        let at = coordinates(&reduction.extents, &place);
        let value = folded(writer.plan, pass, &kernel.passes, &row, &at);
        match loops.last_mut() {
            Some(last) if length == team.length && joins(writer, kernel, last, team, value) => {
                last.values.push(value);
                last.passes.push(number);
            }
            _ => loops.push(Loop {
                values: vec![value],
                passes: vec![number],
                length,
                place,
            }),
        }
    }
    let cells: i64 = kernel.cells.iter().product();
    let place = place_of(writer, cells);
    let at = (kernel.place)(&row, &coordinates(&kernel.cells, &place));
    let last = Loop {
        values: vec![stored(writer.plan, kernel, &at)],
        passes: Vec::new(),
        length: cells,
        place,
    };
    let of_the_row: Vec<&[Scalar]> = loops
        .iter()
        .chain([&last])
        .filter(|one| one.length == team.length)
        .map(|one| one.values.as_slice())
        .collect();
    let chosen = worth_keeping(writer, &of_the_row, (group, lane), team);
    let kept = keep(writer, chosen, (group, lane), team);

    for one in &loops {
        reduce(writer, kernel, one, &kept, lane, team);
    }
    let target = linear(&kernel.shape, &at);
    store(writer, kernel, &last, &target, &kept, (lane, team));
    team.launch(&rows_of(writer.plan, kernel))
}

/// Whether a value can be computed in the same loop: it needs nothing that the loop finds.
fn joins(writer: &Writer<'_>, kernel: &Rows, into: &Loop, team: Team, value: Scalar) -> bool {
    let arena = &writer.plan.arena;
    let found = |one: &Scalar| match arena.node(*one) {
        Node::Finished(reduction) => into
            .passes
            .iter()
            .any(|pass| kernel.passes[*pass].reduction == *reduction),
        _ => false,
    };
    into.length == team.length && !arena.ordered(&[value]).iter().any(found)
}

/// A loop over the row, and what its threads have found put together.
fn reduce(writer: &mut Writer<'_>, kernel: &Rows, one: &Loop, kept: &Kept, lane: Var, team: Team) {
    let mut found = Vec::new();
    for pass in &one.passes {
        let number = kernel.passes[*pass].reduction;
        let reduction = writer.plan.reductions[number.0].clone();
        let name = writer.unique(reduction.name);
        if reduction.kind == Kind::Int {
            writer.line(format!("Best {name} = {{-INFINITY, 0}};"));
        } else {
            let start = float(reduction.fold.neutral());
            writer.line(format!("float {name} = {start};"));
        }
        found.push((number, reduction, name));
    }
    over_row(writer, one, kept, lane, team, |writer, values| {
        for ((_, reduction, name), value) in found.iter().zip(values) {
            if reduction.kind == Kind::Int {
                let at = writer.index(&one.place);
                writer.line(format!("take({name}, {value}, {at});"));
            } else {
                writer.line(combine(reduction.fold, name, value));
            }
        }
    });
    for (number, reduction, name) in found {
        team.combine(writer, reduction.fold, &name);
        let finished = writer.plan.arena.finished(number, reduction.kind);
        let text = if reduction.kind == Kind::Int {
            format!("{name}.place")
        } else {
            name
        };
        writer.set(finished, text);
    }
}

fn store(
    writer: &mut Writer<'_>,
    kernel: &Rows,
    last: &Loop,
    target: &Index,
    kept: &Kept,
    (lane, team): (Var, Team),
) {
    let out = writer.buffer(kernel.out).to_owned();
    let value = last.values[0];
    if last.length == 1 {
        if let Some(member) = team.member() {
            writer.open(format!("if ({member} == 0) {{"));
        }
        writer.define(&[value], &[]);
        let value = writer.value(value);
        let place = writer.index(target);
        writer.line(format!("{out}[{place}] = {value};"));
        if team.member().is_some() {
            writer.close();
        }
        return;
    }
    let by_four = team.width == 4
        && last.length == team.length
        && target.stride(lane) == Some(1)
        && target.aligned(4, lane)
        && writer.plan.rooms[kernel.out.0].kind == Kind::Float;
    if !by_four {
        over_row(writer, last, kept, lane, team, |writer, values| {
            let place = writer.index(target);
            writer.line(format!("{out}[{place}] = {};", values[0]));
        });
        return;
    }
    let vars: Vec<Var> = last.place.vars().into_iter().collect();
    writer.define(&[value], &vars);
    open_row(writer, team, kept.is_empty());
    writer.line("float4 result;");
    lanes_of(writer, &[value], kept, lane, team, |writer| {
        let value = writer.value(value);
        writer.line(format!("(&result.x)[l] = {value};"));
    });
    let first = target.substituted(lane, &Index::default()).divided(4);
    let first = writer.index(&first);
    writer.line(format!(
        "reinterpret_cast<float4*>({out})[{first}] = result;"
    ));
    close_row(writer, team, kept.is_empty());
}

/// A loop over the groups of a row that this thread has: a rolled one where nothing is kept.
pub(super) fn open_row(writer: &mut Writer<'_>, team: Team, rolled: bool) {
    let (threads, groups) = (team.threads, team.groups());
    if rolled {
        if writer.plan.strategy == Strategy::Tuned {
            writer.line(match (team.member(), groups, team.width) {
                (None, ..=64, _) => "#pragma unroll",
                (_, _, 4) => "#pragma unroll 4",
                _ => "#pragma unroll 8",
            });
        }
        let first = team.member().unwrap_or("0");
        let groups = writer.count(groups);
        writer.open(format!(
            "for (int c = {first}; c < {groups}; c += {threads}) {{"
        ));
        return;
    }
    writer.line("#pragma unroll");
    writer.open(format!("for (int n = 0; n < {}; ++n) {{", team.items()));
    match team.member() {
        Some(member) => writer.line(format!("const int c = {member} + n * {threads};")),
        None => writer.line("const int c = n;"),
    }
    if groups % threads != 0 {
        let groups = writer.count(groups);
        writer.open(format!("if (c < {groups}) {{"));
    }
}

pub(super) fn close_row(writer: &mut Writer<'_>, team: Team, rolled: bool) {
    if !rolled && team.groups() % team.threads != 0 {
        writer.close();
    }
    writer.close();
}

/// Writes a loop over a row; `inside` gets the expressions of each element.
fn over_row(
    writer: &mut Writer<'_>,
    one: &Loop,
    kept: &Kept,
    lane: Var,
    team: Team,
    inside: impl FnOnce(&mut Writer<'_>, &[String]),
) {
    let vars: Vec<Var> = one.place.vars().into_iter().collect();
    writer.define(&one.values, &vars);
    let scope = writer.scope();
    let expressed = |writer: &mut Writer<'_>| {
        let texts = one.values.iter().map(|value| writer.operand(*value));
        texts.collect::<Vec<String>>()
    };
    if one.length == team.length {
        open_row(writer, team, kept.is_empty());
        lanes_of(writer, &one.values, kept, lane, team, |writer| {
            let values = expressed(writer);
            inside(writer, &values);
        });
        close_row(writer, team, kept.is_empty());
    } else {
        let name = writer.unique("k");
        for var in &vars {
            writer.call(*var, &name);
        }
        let length = writer.count(one.length);
        writer.open(format!(
            "for (int {name} = {}; {name} < {length}; {name} += {}) {{",
            team.member().unwrap_or("0"),
            team.threads
        ));
        writer.define(&one.values, &[]);
        let values = expressed(writer);
        inside(writer, &values);
        writer.close();
    }
    writer.leave(scope);
}

/// The elements of a group, with its wide loads before them.
pub(super) fn lanes_of(
    writer: &mut Writer<'_>,
    values: &[Scalar],
    kept: &Kept,
    lane: Var,
    team: Team,
    inside: impl FnOnce(&mut Writer<'_>),
) {
    if team.width == 1 {
        for (value, name) in kept {
            writer.set(*value, format!("{name}[n]"));
        }
        writer.define(values, &[]);
        inside(writer);
        return;
    }
    let is_kept = |one: Scalar| kept.iter().any(|(known, _)| *known == one);
    let mut vectors = Vec::new();
    for load in wide(writer.plan, values, lane, &is_kept) {
        vectors.extend(vector(writer, load, lane));
    }
    // What is kept belongs to its element: nothing of it may be taken out of the loop below.
    unpack(writer, kept, "[n]");
    writer.define(values, &[lane]);
    writer.line("#pragma unroll");
    writer.open("for (int l = 0; l < 4; ++l) {");
    unpack(writer, &vectors, "");
    writer.define(values, &[]);
    inside(writer);
    writer.close();
}
