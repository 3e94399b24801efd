//! One forward and backward pass of a batch.
//!
//! Every launch goes to the device's stream and none is waited for, so that a pass can be captured as a CUDA graph.

use std::ops::Range;

use super::activations::{ActivationCheckpointing, Activations, CHUNK_MULTIPLE};
use super::batch::DeviceBatch;
use super::cross_entropy::CrossEntropyRows;
use super::flash_attn::{FlashAttnBwd, FlashAttnFwd};
use super::reductions::PARTIALS;
use super::rope::RopeTables;
use super::weights::TrainableWeights;
use crate::training::layout::{ModelShape, Parameter};
use crate::{Buffer, Gpu, GpuError, VEC, WriteMode};

pub(super) struct Pass<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) shape: &'a ModelShape,
    pub(super) weights: &'a mut TrainableWeights,
    pub(super) activations: &'a mut Activations,
    pub(super) batch: &'a mut DeviceBatch,
    pub(super) cos_sin: &'a Buffer<f32>,
}

impl Pass<'_> {
    /// From tokens to the normed hidden states of the last layer, in `activations.normed`.
    pub(super) fn forward(&mut self) -> Result<(), GpuError> {
        let (gpu, shape, rows) = (self.gpu, self.shape, self.batch.extent.rows);
        gpu.embedding_fwd(
            &mut self.activations.layer_inputs[0],
            &self.weights.matrix(Parameter::Embedding),
            &self.batch.tokens,
            (rows, shape.hidden),
        )?;
        for layer in 0..shape.layers {
            self.layer_input(layer, Parameter::AttentionNorm(layer))?;
            self.layer_forward(layer)?;
            let acts = &mut *self.activations;
            let stored = &acts.layers[acts.layer_slot(layer)];
            gpu.swiglu_fwd(
                &mut acts.swiglu_out,
                &stored.gate_up,
                (rows, shape.feed_forward),
            )?;
            let (down, inner) = (Parameter::Down(layer), &mut acts.down_lora_inner[layer]);
            self.weights
                .forward(gpu, down, &mut acts.delta, &acts.swiglu_out, (inner, rows))?;
        }
        self.layer_input(shape.layers, Parameter::FinalNorm)
    }

    /// The residual stream before a layer, or after the last: adds what the layer before left in `delta`, and norms the sum.
    fn layer_input(&mut self, layer: usize, norm: Parameter) -> Result<(), GpuError> {
        let (rows, epsilon) = (self.batch.extent.rows, self.shape.norm_epsilon);
        let weight = self.weights.vector(norm);
        let acts = &mut *self.activations;
        let normed = &mut acts.normed;
        if layer == 0 {
            let input = &acts.layer_inputs[0];
            return self
                .gpu
                .rms_norm_residual_fwd(normed, None, input, None, &weight, rows, epsilon);
        }
        let before = match acts.capacity.checkpointing {
            ActivationCheckpointing::Off => layer - 1,
            ActivationCheckpointing::PerLayer => 0,
        };
        let (input, mid_residual) = (
            &mut acts.layer_inputs[layer],
            &acts.layers[before].mid_residual,
        );
        let delta = Some(&acts.delta);
        self.gpu.rms_norm_residual_fwd(
            normed,
            Some(input),
            mid_residual,
            delta,
            &weight,
            rows,
            epsilon,
        )
    }

    /// From a layer's normed input to its gates and ups: all activations that the backward pass reads.
    fn layer_forward(&mut self, layer: usize) -> Result<(), GpuError> {
        let (gpu, shape, rows) = (self.gpu, self.shape, self.batch.extent.rows);
        let weights = &*self.weights;
        let tables = rope_tables(weights, layer, self.cos_sin, &self.batch.positions);
        let acts = &mut *self.activations;
        let slot = acts.layer_slot(layer);
        let stored = &mut acts.layers[slot];
        let qkv = Parameter::Qkv(layer);
        let inner = (&mut stored.lora_inner.qkv, rows);
        if let Some(before_norm) = &mut stored.qkv_before_norm {
            weights.forward(gpu, qkv, before_norm, &acts.normed, inner)?;
            gpu.rope_qk_fwd(before_norm, Some(&mut stored.qkv), &tables, shape, rows)?;
        } else {
            weights.forward(gpu, qkv, &mut stored.qkv, &acts.normed, inner)?;
            gpu.rope_qk_fwd(&mut stored.qkv, None, &tables, shape, rows)?;
        }
        gpu.flash_attn_varlen_fwd(
            &mut FlashAttnFwd {
                out: &mut stored.attn_out,
                lse: &mut stored.lse,
                qkv: &stored.qkv,
                blocks: &self.batch.blocks,
            },
            shape,
            rows,
        )?;
        let output = Parameter::AttentionOutput(layer);
        let inner = (&mut stored.lora_inner.attention_output, rows);
        weights.forward(gpu, output, &mut acts.delta, &stored.attn_out, inner)?;
        gpu.rms_norm_residual_fwd(
            &mut acts.normed,
            Some(&mut stored.mid_residual),
            &acts.layer_inputs[layer],
            Some(&acts.delta),
            &weights.vector(Parameter::FeedForwardNorm(layer)),
            rows,
            shape.norm_epsilon,
        )?;
        let gate_up = Parameter::GateUp(layer);
        let inner = (&mut stored.lora_inner.gate_and_up, rows);
        weights.forward(gpu, gate_up, &mut stored.gate_up, &acts.normed, inner)
    }

    /// Log-probabilities and entropies of the loss tokens, from `activations.normed`. With `backward` also the gradients of those
    /// rows, in `activations.delta`, and of the LM head.
    pub(super) fn score(&mut self, backward: Option<WriteMode>) -> Result<(), GpuError> {
        let (gpu, extent) = (self.gpu, self.batch.extent);
        let (hidden, vocabulary) = (self.shape.hidden, self.shape.vocabulary);
        let head = self.weights.layout.base().lm_head();
        if backward.is_some() {
            let rows = ..extent.rows * hidden;
            gpu.zero_fill(&mut self.activations.delta.slice_mut(rows))?;
        }
        for chunk in self.loss_chunks() {
            let (acts, batch) = (&mut *self.activations, &mut *self.batch);
            let (first, count) = (chunk.start, chunk.len());
            let loss_rows = batch.loss_rows.slice(chunk.clone());
            let from = (&acts.normed, extent.rows);
            gpu.gather_rows(&mut acts.loss_hidden, from, &loss_rows, hidden)?;
            let matrix = self.weights.matrix(head);
            gpu.linear(
                &mut acts.logits,
                &acts.loss_hidden,
                &matrix,
                (count, hidden),
            )?;
            let mut scored = CrossEntropyRows {
                logprobs: batch.logprobs.slice_mut(chunk.clone()),
                entropies: batch.entropies.slice_mut(chunk.clone()),
                logits: &acts.logits,
                targets: batch.targets.slice(chunk.clone()),
                vocabulary,
            };
            let Some(mode) = backward else {
                gpu.cross_entropy_fused(&mut scored, None)?;
                continue;
            };
            let grads = batch.score_grads.slice(chunk);
            gpu.cross_entropy_fused(&mut scored, Some((&mut acts.d_logits, grads)))?;
            let d_logits = &acts.d_logits;
            gpu.linear_bwd_input(&mut acts.d_loss_hidden, d_logits, &matrix, (count, hidden))?;
            let mode = if first == 0 {
                mode
            } else {
                WriteMode::Accumulate
            };
            if let Some(mut to) = self.weights.grad(head) {
                let to = (&mut to, mode);
                gpu.linear_bwd_weight(to, d_logits, &acts.loss_hidden, (count, hidden))?;
            }
            let to = (&mut acts.delta, extent.rows);
            gpu.scatter_rows(to, &acts.d_loss_hidden, &loss_rows, hidden)?;
        }
        Ok(())
    }

    /// Values before the loss tokens, without the bias, from `activations.normed`. With `backward` instead the gradients of those
    /// rows, in `activations.delta`, and of the value head.
    pub(super) fn value(&mut self, backward: Option<WriteMode>) -> Result<(), GpuError> {
        let (gpu, extent, hidden) = (self.gpu, self.batch.extent, self.shape.hidden);
        if backward.is_some() {
            let rows = ..extent.rows * hidden;
            gpu.zero_fill(&mut self.activations.delta.slice_mut(rows))?;
        }
        for chunk in self.loss_chunks() {
            let (acts, batch) = (&mut *self.activations, &mut *self.batch);
            let sizes = (chunk.len(), hidden);
            let elements = VEC * chunk.start..VEC * chunk.end;
            let first = chunk.start == 0;
            let loss_rows = batch.loss_rows.slice(chunk);
            let from = (&acts.normed, extent.rows);
            gpu.gather_rows(&mut acts.loss_hidden, from, &loss_rows, hidden)?;
            let matrix = self.weights.value_matrix();
            let Some(mode) = backward else {
                let mut values = batch.values.slice_mut(elements);
                gpu.linear(&mut values, &acts.loss_hidden, &matrix, sizes)?;
                continue;
            };
            let d_values = batch.d_values.slice(elements);
            gpu.linear_bwd_input(&mut acts.d_loss_hidden, &d_values, &matrix, sizes)?;
            let mode = if first { mode } else { WriteMode::Accumulate };
            let to = (&mut self.weights.value_grad(), mode);
            gpu.linear_bwd_weight(to, &d_values, &acts.loss_hidden, sizes)?;
            let to = (&mut acts.delta, extent.rows);
            gpu.scatter_rows(to, &acts.d_loss_hidden, &loss_rows, hidden)?;
        }
        Ok(())
    }

    /// Rows of the loss, in as few chunks as the buffer of logits allows, all of the same size.
    fn loss_chunks(&self) -> Vec<Range<usize>> {
        let loss_rows = self.batch.extent.loss_rows;
        let chunks = loss_rows
            .div_ceil(self.activations.capacity.logits_chunk)
            .max(1);
        let each = loss_rows.div_ceil(chunks).next_multiple_of(CHUNK_MULTIPLE);
        let firsts = (0..loss_rows).step_by(each.max(1));
        firsts
            .map(|first| first..loss_rows.min(first + each))
            .collect()
    }

    /// From the gradient of the last normed rows, in `activations.delta`, to the gradients of all that trains.
    pub(super) fn backward(&mut self, mode: WriteMode) -> Result<(), GpuError> {
        let (gpu, shape, extent) = (self.gpu, self.shape, self.batch.extent);
        self.norm_backward(NormPosition::Final, WriteMode::Overwrite)?;
        for layer in (0..shape.layers).rev() {
            if self.activations.capacity.checkpointing == ActivationCheckpointing::PerLayer {
                self.recompute_input_norm(layer)?;
                self.layer_forward(layer)?;
            }
            self.feed_forward_backward(layer, mode)?;
            self.attention_backward(layer, mode)?;
        }
        if let Some(mut norms) = self.weights.norm_grads() {
            let sums = (&mut norms, mode);
            gpu.sum_partials(sums, &self.activations.norm_partials, shape.hidden)?;
        }
        // Where the embedding is no LM head, nothing has overwritten its gradient yet.
        let no_lm_head = !shape.tied_embeddings || self.weights.layout.has_value_head();
        let first = mode == WriteMode::Overwrite && no_lm_head;
        let Some(mut table) = self.weights.grad(Parameter::Embedding) else {
            return Ok(());
        };
        if first {
            gpu.zero_fill(&mut table)?;
        }
        gpu.embedding_bwd(
            &mut table,
            (&self.activations.d_residual, shape.hidden),
            &self.batch.order,
            (&self.batch.occurrences, extent.distinct_tokens),
        )
    }

    /// A layer's normed input, from its checkpoint.
    fn recompute_input_norm(&mut self, layer: usize) -> Result<(), GpuError> {
        self.gpu.rms_norm_residual_fwd(
            &mut self.activations.normed,
            None,
            &self.activations.layer_inputs[layer],
            None,
            &self.weights.vector(Parameter::AttentionNorm(layer)),
            self.batch.extent.rows,
            self.shape.norm_epsilon,
        )
    }

    fn feed_forward_backward(&mut self, layer: usize, mode: WriteMode) -> Result<(), GpuError> {
        let (gpu, rows) = (self.gpu, self.batch.extent.rows);
        let (down, up) = (Parameter::Down(layer), Parameter::GateUp(layer));
        {
            let (weights, acts) = (&mut *self.weights, &mut *self.activations);
            let slot = acts.layer_slot(layer);
            let gate_up = &mut acts.layers[slot].gate_up;
            let (d_out, hidden) = (&acts.d_residual_bf16, &mut acts.swiglu_out);
            weights.bwd_input(gpu, down, hidden, d_out, (&mut acts.d_lora_inner, rows))?;
            gpu.swiglu_bwd(gate_up, hidden, (rows, self.shape.feed_forward))?;
            let inner = (&acts.down_lora_inner[layer], &acts.d_lora_inner, rows);
            weights.bwd_weight(gpu, down, (d_out, hidden), inner, mode)?;
            let inner = (&mut acts.d_lora_inner, rows);
            weights.bwd_input(gpu, up, &mut acts.delta, gate_up, inner)?;
        }
        self.norm_backward(NormPosition::FeedForward(layer), WriteMode::Accumulate)?;
        let acts = &mut *self.activations;
        let stored = &acts.layers[acts.layer_slot(layer)];
        let inner = (&stored.lora_inner.gate_and_up, &acts.d_lora_inner, rows);
        self.weights
            .bwd_weight(gpu, up, (&stored.gate_up, &acts.delta), inner, mode)
    }

    fn attention_backward(&mut self, layer: usize, mode: WriteMode) -> Result<(), GpuError> {
        let (gpu, shape, rows) = (self.gpu, self.shape, self.batch.extent.rows);
        let (output, qkv) = (Parameter::AttentionOutput(layer), Parameter::Qkv(layer));
        {
            let (weights, acts) = (&mut *self.weights, &mut *self.activations);
            let stored = &acts.layers[acts.layer_slot(layer)];
            let d_out = &acts.d_residual_bf16;
            let (d_attn_out, inner) = (&mut acts.d_attn_out, (&mut acts.d_lora_inner, rows));
            weights.bwd_input(gpu, output, d_attn_out, d_out, inner)?;
            let inner = (
                &stored.lora_inner.attention_output,
                &acts.d_lora_inner,
                rows,
            );
            weights.bwd_weight(gpu, output, (d_out, &stored.attn_out), inner, mode)?;
            gpu.flash_attn_varlen_bwd(
                &mut FlashAttnBwd {
                    d_qkv: &mut acts.d_qkv,
                    delta: &mut acts.attn_delta,
                    d_out: &acts.d_attn_out,
                    out: &stored.attn_out,
                    lse: &stored.lse,
                    qkv: &stored.qkv,
                    blocks: &self.batch.blocks,
                },
                shape,
                rows,
            )?;
            let tables = rope_tables(weights, layer, self.cos_sin, &self.batch.positions);
            let norms = stored
                .qkv_before_norm
                .as_ref()
                .map(|before_norm| (before_norm, &mut acts.head_norm_partials));
            gpu.rope_qk_bwd(&mut acts.d_qkv, norms, &tables, shape, rows)?;
            if shape.head_norms
                && let Some(mut to) = weights.grad(Parameter::HeadNorms(layer))
            {
                let to = (&mut to, mode);
                gpu.sum_partials(to, &acts.head_norm_partials, 2 * shape.head_dim)?;
            }
            if shape.biases.qkv
                && let Some(mut to) = weights.grad(Parameter::QkvBias(layer))
            {
                let width = shape.qkv_width();
                gpu.column_sum_partials(&mut acts.bias_partials, &acts.d_qkv, (rows, width))?;
                gpu.sum_partials((&mut to, mode), &acts.bias_partials, width)?;
            }
            let inner = (&mut acts.d_lora_inner, rows);
            weights.bwd_input(gpu, qkv, &mut acts.delta, &acts.d_qkv, inner)?;
        }
        self.norm_backward(NormPosition::Attention(layer), WriteMode::Accumulate)?;
        let acts = &mut *self.activations;
        let inner = &acts.layers[acts.layer_slot(layer)].lora_inner.qkv;
        let inner = (inner, &acts.d_lora_inner, rows);
        let read = (&acts.d_qkv, &acts.delta);
        self.weights.bwd_weight(gpu, qkv, read, inner, mode)
    }

    /// From the gradient of normed rows, in `activations.delta`, which then holds the normed rows, to that of the residual stream.
    fn norm_backward(&mut self, of: NormPosition, mode: WriteMode) -> Result<(), GpuError> {
        let (shape, rows) = (self.shape, self.batch.extent.rows);
        let acts = &mut *self.activations;
        let (index, residual, norm) = match of {
            NormPosition::Attention(layer) => {
                let norm = Parameter::AttentionNorm(layer);
                (2 * layer, &acts.layer_inputs[layer], norm)
            }
            NormPosition::FeedForward(layer) => {
                let norm = Parameter::FeedForwardNorm(layer);
                (
                    2 * layer + 1,
                    &acts.layers[acts.layer_slot(layer)].mid_residual,
                    norm,
                )
            }
            NormPosition::Final => {
                let last = shape.layers;
                (2 * last, &acts.layer_inputs[last], Parameter::FinalNorm)
            }
        };
        let each = PARTIALS * shape.hidden;
        self.gpu.rms_norm_residual_bwd(
            &mut acts.delta,
            (&mut acts.d_residual, mode),
            &mut acts.d_residual_bf16,
            &mut acts
                .norm_partials
                .slice_mut(index * each..(index + 1) * each),
            residual,
            &self.weights.vector(norm),
            rows,
            shape.norm_epsilon,
        )
    }
}

#[derive(Clone, Copy)]
enum NormPosition {
    Attention(usize),
    FeedForward(usize),
    Final,
}

fn rope_tables<'a>(
    weights: &'a TrainableWeights,
    layer: usize,
    cos_sin: &'a Buffer<f32>,
    positions: &'a Buffer<u32>,
) -> RopeTables<'a> {
    let shape = weights.layout.shape();
    let norms = Parameter::HeadNorms(layer);
    RopeTables {
        bias: shape
            .biases
            .qkv
            .then(|| weights.vector(Parameter::QkvBias(layer))),
        head_norms: shape.head_norms.then(|| weights.vector(norms)),
        cos_sin,
        positions,
    }
}
