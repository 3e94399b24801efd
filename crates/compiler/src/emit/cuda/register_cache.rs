//! Values that several loops over a row need: they are computed once and cached in registers.

use std::collections::{HashMap, HashSet};

use super::rows::{RowElement, close_row, open_row};
use super::schedule::RowSchedule;
use super::vectors::{unpack, vector, vector_source, wide};
use crate::emit::KernelWriter;
use crate::plan::Strategy;
use crate::scalar::{Arena, Node, Scalar, ScalarType};

/// The number of values that a thread may cache in registers.
const MAX_CACHED_VALUES: i64 = 64;

/// Values, and the arrays that hold them.
pub(super) type CachedValues = Vec<(Scalar, String)>;

/// The largest values that more than one loop computes and that need no reduction, as far as registers suffice.
pub(super) fn choose_cached_values(
    writer: &mut KernelWriter<'_>,
    loops: &[&[Scalar]],
    (group, lane): RowElement,
    schedule: RowSchedule,
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
    // The variable that tells the elements of a row apart.
    let element = if schedule.width == 4 { lane } else { group };
    let is_cached = |one: Scalar| {
        times[&one] > 1
            && arena.kind(one) == ScalarType::Float
            && arena.depends_on(one, &[element])
            && !needs_reduction(arena, one)
    };
    // A large block has half the registers for each of its threads.
    let budget = if schedule.block() > 512 {
        MAX_CACHED_VALUES / 2
    } else {
        MAX_CACHED_VALUES
    };
    let mut budget = budget / (schedule.items() * schedule.width);
    let mut chosen: Vec<Scalar> = Vec::new();
    // A value that many others use is looked at once: along all ways to it there may be more than can be counted.
    let mut seen: HashSet<Scalar> = HashSet::new();
    for values in loops {
        let mut open: Vec<Scalar> = values.to_vec();
        while let Some(one) = open.pop() {
            if !seen.insert(one) {
                continue;
            }
            if budget > 0 && is_cached(one) {
                budget -= 1;
                chosen.push(one);
            } else {
                open.extend(arena.operands(one));
            }
        }
    }
    // What lies in a cache may be read again sooner than registers are had.
    if !chosen.is_empty() && !writer.plan.knobs.whether("rows in registers", true) {
        chosen.clear();
    }
    chosen
}

fn needs_reduction(arena: &Arena, value: Scalar) -> bool {
    let mut ordered = arena.ordered(&[value]).into_iter();
    ordered.any(|one| matches!(arena.node(one), Node::Finished(_)))
}

/// Declares the arrays and fills them.
pub(super) fn cache_in_registers(
    writer: &mut KernelWriter<'_>,
    chosen: Vec<Scalar>,
    (group, lane): RowElement,
    schedule: RowSchedule,
) -> CachedValues {
    if chosen.is_empty() {
        return Vec::new();
    }
    let by_four = schedule.width == 4;
    let (mut cached, mut computed, mut sources): (CachedValues, CachedValues, Vec<String>) =
        Default::default();
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
            cached.push((one, name.clone()));
            name
        } else {
            let known = writer.plan.arena.named(one);
            let name = writer.unique(&known.map_or("kept".to_owned(), |it| format!("{it}_kept")));
            computed.push((one, name.clone()));
            name
        };
        let kind = if by_four { "float4" } else { "float" };
        writer.line(format!("{kind} {name}[{}];", schedule.items()));
    }
    let values: Vec<Scalar> = computed.iter().map(|(one, _)| *one).collect();
    writer.define(&values, &[group, lane]);
    let scope = writer.scope();
    open_row(writer, schedule, false);
    for source in sources {
        writer.line(source);
    }
    if !computed.is_empty() && by_four {
        let is_cached = |one: Scalar| cached.iter().any(|(known, _)| *known == one);
        let mut vectors = Vec::new();
        for load in wide(writer.plan, &values, lane, &is_cached) {
            vectors.extend(vector(writer, load, lane));
        }
        unpack(writer, &cached, "[n]");
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
    close_row(writer, schedule, false);
    writer.exit_scope(scope);
    cached.extend(computed);
    cached
}
