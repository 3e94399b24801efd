//! What several loops over a row need: computed once and kept in registers.

use std::collections::HashMap;

use super::rows::{Cell, close_row, open_row};
use super::team::Team;
use super::vectors::{unpack, vector, vector_source, wide};
use crate::emit::Writer;
use crate::plan::Strategy;
use crate::scalar::{Arena, Kind, Node, Scalar};

/// Values of a row that a thread may keep in registers.
const ROOM: i64 = 64;

/// Values, and the arrays that hold them.
pub(super) type Kept = Vec<(Scalar, String)>;

/// The largest values that more than one loop computes and that no reduction goes into, as far as there is room.
pub(super) fn worth_keeping(
    writer: &Writer<'_>,
    loops: &[&[Scalar]],
    (group, lane): Cell,
    team: Team,
) -> Vec<Scalar> {
    let arena = &writer.plan.arena;
    if writer.plan.strategy != Strategy::Tuned {
        return Vec::new();
    }
    let mut times: HashMap<Scalar, usize> = HashMap::new();
    for values in loops {
        for one in arena.ordered(values) {
            *times.entry(one).or_default() += 1;
        }
    }
    // A value of its own for every element.
    let element = if team.width == 4 { lane } else { group };
    let is_kept = |one: Scalar| {
        times[&one] > 1
            && arena.kind(one) == Kind::Float
            && arena.depends_on(one, &[element])
            && !needs_reduction(arena, one)
    };
    // A large block has half the registers for each of its threads.
    let room = if team.block() > 512 { ROOM / 2 } else { ROOM };
    let mut room = room / (team.items() * team.width);
    let mut chosen: Vec<Scalar> = Vec::new();
    for values in loops {
        let mut open: Vec<Scalar> = values.to_vec();
        while let Some(one) = open.pop() {
            if chosen.contains(&one) {
                continue;
            }
            if room > 0 && is_kept(one) {
                room -= 1;
                chosen.push(one);
            } else {
                open.extend(arena.operands(one));
            }
        }
    }
    chosen
}

fn needs_reduction(arena: &Arena, value: Scalar) -> bool {
    let mut ordered = arena.ordered(&[value]).into_iter();
    ordered.any(|one| matches!(arena.node(one), Node::Finished(_)))
}

/// Declares the arrays and fills them.
pub(super) fn keep(
    writer: &mut Writer<'_>,
    chosen: Vec<Scalar>,
    (group, lane): Cell,
    team: Team,
) -> Kept {
    if chosen.is_empty() {
        return Vec::new();
    }
    let by_four = team.width == 4;
    let (mut kept, mut computed, mut sources): (Kept, Kept, Vec<String>) = Default::default();
    let loads = if by_four {
        wide(writer.plan, &chosen, lane, &|_| false)
    } else {
        Vec::new()
    };
    for one in chosen {
        let source = loads
            .contains(&one)
            .then(|| vector_source(writer, one, lane))
            .flatten();
        let name = if let Some((name, source)) = source {
            sources.push(format!("{name}[n] = {source};"));
            kept.push((one, name.clone()));
            name
        } else {
            let known = writer.plan.arena.named(one);
            let name = writer.unique(&known.map_or("kept".to_owned(), |it| format!("{it}_kept")));
            computed.push((one, name.clone()));
            name
        };
        let kind = if by_four { "float4" } else { "float" };
        writer.line(format!("{kind} {name}[{}];", team.items()));
    }
    let values: Vec<Scalar> = computed.iter().map(|(one, _)| *one).collect();
    writer.define(&values, &[group, lane]);
    let scope = writer.scope();
    open_row(writer, team, false);
    for source in sources {
        writer.line(source);
    }
    if !computed.is_empty() && by_four {
        let is_kept = |one: Scalar| kept.iter().any(|(known, _)| *known == one);
        let mut vectors = Vec::new();
        for load in wide(writer.plan, &values, lane, &is_kept) {
            vectors.extend(vector(writer, load, lane));
        }
        unpack(writer, &kept, "[n]");
        writer.define(&values, &[lane]);
        writer.line("#pragma unroll");
        writer.open("for (int l = 0; l < 4; ++l) {");
        unpack(writer, &vectors, "");
        writer.define(&values, &[]);
        for (one, name) in &computed {
            let value = writer.value(*one);
            writer.line(format!("(&{name}[n].x)[l] = {value};"));
        }
        writer.close();
    } else if !computed.is_empty() {
        writer.define(&values, &[]);
        for (one, name) in &computed {
            let value = writer.value(*one);
            writer.line(format!("{name}[n] = {value};"));
        }
    }
    close_row(writer, team, false);
    writer.leave(scope);
    kept.extend(computed);
    kept
}
