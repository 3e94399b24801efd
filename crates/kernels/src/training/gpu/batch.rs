//! A batch on the device.

use super::cross_entropy::ScoreGrad;
use super::embedding::TokenOccurrences;
use super::flash_attn::SequenceBlocks;
use crate::training::batch::PackedBatch;
use crate::{Buffer, Gpu, GpuError, VEC, bf16};

/// Sizes of a batch on the device. They are padded, so that batches often have the same sizes and share a CUDA graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BatchExtent {
    pub(super) rows: usize,
    pub(super) loss_rows: usize,
    pub(super) blocks: usize,
    pub(super) distinct_tokens: usize,
}

/// A batch on a device, in buffers that the next batch reuses.
pub(super) struct DeviceBatch {
    pub(super) tokens: Buffer<u32>,
    pub(super) positions: Buffer<u32>,
    pub(super) order: Buffer<u32>,
    pub(super) occurrences: Buffer<TokenOccurrences>,
    pub(super) blocks: SequenceBlocks,
    pub(super) loss_rows: Buffer<u32>,
    pub(super) targets: Buffer<u32>,
    pub(super) score_grads: Buffer<ScoreGrad>,
    pub(super) logprobs: Buffer<f32>,
    pub(super) entropies: Buffer<f32>,
    /// [`VEC`] elements a row, of which the first is its value, or the gradient of that.
    pub(super) values: Buffer<f32>,
    pub(super) d_values: Buffer<bf16>,
    pub(super) extent: BatchExtent,
    /// Tokens that enter the loss, without padding.
    pub(super) loss_tokens: usize,
}

const ROW_MULTIPLE: usize = 64;
const LOSS_ROW_MULTIPLE: usize = 64;
const DISTINCT_TOKEN_MULTIPLE: usize = 1024;

impl DeviceBatch {
    pub(super) fn new(gpu: &Gpu, rows: usize, head_dim: usize) -> Result<Self, GpuError> {
        let rows = rows.next_multiple_of(ROW_MULTIPLE);
        let loss_rows = rows.next_multiple_of(LOSS_ROW_MULTIPLE);
        let distinct_tokens = rows.next_multiple_of(DISTINCT_TOKEN_MULTIPLE);
        Ok(Self {
            tokens: gpu.zeros(rows)?,
            positions: gpu.zeros(rows)?,
            order: gpu.zeros(rows)?,
            occurrences: gpu.upload(&vec![TokenOccurrences::default(); distinct_tokens])?,
            blocks: SequenceBlocks::new(gpu, gpu.flash_attn_kind, rows, head_dim)?,
            loss_rows: gpu.zeros(loss_rows)?,
            targets: gpu.zeros(loss_rows)?,
            score_grads: gpu.upload(&vec![ScoreGrad::default(); loss_rows])?,
            logprobs: gpu.zeros(loss_rows)?,
            entropies: gpu.zeros(loss_rows)?,
            values: gpu.zeros(VEC * loss_rows)?,
            d_values: gpu.zeros(VEC * loss_rows)?,
            extent: BatchExtent {
                rows: 0,
                loss_rows: 0,
                blocks: 0,
                distinct_tokens: 0,
            },
            loss_tokens: 0,
        })
    }

    /// The most rows that a batch may have.
    pub(super) fn row_capacity(&self) -> usize {
        self.tokens.len()
    }

    pub(super) fn load(&mut self, gpu: &Gpu, batch: &PackedBatch) -> Result<(), GpuError> {
        let mut tokens = batch.tokens.clone();
        let mut lengths = batch.lengths.clone();
        // Padding is one more sequence without tokens in the loss.
        let padding = tokens.len().next_multiple_of(ROW_MULTIPLE) - tokens.len();
        tokens.resize(tokens.len() + padding, 0);
        lengths.extend((padding > 0).then_some(padding));
        let rows = tokens.len();
        if rows > self.row_capacity() {
            return Err(GpuError::OverCapacity {
                what: "rows",
                count: rows,
                capacity: self.row_capacity(),
            });
        }
        let positions: Vec<u32> = lengths
            .iter()
            .flat_map(|length| 0..*length as u32)
            .collect();
        let (order, mut occurrences) = TokenOccurrences::of(&tokens);
        let distinct_tokens = occurrences.len().next_multiple_of(DISTINCT_TOKEN_MULTIPLE);
        occurrences.resize(distinct_tokens, TokenOccurrences::default());
        self.blocks.load(gpu, &lengths)?;
        let (mut loss_rows, mut targets): (Vec<u32>, Vec<u32>) =
            batch.loss_targets.iter().copied().unzip();
        let padded = loss_rows.len().next_multiple_of(LOSS_ROW_MULTIPLE);
        loss_rows.resize(padded, u32::MAX);
        targets.resize(padded, 0);
        self.extent = BatchExtent {
            rows,
            loss_rows: padded,
            blocks: self.blocks.count(),
            distinct_tokens,
        };
        self.loss_tokens = batch.loss_tokens();
        gpu.write(&mut self.tokens, &tokens)?;
        gpu.write(&mut self.positions, &positions)?;
        gpu.write(&mut self.order, &order)?;
        gpu.write(&mut self.occurrences, &occurrences)?;
        gpu.write(&mut self.loss_rows, &loss_rows)?;
        gpu.write(&mut self.targets, &targets)
    }

    /// One upstream gradient for each token of the loss.
    pub(super) fn write_score_grads(
        &mut self,
        gpu: &Gpu,
        grads: &[ScoreGrad],
    ) -> Result<(), GpuError> {
        assert_eq!(
            grads.len(),
            self.loss_tokens,
            "one for each token of the loss"
        );
        let mut padded = grads.to_vec();
        padded.resize(self.extent.loss_rows, ScoreGrad::default());
        gpu.write(&mut self.score_grads, &padded)
    }

    /// One upstream gradient for the value before each token of the loss.
    pub(super) fn write_value_grads(&mut self, gpu: &Gpu, grads: &[f32]) -> Result<(), GpuError> {
        assert_eq!(
            grads.len(),
            self.loss_tokens,
            "one for each token of the loss"
        );
        let mut padded = vec![bf16::ZERO; VEC * self.extent.loss_rows];
        for (to, grad) in padded.iter_mut().step_by(VEC).zip(grads) {
            *to = bf16::from_f32(*grad);
        }
        gpu.write(&mut self.d_values, &padded)
    }
}
