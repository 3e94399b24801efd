//! Operators on their way into a kernel.

use serde::Serialize;

/// Operators that give a tensor another shape and compute nothing. No kernel is named after them.
pub(crate) const VIEWS: [&str; 10] = [
    "reshape",
    "view",
    "flatten",
    "permute",
    "transpose",
    "t",
    "expand",
    "squeeze",
    "unsqueeze",
    "contiguous",
];

/// An operator of the graph that a kernel computes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FusedOperator {
    pub op: String,
    /// Its line in `model.py`, where the graph was captured.
    pub line: Option<u32>,
}

/// What was lowered since the last kernel, and the names that make up the next one's.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chain {
    names: Vec<String>,
    pub(super) operators: Vec<FusedOperator>,
}

impl Chain {
    /// A part of an operator, which is a kernel of its own.
    pub(super) fn part(name: String) -> Self {
        Self {
            names: vec![name],
            operators: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, op: &str, line: Option<u32>) {
        if !VIEWS.contains(&op) {
            self.names.push(op.to_owned());
        }
        self.operators.push(FusedOperator {
            op: op.to_owned(),
            line,
        });
    }

    /// Takes the latest operator out.
    pub(super) fn pop(&mut self) -> Option<FusedOperator> {
        let last = self.operators.pop()?;
        if self.names.last() == Some(&last.op) {
            self.names.pop();
        }
        Some(last)
    }

    pub(super) fn put_back(&mut self, operator: Option<FusedOperator>) {
        if let Some(FusedOperator { op, line }) = operator {
            self.push(&op, line);
        }
    }

    /// All names, or the first and the last of many.
    pub(super) fn name(&self) -> Option<String> {
        let all = self.names.join("_");
        let name = match &self.names[..] {
            [first, .., last] if all.len() > 40 => format!("{first}_to_{last}"),
            [only] if all.len() > 40 => format!("{only}_to_{only}"),
            _ => all,
        };
        (!name.is_empty()).then_some(name)
    }
}
