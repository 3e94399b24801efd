//! Divisions of many elements by one number.

use crate::index::Var;
use crate::plan::{Plan, Strategy};
use crate::scalar::{Binary, Node, Scalar, Unary};

/// The value with such divisions as products with a reciprocal, which does not depend on `inner` and is taken once: a vector
/// of products takes a fraction of the time of a vector of quotients. It rounds once more, so a value that is then made a
/// whole number, or compared for equality, is left alone.
pub(super) fn with_reciprocals(plan: &mut Plan, value: Scalar, inner: &[Var]) -> Scalar {
    if plan.strategy != Strategy::Tuned || is_brittle(plan, value) {
        return value;
    }
    let found = divisions(plan, value, inner);
    let one = plan.arena.constant(1.0);
    plan.arena.rebuilt(value, &mut |arena, scalar| {
        let (_, (above, below)) = found.iter().find(|(known, _)| *known == scalar)?;
        let reciprocal = arena.div(one, *below);
        let product = arena.mul(*above, reciprocal);
        if let Some(name) = arena.named(scalar) {
            arena.name(product, name);
        }
        Some(product)
    })
}

/// The quotients whose divisor is a number that `inner` does not change and whose dividend it does. None of them is in the
/// dividend of another: what is rebuilt above it would be forgotten.
fn divisions(plan: &Plan, value: Scalar, inner: &[Var]) -> Vec<(Scalar, (Scalar, Scalar))> {
    let arena = &plan.arena;
    let mut found: Vec<(Scalar, (Scalar, Scalar))> = Vec::new();
    for one in arena.ordered(&[value]) {
        let Node::Binary(Binary::Div, above, below) = *arena.node(one) else {
            continue;
        };
        let is_constant = matches!(arena.node(below), Node::Const(_) | Node::Int(_));
        let within = arena.ordered(&[above, below]);
        let is_first = !found.iter().any(|(known, _)| within.contains(known));
        if !is_constant
            && is_first
            && arena.depends_on(above, inner)
            && !arena.depends_on(below, inner)
        {
            found.push((one, (above, below)));
        }
    }
    found
}

fn is_brittle(plan: &Plan, value: Scalar) -> bool {
    let arena = &plan.arena;
    arena.ordered(&[value]).into_iter().any(|one| {
        matches!(
            arena.node(one),
            Node::Unary(Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc, _)
                | Node::Binary(Binary::Equal | Binary::NotEqual | Binary::Fmod, _, _)
        )
    })
}
