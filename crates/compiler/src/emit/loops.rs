//! Which loops a kernel has.

use crate::index::{Index, Var, coordinates};
use crate::plan::Plan;
use crate::scalar::Scalar;

/// A loop nest over a shape: one loop over the dimensions before a split, and one over the rest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nest {
    pub(super) outer: Var,
    pub(super) inner: Var,
    split: usize,
}

impl Nest {
    /// A single loop.
    pub(super) fn flat(plan: &mut Plan, inner: Var) -> Self {
        Self {
            outer: plan.arena.var(1),
            inner,
            split: 0,
        }
    }

    pub(super) fn coordinates(&self, shape: &[i64]) -> Vec<Index> {
        let (before, after) = shape.split_at(self.split);
        let mut at = coordinates(before, &self.outer.into());
        at.extend(coordinates(after, &self.inner.into()));
        at
    }
}

/// The nest with the longest inner loop in which every index has a fixed stride; otherwise the inner loop is the last dimension.
pub(super) fn nest(
    plan: &mut Plan,
    shape: &[i64],
    values: &mut dyn FnMut(&mut Plan, &[Index]) -> Vec<Scalar>,
) -> Nest {
    let mut found = None;
    for split in 0..=shape.len().saturating_sub(1) {
        let (before, after) = shape.split_at(split);
        let nest = Nest {
            outer: plan.arena.var(before.iter().product()),
            inner: plan.arena.var(after.iter().product()),
            split,
        };
        let at = nest.coordinates(shape);
        let values = values(plan, &at);
        found = Some(nest);
        if is_steady(plan, &values, nest.inner) {
            break;
        }
    }
    found.unwrap_or_else(|| Nest {
        outer: plan.arena.var(1),
        inner: plan.arena.var(1),
        split: 0,
    })
}

/// Whether every index in these values has a fixed stride along a variable.
pub(super) fn is_steady(plan: &Plan, values: &[Scalar], var: Var) -> bool {
    let arena = &plan.arena;
    arena.ordered(values).into_iter().all(|one| {
        let mut indices = arena.indices(one).into_iter();
        indices.all(|index| index.stride(var).is_some())
    })
}
