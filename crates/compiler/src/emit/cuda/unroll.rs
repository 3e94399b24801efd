//! Four neighbouring results, unrolled, for windows and strides.
//!
//! Where a result reads other indices than its own, a loop over four results hides the loads that they share. Unrolled, equal
//! loads are one load, bounds checks that always hold disappear, and the elements of one vector are loaded together.

use std::collections::{BTreeMap, BTreeSet};

use super::vectors::source;
use crate::emit::KernelWriter;
use crate::emit::row_kernel::stored_value;
use crate::index::{Index, Var};
use crate::plan::{Plan, RowKernel};
use crate::scalar::{BoundsCheck, Buffer, Node, Scalar};

/// Whether the results of a group read the same elements as their neighbours, or adjacent ones.
pub(super) fn overlap(plan: &Plan, value: Scalar, lane: Var, wide: &[Scalar]) -> bool {
    let arena = &plan.arena;
    let loads = arena.ordered(&[value]).into_iter();
    let mut others = loads.filter(|one| !wide.contains(one));
    others.any(|one| match arena.node(one) {
        Node::Load {
            index, looked_up, ..
        } => looked_up.is_empty() && index.depends_on(lane),
        _ => false,
    })
}

/// For each vector its elements: their position in it, and their loads.
type Vectors = BTreeMap<(Buffer, Index, Vec<BoundsCheck>), Vec<(i64, Scalar)>>;

/// Declares all operands of four neighbours from `place` on, and returns their expressions.
pub(super) fn unroll(
    writer: &mut KernelWriter<'_>,
    kernel: &RowKernel,
    place: &dyn Fn(i64) -> Vec<Index>,
) -> Vec<String> {
    let values: Vec<Scalar> = (0..4)
        .map(|lane| stored_value(writer.plan, kernel, &place(lane)))
        .collect();
    for ((buffer, first, guard), parts) in vectors(writer.plan, &values) {
        let distinct: BTreeSet<i64> = parts.iter().map(|(part, _)| *part).collect();
        if distinct.len() < 2 {
            continue;
        }
        let (name, from) = source(writer, buffer, &first, &guard);
        writer.line(format!("const float4 {name} = {from};"));
        for (part, load) in parts {
            let letter = ["x", "y", "z", "w"][part as usize];
            writer.set(load, format!("{name}.{letter}"));
        }
    }
    // Loads before anything is computed, so that they are under way together.
    let arena = &writer.plan.arena;
    let is_load = |one: &Scalar| matches!(arena.node(*one), Node::Load { looked_up, .. } if looked_up.is_empty());
    let loads = arena.ordered(&values).into_iter().filter(is_load);
    let loads: Vec<Scalar> = loads.collect();
    writer.define(&loads, &[]);
    writer.define(&values, &[]);
    values.into_iter().map(|one| writer.value(one)).collect()
}

/// Loads by the vector that they are part of.
fn vectors(plan: &Plan, values: &[Scalar]) -> Vectors {
    let mut found = Vectors::new();
    for one in plan.arena.ordered(values) {
        if let Node::Load {
            buffer,
            index,
            looked_up,
            guard,
        } = plan.arena.node(one)
            && looked_up.is_empty()
            && plan.buffers[buffer.0].is_float_memory()
            && plan.buffers[buffer.0].shape.iter().product::<i64>() % 4 == 0
            && let Some((first, part)) = index.split_by_four()
        {
            let of = found.entry((*buffer, first, guard.clone())).or_default();
            of.push((part, one));
        }
    }
    found
}
