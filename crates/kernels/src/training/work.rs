//! Room for what a pass makes, taken once.

use super::factors::Between;
use super::layout::Shape;
use super::rows::PARTS;
use crate::{Buffer, Gpu, GpuError, bf16};

/// What is kept of each layer for the way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Everything that the way back reads.
    All,
    /// Where each layer starts, and what is between its last low-rank matrices; what is inside is made again on the way back, a
    /// quarter of the work more.
    Starts,
}

/// Rows of a chunk are a multiple of this.
pub(super) const ROUND_CHUNK: usize = 64;

/// How much a learner works on at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Tokens of a batch.
    pub rows: usize,
    /// Tokens that logits are made of at once.
    pub chunk: usize,
    /// Positions of the longest sequence.
    pub positions: usize,
    /// What low-rank matrices make of a row in between.
    pub between: Between,
    pub keep: Keep,
}

impl Room {
    /// Logits that there are at once, unless something else is said.
    const LOGITS: usize = 1 << 27;

    pub fn new(shape: &Shape, rows: usize, positions: usize) -> Self {
        let chunk = Self::LOGITS / shape.vocabulary / 128 * 128;
        Self {
            rows,
            chunk: chunk.clamp(128, rows.next_multiple_of(128)),
            positions,
            between: Between::default(),
            keep: Keep::All,
        }
    }

    /// The same with layers kept if so many bytes are enough, else with layers made again, if those are.
    pub fn within(self, shape: &Shape, free: usize) -> Result<Self, GpuError> {
        let room = |keep| Self { keep, ..self };
        let fits = |room: &Self| room.bytes(shape) <= free;
        match [Keep::All, Keep::Starts].map(room).into_iter().find(fits) {
            Some(room) => Ok(room),
            None => Err(GpuError::Memory {
                needed: room(Keep::Starts).bytes(shape),
                free,
            }),
        }
    }

    /// Bytes that it takes, but for what is small.
    fn bytes(&self, shape: &Shape) -> usize {
        let (hidden, wide, layers) = (shape.hidden, shape.feed_forward, shape.layers);
        let (width, queries) = (shape.qkv_width(), shape.query_width());
        let (kept, raw) = match (self.keep, shape.head_norms) {
            (Keep::All, true) => (layers, 2 * width),
            (Keep::All, false) => (layers, 0),
            (Keep::Starts, true) => (1, 2 * width),
            (Keep::Starts, false) => (1, 0),
        };
        let between = self.between;
        let inner = between.qkv + between.attention_output + between.gate_and_up;
        let inside =
            raw + 2 * width + 2 * queries + 4 * shape.heads + 4 * hidden + 4 * wide + 2 * inner;
        let beside = 10 * hidden + 2 * wide + 2 * queries + 2 * width + 2 * between.widest();
        let row = kept * inside + (layers + 1) * 4 * hidden + layers * 2 * between.down + beside;
        let chunk = 4 * hidden + 6 * shape.vocabulary;
        let parts = 4 * PARTS * ((2 * layers + 1) * hidden + 2 * shape.head_dim + width);
        self.rows * row + self.chunk * chunk + parts
    }
}

/// Inside of a layer.
pub(super) struct Kept {
    /// As the product left it, where that cannot be had from what is turned.
    pub(super) raw: Option<Buffer<bf16>>,
    pub(super) qkv: Buffer<bf16>,
    pub(super) attended: Buffer<bf16>,
    pub(super) log_totals: Buffer<f32>,
    /// The residual between attention and feed-forward.
    pub(super) middle: Buffer<f32>,
    pub(super) both: Buffer<bf16>,
    pub(super) inner: Inner,
}

/// Rows between the low-rank matrices beside each of a layer's own.
pub(super) struct Inner {
    pub(super) qkv: Buffer<bf16>,
    pub(super) attention_output: Buffer<bf16>,
    pub(super) gate_and_up: Buffer<bf16>,
}

pub(super) struct Work {
    pub(super) room: Room,
    /// The residual before each layer and after the last.
    pub(super) starts: Vec<Buffer<f32>>,
    pub(super) kept: Vec<Kept>,
    pub(super) normed: Buffer<bf16>,
    pub(super) delta: Buffer<bf16>,
    pub(super) gated: Buffer<bf16>,
    /// Rows between the low-rank matrices beside [`Parameter::Down`](super::Parameter::Down), of each layer: layers that are
    /// made again end before it.
    pub(super) down_inner: Vec<Buffer<bf16>>,
    /// Of rows between two low-rank matrices, those that were made last.
    pub(super) inner_slopes: Buffer<bf16>,
    /// Of the residual.
    pub(super) slopes: Buffer<f32>,
    pub(super) narrow_slopes: Buffer<bf16>,
    pub(super) attended_slopes: Buffer<bf16>,
    pub(super) qkv_slopes: Buffer<bf16>,
    pub(super) agreements: Buffer<f32>,
    /// Of all norms, in the order in which they lie.
    pub(super) norm_parts: Buffer<f32>,
    pub(super) head_norm_parts: Buffer<f32>,
    pub(super) bias_parts: Buffer<f32>,
    /// Rows that logits are made of, and their slopes.
    pub(super) chunk: Buffer<bf16>,
    pub(super) chunk_slopes: Buffer<bf16>,
    pub(super) logits: Buffer<f32>,
    pub(super) logit_slopes: Buffer<bf16>,
}

impl Work {
    pub(super) fn new(gpu: &Gpu, shape: &Shape, room: Room) -> Result<Self, GpuError> {
        let rows = room.rows;
        let (hidden, width, queries) = (shape.hidden, shape.qkv_width(), shape.query_width());
        let inside = match room.keep {
            Keep::All => shape.layers,
            Keep::Starts => 1,
        };
        // Never none: a device has no buffers without a place.
        let inner = |width: usize| gpu.zeros(rows * width.max(1));
        let kept = |_| {
            Ok(Kept {
                raw: if shape.head_norms {
                    Some(gpu.zeros(rows * width)?)
                } else {
                    None
                },
                qkv: gpu.zeros(rows * width)?,
                attended: gpu.zeros(rows * queries)?,
                log_totals: gpu.zeros(rows * shape.heads)?,
                middle: gpu.zeros(rows * hidden)?,
                both: gpu.zeros(2 * rows * shape.feed_forward)?,
                inner: Inner {
                    qkv: inner(room.between.qkv)?,
                    attention_output: inner(room.between.attention_output)?,
                    gate_and_up: inner(room.between.gate_and_up)?,
                },
            })
        };
        let starts = (0..=shape.layers).map(|_| gpu.zeros(rows * hidden));
        Ok(Self {
            room,
            starts: starts.collect::<Result<_, _>>()?,
            kept: (0..inside).map(kept).collect::<Result<_, GpuError>>()?,
            normed: gpu.zeros(rows * hidden)?,
            delta: gpu.zeros(rows * hidden)?,
            gated: gpu.zeros(rows * shape.feed_forward)?,
            down_inner: (0..shape.layers)
                .map(|_| inner(room.between.down))
                .collect::<Result<_, _>>()?,
            inner_slopes: inner(room.between.widest())?,
            slopes: gpu.zeros(rows * hidden)?,
            narrow_slopes: gpu.zeros(rows * hidden)?,
            attended_slopes: gpu.zeros(rows * queries)?,
            qkv_slopes: gpu.zeros(rows * width)?,
            agreements: gpu.zeros(rows * shape.heads)?,
            norm_parts: gpu.zeros((2 * shape.layers + 1) * PARTS * hidden)?,
            head_norm_parts: gpu.zeros(PARTS * 2 * shape.head_dim)?,
            bias_parts: gpu.zeros(PARTS * width)?,
            chunk: gpu.zeros(room.chunk * hidden)?,
            chunk_slopes: gpu.zeros(room.chunk * hidden)?,
            logits: gpu.zeros(room.chunk * shape.vocabulary)?,
            logit_slopes: gpu.zeros(room.chunk * shape.vocabulary)?,
        })
    }

    /// Which of `kept` a layer has.
    pub(super) fn inside(&self, layer: usize) -> usize {
        match self.room.keep {
            Keep::All => layer,
            Keep::Starts => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::shape;
    use super::*;

    #[test]
    fn layers_are_made_again_where_memory_is_short() {
        let shape = shape();
        let room = Room::new(&shape, 1024, 512);
        let bytes = |keep| Room { keep, ..room }.bytes(&shape);
        let (all, least) = (bytes(Keep::All), bytes(Keep::Starts));
        assert!(least < all);
        assert_eq!(room.within(&shape, all).unwrap().keep, Keep::All);
        assert_eq!(room.within(&shape, all - 1).unwrap().keep, Keep::Starts);
        assert_eq!(room.within(&shape, least).unwrap().keep, Keep::Starts);
        let short = room.within(&shape, least - 1).unwrap_err();
        assert!(
            matches!(short, GpuError::Memory { needed, free } if needed == least && free == least - 1)
        );
    }
}
