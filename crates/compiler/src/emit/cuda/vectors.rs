//! Loads of four neighbours at once.

use crate::emit::KernelWriter;
use crate::index::{Index, Var};
use crate::plan::Plan;
use crate::scalar::{BoundsCheck, Buffer, Node, Scalar};

/// Loads of four neighbours at once: their vector's first element is `lane` zero. Not those that only go into what is
/// `known`.
pub(super) fn wide(
    plan: &Plan,
    values: &[Scalar],
    lane: Var,
    known: &dyn Fn(Scalar) -> bool,
) -> Vec<Scalar> {
    let arena = &plan.arena;
    let ordered = arena.ordered_until(values, known);
    let is_wide = |one: &Scalar| match arena.node(*one) {
        Node::Load {
            buffer,
            index,
            looked_up,
            guard,
        } => {
            looked_up.is_empty()
                && guard.iter().all(|within| is_shared(within, lane))
                && plan.buffers[buffer.0].is_float_memory()
                && index.stride(lane) == Some(1)
                && index.aligned(4, lane)
        }
        _ => false,
    };
    ordered.into_iter().filter(is_wide).collect()
}

/// Whether a condition holds for all four or for none.
fn is_shared(within: &BoundsCheck, lane: Var) -> bool {
    let BoundsCheck { index, low, high } = within;
    let by_fours = index.stride(lane) == Some(1) && index.aligned(4, lane);
    !index.depends_on(lane) || by_fours && low % 4 == 0 && high % 4 == 0
}

/// Declares a vector and loads it.
pub(super) fn vector(
    writer: &mut KernelWriter<'_>,
    load: Scalar,
    lane: Var,
) -> Option<(Scalar, String)> {
    let (name, from) = vector_source(writer, load, lane)?;
    writer.line(format!("const float4 {name} = {from};"));
    Some((load, name))
}

/// A name for a vector, and where it is loaded from.
pub(super) fn vector_source(
    writer: &mut KernelWriter<'_>,
    load: Scalar,
    lane: Var,
) -> Option<(String, String)> {
    let Node::Load {
        buffer,
        index,
        guard,
        ..
    } = writer.plan.arena.node(load).clone()
    else {
        return None;
    };
    let first = |index: &Index| index.substituted(lane, &Index::default());
    let guard: Vec<BoundsCheck> = guard
        .iter()
        .filter_map(|within| BoundsCheck::new(first(&within.index), within.low, within.high))
        .collect();
    Some(source(writer, buffer, &first(&index).divided(4), &guard))
}

/// The same for a vector of a buffer, which is nothing where a condition does not hold.
pub(super) fn source(
    writer: &mut KernelWriter<'_>,
    buffer: Buffer,
    place: &Index,
    guard: &[BoundsCheck],
) -> (String, String) {
    if !writer.read.contains(&buffer) {
        writer.read.push(buffer);
    }
    let from = writer.buffer(buffer).to_owned();
    let name = writer.unique(&format!("{from}_four"));
    let place = writer.index(place);
    let mut source = format!("reinterpret_cast<const float4*>({from})[{place}]");
    if !guard.is_empty() {
        let guard = writer.guard(guard);
        source = format!("{guard} ? {source} : make_float4(0.0f, 0.0f, 0.0f, 0.0f)");
    }
    (name, source)
}

/// The elements of vectors at lane `l`; `at` names which of several.
pub(super) fn unpack(writer: &mut KernelWriter<'_>, vectors: &[(Scalar, String)], at: &str) {
    for (load, name) in vectors {
        writer.set(*load, format!("(&{name}{at}.x)[l]"));
    }
}
