//! What attention kernels of both targets have in common: names of places, and the text of elements.

use super::KernelWriter;
use crate::attention::{AttentionKernel, AttentionMask};
use crate::index::{Index, Var};
use crate::scalar::Scalar;
use crate::tensor::Body;

/// The variables of a kernel.
pub(super) struct Places {
    pub(super) item: Var,
    pub(super) query: Var,
    pub(super) key: Var,
    pub(super) depth: Var,
    pub(super) width: Var,
}

impl Places {
    pub(super) fn new(writer: &mut KernelWriter<'_>, kernel: &AttentionKernel) -> Self {
        let mut var = |extent: i64, name: &str| {
            let var = writer.plan.arena.var(extent);
            writer.name_variable(var, name);
            var
        };
        Self {
            item: var(kernel.batch, "item"),
            query: var(kernel.queries, "qi"),
            key: var(kernel.keys, "ki"),
            depth: var(kernel.depth, "di"),
            width: var(kernel.width, "di"),
        }
    }

    fn value(&self, writer: &mut KernelWriter<'_>, body: &Body, at: [Var; 2]) -> Scalar {
        let at = [self.item, at[0], at[1]].map(Index::from);
        let value = body(&mut writer.plan.arena, &at);
        writer.plan.resolve(value, &[])
    }

    /// A line that puts an element of a tensor somewhere, with what it takes before it.
    pub(super) fn fill(
        &self,
        writer: &mut KernelWriter<'_>,
        to: &str,
        (body, at): (&Body, [Var; 2]),
        factor: Option<&str>,
    ) {
        let scope = writer.scope();
        let value = self.value(writer, body, at);
        writer.define(&[value], &[]);
        let text = writer.operand(value);
        let factor = factor
            .map(|factor| format!(" * {factor}"))
            .unwrap_or_default();
        writer.line(format!("{to} = {text}{factor};"));
        writer.exit_scope(scope);
    }

    /// Lines that apply the mask to a score.
    pub(super) fn mask(
        &self,
        writer: &mut KernelWriter<'_>,
        kernel: &AttentionKernel,
        score: &str,
    ) {
        let scope = writer.scope();
        let at = [self.query, self.key];
        match &kernel.mask {
            None => {}
            Some(AttentionMask::Seen(body)) => {
                let seen = self.value(writer, body, at);
                writer.define(&[seen], &[]);
                let seen = writer.operand(seen);
                writer.line(format!("if (!{seen}) {score} = -INFINITY;"));
            }
            Some(AttentionMask::Added(body)) => {
                let more = self.value(writer, body, at);
                writer.define(&[more], &[]);
                let more = writer.operand(more);
                writer.line(format!("{score} += {more};"));
            }
        }
        writer.exit_scope(scope);
    }
}
