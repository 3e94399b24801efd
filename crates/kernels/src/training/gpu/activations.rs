//! Buffers for activations and their gradients, allocated once.

use super::reductions::PARTIALS;
use crate::training::layout::ModelShape;
use crate::training::lora::LoraWidths;
use crate::{Buffer, Gpu, GpuError, bf16};

/// Which activations the forward pass stores for the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActivationCheckpointing {
    /// All that the backward pass reads.
    Off,
    /// Only each layer's input, and the inner rows of the down projection's LoRA. The rest is recomputed in the backward pass, a
    /// quarter of the work more.
    PerLayer,
}

/// Rows of a chunk of logits are a multiple of this.
pub(super) const CHUNK_MULTIPLE: usize = 64;

/// The largest batch that buffers are allocated for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchCapacity {
    /// Tokens of a batch.
    pub rows: usize,
    /// Tokens whose logits exist at the same time.
    pub logits_chunk: usize,
    /// Positions of the longest sequence.
    pub positions: usize,
    /// Width of the rows between LoRA's two matrices.
    pub lora_widths: LoraWidths,
    pub checkpointing: ActivationCheckpointing,
}

impl BatchCapacity {
    /// Logits that exist at the same time by default.
    const MAX_LOGITS: usize = 1 << 27;

    pub fn new(shape: &ModelShape, rows: usize, positions: usize) -> Self {
        let chunk = Self::MAX_LOGITS / shape.vocabulary / 128 * 128;
        Self {
            rows,
            logits_chunk: chunk.clamp(128, rows.next_multiple_of(128)),
            positions,
            lora_widths: LoraWidths::default(),
            checkpointing: ActivationCheckpointing::Off,
        }
    }

    /// Stores all activations if that fits into so many bytes, else checkpoints them if that fits.
    pub fn fit_into(self, shape: &ModelShape, free: usize) -> Result<Self, GpuError> {
        let with = |checkpointing| Self {
            checkpointing,
            ..self
        };
        let stored = with(ActivationCheckpointing::Off);
        if stored.bytes(shape) <= free {
            return Ok(stored);
        }
        let checkpointed = with(ActivationCheckpointing::PerLayer);
        let needed = checkpointed.bytes(shape);
        if needed <= free {
            Ok(checkpointed)
        } else {
            Err(GpuError::OutOfMemory { needed, free })
        }
    }

    /// Bytes that the buffers take, without small ones.
    fn bytes(&self, shape: &ModelShape) -> usize {
        let (hidden, feed_forward, layers) = (shape.hidden, shape.feed_forward, shape.layers);
        let (width, queries) = (shape.qkv_width(), shape.query_width());
        let (stored_layers, before_norm) = match (self.checkpointing, shape.head_norms) {
            (ActivationCheckpointing::Off, true) => (layers, 2 * width),
            (ActivationCheckpointing::Off, false) => (layers, 0),
            (ActivationCheckpointing::PerLayer, true) => (1, 2 * width),
            (ActivationCheckpointing::PerLayer, false) => (1, 0),
        };
        let lora = self.lora_widths;
        let inner = lora.qkv + lora.attention_output + lora.gate_and_up;
        let layer = before_norm
            + 2 * width
            + 2 * queries
            + 4 * shape.heads
            + 4 * hidden
            + 4 * feed_forward
            + 2 * inner;
        let gradients =
            10 * hidden + 2 * feed_forward + 2 * queries + 2 * width + 2 * lora.widest();
        let row =
            stored_layers * layer + (layers + 1) * 4 * hidden + layers * 2 * lora.down + gradients;
        let chunk = 4 * hidden + 6 * shape.vocabulary;
        let partials = 4 * PARTIALS * ((2 * layers + 1) * hidden + 2 * shape.head_dim + width);
        self.rows * row + self.logits_chunk * chunk + partials
    }
}

/// Activations of one layer.
pub(super) struct LayerActivations {
    /// What the QKV product left, where head norms make it impossible to recover that from `qkv`.
    pub(super) qkv_before_norm: Option<Buffer<bf16>>,
    pub(super) qkv: Buffer<bf16>,
    pub(super) attn_out: Buffer<bf16>,
    pub(super) lse: Buffer<f32>,
    /// The residual stream between attention and feed-forward.
    pub(super) mid_residual: Buffer<f32>,
    pub(super) gate_up: Buffer<bf16>,
    pub(super) lora_inner: LoraActivations,
}

/// Rows between LoRA's two matrices, of a layer's projections but the last.
pub(super) struct LoraActivations {
    pub(super) qkv: Buffer<bf16>,
    pub(super) attention_output: Buffer<bf16>,
    pub(super) gate_and_up: Buffer<bf16>,
}

pub(super) struct Activations {
    pub(super) capacity: BatchCapacity,
    /// The residual stream before each layer and after the last.
    pub(super) layer_inputs: Vec<Buffer<f32>>,
    pub(super) layers: Vec<LayerActivations>,
    pub(super) normed: Buffer<bf16>,
    pub(super) delta: Buffer<bf16>,
    pub(super) swiglu_out: Buffer<bf16>,
    /// Rows between LoRA's two matrices of the down projection, of every layer: recomputation ends before it.
    pub(super) down_lora_inner: Vec<Buffer<bf16>>,
    /// Gradient of the rows between LoRA's two matrices of the projection at hand.
    pub(super) d_lora_inner: Buffer<bf16>,
    pub(super) d_residual: Buffer<f32>,
    pub(super) d_residual_bf16: Buffer<bf16>,
    pub(super) d_attn_out: Buffer<bf16>,
    pub(super) d_qkv: Buffer<bf16>,
    pub(super) attn_delta: Buffer<f32>,
    /// Of all norms, in the order of their parameters.
    pub(super) norm_partials: Buffer<f32>,
    pub(super) head_norm_partials: Buffer<f32>,
    pub(super) bias_partials: Buffer<f32>,
    /// Final hidden states of the rows that enter the loss, and their gradients.
    pub(super) loss_hidden: Buffer<bf16>,
    pub(super) d_loss_hidden: Buffer<bf16>,
    pub(super) logits: Buffer<f32>,
    pub(super) d_logits: Buffer<bf16>,
}

impl Activations {
    pub(super) fn new(
        gpu: &Gpu,
        shape: &ModelShape,
        capacity: BatchCapacity,
    ) -> Result<Self, GpuError> {
        let rows = capacity.rows;
        let (hidden, width, queries) = (shape.hidden, shape.qkv_width(), shape.query_width());
        let stored_layers = match capacity.checkpointing {
            ActivationCheckpointing::Off => shape.layers,
            ActivationCheckpointing::PerLayer => 1,
        };
        // Never empty: the device allocates no buffers of zero bytes.
        let inner = |width: usize| gpu.zeros(rows * width.max(1));
        let layer = |_| {
            Ok(LayerActivations {
                qkv_before_norm: if shape.head_norms {
                    Some(gpu.zeros(rows * width)?)
                } else {
                    None
                },
                qkv: gpu.zeros(rows * width)?,
                attn_out: gpu.zeros(rows * queries)?,
                lse: gpu.zeros(rows * shape.heads)?,
                mid_residual: gpu.zeros(rows * hidden)?,
                gate_up: gpu.zeros(2 * rows * shape.feed_forward)?,
                lora_inner: LoraActivations {
                    qkv: inner(capacity.lora_widths.qkv)?,
                    attention_output: inner(capacity.lora_widths.attention_output)?,
                    gate_and_up: inner(capacity.lora_widths.gate_and_up)?,
                },
            })
        };
        let layer_inputs = (0..=shape.layers).map(|_| gpu.zeros(rows * hidden));
        Ok(Self {
            capacity,
            layer_inputs: layer_inputs.collect::<Result<_, _>>()?,
            layers: (0..stored_layers)
                .map(layer)
                .collect::<Result<_, GpuError>>()?,
            normed: gpu.zeros(rows * hidden)?,
            delta: gpu.zeros(rows * hidden)?,
            swiglu_out: gpu.zeros(rows * shape.feed_forward)?,
            down_lora_inner: (0..shape.layers)
                .map(|_| inner(capacity.lora_widths.down))
                .collect::<Result<_, _>>()?,
            d_lora_inner: inner(capacity.lora_widths.widest())?,
            d_residual: gpu.zeros(rows * hidden)?,
            d_residual_bf16: gpu.zeros(rows * hidden)?,
            d_attn_out: gpu.zeros(rows * queries)?,
            d_qkv: gpu.zeros(rows * width)?,
            attn_delta: gpu.zeros(rows * shape.heads)?,
            norm_partials: gpu.zeros((2 * shape.layers + 1) * PARTIALS * hidden)?,
            head_norm_partials: gpu.zeros(PARTIALS * 2 * shape.head_dim)?,
            bias_partials: gpu.zeros(PARTIALS * width)?,
            loss_hidden: gpu.zeros(capacity.logits_chunk * hidden)?,
            d_loss_hidden: gpu.zeros(capacity.logits_chunk * hidden)?,
            logits: gpu.zeros(capacity.logits_chunk * shape.vocabulary)?,
            d_logits: gpu.zeros(capacity.logits_chunk * shape.vocabulary)?,
        })
    }

    /// Which of `layers` holds a layer's activations.
    pub(super) fn layer_slot(&self, layer: usize) -> usize {
        match self.capacity.checkpointing {
            ActivationCheckpointing::Off => layer,
            ActivationCheckpointing::PerLayer => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::layout::tests::shape;

    #[test]
    fn activations_are_checkpointed_where_memory_is_short() {
        let shape = shape();
        let capacity = BatchCapacity::new(&shape, 1024, 512);
        let bytes = |checkpointing| {
            BatchCapacity {
                checkpointing,
                ..capacity
            }
            .bytes(&shape)
        };
        let (all, least) = (
            bytes(ActivationCheckpointing::Off),
            bytes(ActivationCheckpointing::PerLayer),
        );
        assert!(least < all);
        assert_eq!(
            capacity.fit_into(&shape, all).unwrap().checkpointing,
            ActivationCheckpointing::Off
        );
        assert_eq!(
            capacity.fit_into(&shape, all - 1).unwrap().checkpointing,
            ActivationCheckpointing::PerLayer
        );
        assert_eq!(
            capacity.fit_into(&shape, least).unwrap().checkpointing,
            ActivationCheckpointing::PerLayer
        );
        let short = capacity.fit_into(&shape, least - 1).unwrap_err();
        assert!(
            matches!(short, GpuError::OutOfMemory { needed, free } if needed == least && free == least - 1)
        );
    }
}
