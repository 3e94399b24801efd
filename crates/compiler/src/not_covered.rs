//! Why the compiler has no solution.

use warpsmith_schema::Dtype;

/// Why there is no solution.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotCovered {
    #[error("the task has no graph")]
    NoGraph,
    #[error("there is no rule for the operator `{op}`")]
    Operator { op: String },
    #[error("there is no rule for `{op}` with {what}")]
    Given { op: String, what: String },
    #[error("there is no rule for elements of type `{dtype:?}`")]
    Elements { dtype: Dtype },
    #[error("the module could not be read: {what}")]
    Module { what: String },
    #[error(
        "it would take {kernels} kernels: a loop over time in Python, whose steps wait for each other; take fewer steps, or an \
         operator that goes over time by itself"
    )]
    TooManyKernels { kernels: usize },
    #[error("line {line}: {reason}")]
    AtLine { line: u32, reason: Box<Self> },
}

impl NotCovered {
    /// The same at a line, where that is known.
    pub(super) fn at(self, line: Option<u32>) -> Self {
        match line {
            Some(line) => Self::AtLine {
                line,
                reason: Box::new(self),
            },
            None => self,
        }
    }

    /// The operator that has no rule.
    pub fn operator(&self) -> Option<&str> {
        match self {
            Self::Operator { op } | Self::Given { op, .. } => Some(op),
            Self::AtLine { reason, .. } => reason.operator(),
            Self::NoGraph
            | Self::Elements { .. }
            | Self::Module { .. }
            | Self::TooManyKernels { .. } => None,
        }
    }

    /// The line of `model.py` that it stands in, where the graph was captured.
    pub fn line(&self) -> Option<u32> {
        match self {
            Self::AtLine { line, .. } => Some(*line),
            _ => None,
        }
    }
}
