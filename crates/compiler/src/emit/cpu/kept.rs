//! What the last reduction of a row computes and the stored elements need again: computed once and kept in the result.

use super::SimdFunction;
use crate::emit::KernelWriter;
use crate::emit::loops::is_steady;
use crate::emit::row_kernel::{reduction_operand, stored_value};
use crate::index::{Index, Var, coordinates, linear};
use crate::plan::{Plan, ReduceOp, RowKernel, Strategy};
use crate::scalar::{Buffer, ElementType, Node, Scalar};

/// A value that is written to the result's own place before the result is.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    /// Counts the elements of a row, for the reduction and for the result.
    pub(super) var: Var,
    pub(super) value: Scalar,
    /// The coordinates of the result's element.
    pub(super) at: Vec<Index>,
    place: Index,
    out: Buffer,
}

impl Kept {
    /// The value of a function that both need at each element, if there is one.
    pub(super) fn find(plan: &mut Plan, kernel: &RowKernel, row: &[Index]) -> Option<Self> {
        let last = kernel.reductions.last()?;
        let reduction = plan.reductions[last.reduction.0].clone();
        let cells: i64 = kernel.row_shape.iter().product();
        let fits = plan.strategy == Strategy::Tuned
            && plan.buffers[kernel.out.0].element == ElementType::Float
            && reduction.op != ReduceOp::ArgMax
            && reduction.length() == cells;
        if !fits {
            return None;
        }
        let var = plan.arena.var(cells);
        let element = coordinates(&reduction.extents, &var.into());
        let term = reduction_operand(plan, last, &kernel.reductions, row, &element);
        let at = (kernel.index_map)(row, &coordinates(&kernel.row_shape, &var.into()));
        let stored = stored_value(plan, kernel, &at);
        let place = linear(&kernel.shape, &at);
        if place.stride(var) != Some(1) || !is_steady(plan, &[term, stored], var) {
            return None;
        }
        let arena = &plan.arena;
        let terms = arena.ordered(&[term]);
        let is_function = |one: &Scalar| match arena.node(*one) {
            Node::Unary(op, _) => SimdFunction::of(*op).is_some(),
            _ => false,
        };
        // The last one is what most was computed for.
        let value = arena.ordered(&[stored]).into_iter().rev().find(|one| {
            terms.contains(one) && is_function(one) && arena.depends_on(*one, &[var])
        })?;
        Some(Self {
            var,
            value,
            at,
            place,
            out: kernel.out,
        })
    }

    /// The result's element, in a loop over `var`.
    pub(super) fn element(&self, writer: &KernelWriter<'_>) -> String {
        let place = writer.index(&self.place);
        format!("{}[{place}]", writer.buffer(self.out))
    }
}
