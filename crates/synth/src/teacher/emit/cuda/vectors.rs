//! Loads of four neighbours at once.

use crate::teacher::emit::Writer;
use crate::teacher::index::{Index, Var};
use crate::teacher::plan::Plan;
use crate::teacher::scalar::{Kind, Node, Scalar};

/// Loads of four neighbours at once: their vector's first element is `lane` zero.
pub(super) fn wide(plan: &Plan, values: &[Scalar], lane: Var) -> Vec<Scalar> {
    let arena = &plan.arena;
    let ordered = arena.ordered(values);
    let is_wide = |one: &Scalar| match arena.node(*one) {
        Node::Load {
            buffer,
            index,
            looked_up,
            guard,
        } => {
            looked_up.is_empty()
                && guard.is_empty()
                && plan.rooms[buffer.0].kind == Kind::Float
                && index.stride(lane) == Some(1)
                && index.aligned(4, lane)
        }
        _ => false,
    };
    ordered.into_iter().filter(is_wide).collect()
}

/// A quarter of a wide load's index.
fn quarter(plan: &Plan, load: Scalar, lane: Var) -> Option<(usize, Index)> {
    match plan.arena.node(load) {
        Node::Load { buffer, index, .. } => {
            let first = index.substituted(lane, &Index::default());
            Some((buffer.0, first.divided(4)))
        }
        _ => None,
    }
}

/// Declares a vector and loads it.
pub(super) fn vector(writer: &mut Writer<'_>, load: Scalar, lane: Var) -> Option<(Scalar, String)> {
    let (name, from) = vector_source(writer, load, lane)?;
    writer.line(format!("const float4 {name} = {from};"));
    Some((load, name))
}

pub(super) fn vector_source(
    writer: &mut Writer<'_>,
    load: Scalar,
    lane: Var,
) -> Option<(String, String)> {
    let (buffer, place) = quarter(writer.plan, load, lane)?;
    let buffer = crate::teacher::scalar::Buffer(buffer);
    if !writer.read.contains(&buffer) {
        writer.read.push(buffer);
    }
    let from = writer.buffer(buffer).to_owned();
    let name = writer.unique(&format!("{from}_four"));
    let place = writer.index(&place);
    Some((
        name,
        format!("reinterpret_cast<const float4*>({from})[{place}]"),
    ))
}

/// The elements of vectors at lane `l`; `at` names which of several.
pub(super) fn unpack(writer: &mut Writer<'_>, vectors: &[(Scalar, String)], at: &str) {
    for (load, name) in vectors {
        writer.set(*load, format!("(&{name}{at}.x)[l]"));
    }
}
