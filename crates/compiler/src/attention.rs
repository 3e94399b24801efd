//! Attention as one kernel: scores are made, weighed and used tile by tile, and never stored.

use crate::scalar::Buffer;
use crate::tensor::Body;

/// `softmax(scale q k^T + mask) v` for each item of a batch. The tensors are asked for at `[item, row, column]`.
#[derive(Clone)]
pub(super) struct AttentionKernel {
    pub(super) batch: i64,
    pub(super) queries: i64,
    pub(super) keys: i64,
    /// Of queries and keys.
    pub(super) depth: i64,
    /// Of values.
    pub(super) width: i64,
    pub(super) scale: f64,
    /// A query sees no key after its own place.
    pub(super) causal: bool,
    pub(super) query: Body,
    pub(super) key: Body,
    pub(super) value: Body,
    pub(super) mask: Option<AttentionMask>,
    pub(super) out: Buffer,
}

/// At `[item, query, key]`.
#[derive(Clone)]
pub(super) enum AttentionMask {
    /// Where it holds, a key is seen.
    Seen(Body),
    /// Added to scores.
    Added(Body),
}

impl AttentionKernel {
    /// Scores that are never stored.
    pub(super) fn scores(&self) -> i64 {
        self.batch * self.queries * self.keys
    }
}
