//! A model that trains on the CPU: forward, backward, optimizer step.

use rayon::prelude::*;

use super::attention::{AttentionOutput, attention, attention_bwd};
use super::cross_entropy::LogitStats;
use super::gemm::{Matrix, Scaling, gemm};
use super::ops::{add, rms_norm, rms_norm_bwd, rope, rope_angles, rope_bwd, swiglu, swiglu_bwd};
use super::real::Real;
use super::weights::{CpuFrozenWeights, Weights};
use crate::training::batch::PackedBatch;
use crate::training::layout::{ModelShape, Parameter};
use crate::training::trainable::{ModelHead, TrainableInit, TrainableLayout};

/// Logits that exist at the same time: 64 MB in `f32`.
const MAX_LOGITS: usize = 1 << 24;
/// Activations are stored for the backward pass if they take no more bytes than this. Else only the input of each layer is, and the
/// rest is recomputed.
const MAX_STORED_BYTES: usize = 1 << 30;

/// A policy or a critic.
#[derive(Debug)]
pub struct CpuTrainableModel<T = f32> {
    pub(super) weights: Weights<T>,
    pub(super) first_moment: Vec<T>,
    pub(super) second_moment: Vec<T>,
    /// What the last forward pass left for its backward pass.
    forward: Option<ForwardPass<T>>,
}

#[derive(Debug)]
struct ForwardPass<T> {
    batch: PackedBatch,
    /// RoPE's cosines and sines by position.
    angles: Vec<Vec<[T; 2]>>,
    /// The residual stream before each layer and after the last.
    layer_inputs: Vec<Vec<T>>,
    /// Of all layers, or of none where they are recomputed.
    layers: Vec<LayerActivations<T>>,
    /// Final hidden states of the rows that enter the loss, normed.
    hidden: Vec<T>,
}

/// What the backward pass reads of a layer beside its input.
#[derive(Debug)]
struct LayerActivations<T> {
    /// What the QKV product left with its bias, where head norms need it.
    qkv_before_norm: Vec<T>,
    qkv: Vec<T>,
    attn_out: Vec<T>,
    lse: Vec<T>,
    /// The residual stream between attention and feed-forward.
    mid_residual: Vec<T>,
    gate_up: Vec<T>,
}

impl<T: Real> CpuTrainableModel<T> {
    pub fn new(init: &TrainableInit<'_, CpuFrozenWeights<T>>, head: ModelHead) -> Self {
        let weights = Weights::new(init, head);
        let len = weights.trainable.len();
        Self {
            weights,
            first_moment: vec![T::ZERO; len],
            second_moment: vec![T::ZERO; len],
            forward: None,
        }
    }

    pub fn layout(&self) -> &TrainableLayout {
        &self.weights.layout
    }

    /// Log-probability and entropy of each loss token, in the precision in which they are computed.
    pub fn score_exact(&mut self, batch: &PackedBatch) -> Vec<[f64; 2]> {
        let forward = self.forward(batch);
        let mut scores = Vec::new();
        self.for_logits(&forward, |_, targets, logits| {
            let rows = logits.par_chunks_exact(logits.len() / targets.len());
            let chunk = rows.zip(targets).map(|(row, target)| {
                let stats = LogitStats::new(row);
                [stats.logprob(row, *target), stats.entropy]
            });
            scores.par_extend(chunk);
        });
        self.forward = Some(forward);
        scores
    }

    /// Adds the gradient of a loss to which the last score was the forward pass.
    pub fn backward_scores_exact(&mut self, upstream: &[[f64; 2]]) {
        let Some(forward) = self.forward.take() else {
            return;
        };
        let mut d_hidden = vec![T::ZERO; forward.hidden.len()];
        let mut d_head = Vec::new();
        self.head_backward(&forward, upstream, &mut d_hidden, &mut d_head, &mut |_| {});
        self.add_head_grad(&d_head);
        self.backward(forward, &d_hidden);
    }

    /// Forward and backward where the upstream gradients are known beforehand: logits are computed once.
    pub(super) fn score_backward_exact(
        &mut self,
        batch: &PackedBatch,
        upstream: &[[f64; 2]],
    ) -> Vec<f64> {
        let forward = self.forward(batch);
        let mut d_hidden = vec![T::ZERO; forward.hidden.len()];
        let (mut d_head, mut logprobs) = (Vec::new(), Vec::new());
        self.head_backward(
            &forward,
            upstream,
            &mut d_hidden,
            &mut d_head,
            &mut |some| {
                logprobs.extend_from_slice(some);
            },
        );
        self.add_head_grad(&d_head);
        self.backward(forward, &d_hidden);
        logprobs
    }

    /// The value before each loss token.
    pub(super) fn values_exact(&mut self, batch: &PackedBatch) -> Vec<f64> {
        let forward = self.forward(batch);
        let (weight, bias) = self.value_head();
        let rows = forward.hidden.chunks_exact(weight.len());
        let values = rows.map(|row| dot(row, weight) + bias).collect();
        self.forward = Some(forward);
        values
    }

    pub(super) fn backward_values_exact(&mut self, upstream: &[f64]) {
        let Some(forward) = self.forward.take() else {
            return;
        };
        let (weight, _) = self.value_head();
        let width = weight.len();
        let mut d_hidden = Vec::with_capacity(forward.hidden.len());
        let mut d_weight = vec![0.0; width];
        for (row, d_value) in forward.hidden.chunks_exact(width).zip(upstream) {
            d_hidden.extend(weight.iter().map(|w| T::from_f64(w.to_f64() * d_value)));
            for (to, x) in d_weight.iter_mut().zip(row) {
                *to += d_value * x.to_f64();
            }
        }
        let bias = self.weights.layout.value_bias();
        for (to, from) in self.weights.grad.iter_mut().zip(d_weight) {
            *to += T::from_f64(from);
        }
        self.weights.grad[bias] += T::from_f64(upstream.iter().sum());
        self.backward(forward, &d_hidden);
    }

    /// Replaces what trains, in the order of the layout.
    pub fn set_trainable(&mut self, values: &[T]) {
        self.weights.trainable.copy_from_slice(values);
    }

    /// The accumulated gradient, in the order of the layout.
    pub fn grad_exact(&mut self) -> &[T] {
        self.weights.mask_lora_grads();
        &self.weights.grad
    }

    /// The first row of the value head's matrix, and its bias.
    fn value_head(&self) -> (&[T], f64) {
        let layout = &self.weights.layout;
        let weight = &self.weights.trainable[..layout.shape().hidden];
        (weight, self.weights.trainable[layout.value_bias()].to_f64())
    }

    fn forward(&self, batch: &PackedBatch) -> ForwardPass<T> {
        let shape = self.weights.layout.shape();
        let longest = batch.lengths.iter().max().copied().unwrap_or(0);
        let mut forward = ForwardPass {
            angles: (0..longest)
                .map(|position| rope_angles(position, &shape.rope_frequencies))
                .collect(),
            layer_inputs: vec![self.embed(batch)],
            layers: Vec::new(),
            hidden: Vec::new(),
            batch: batch.clone(),
        };
        let stores_layers = self.stored_bytes(batch.rows()) <= MAX_STORED_BYTES;
        for layer in 0..shape.layers {
            let activations = self.layer_forward(layer, &forward);
            let mut output = activations.mid_residual.clone();
            let hidden = swiglu(&activations.gate_up);
            add(
                &mut output,
                &self.weights.linear(Parameter::Down(layer), &hidden),
            );
            forward.layer_inputs.push(output);
            if stores_layers {
                forward.layers.push(activations);
            }
        }
        let last = self.gather(&forward);
        let norm = self.weights.parameter(Parameter::FinalNorm);
        forward.hidden = rms_norm(&last, norm, shape.norm_epsilon);
        forward
    }

    /// Bytes of the activations of so many rows.
    fn stored_bytes(&self, rows: usize) -> usize {
        let shape = self.weights.layout.shape();
        let before_norm = if shape.head_norms {
            shape.qkv_width()
        } else {
            0
        };
        let row = before_norm
            + shape.qkv_width()
            + shape.query_width()
            + shape.heads
            + shape.hidden
            + 2 * shape.feed_forward;
        shape.layers * rows * row * size_of::<T>()
    }

    fn embed(&self, batch: &PackedBatch) -> Vec<T> {
        let hidden = self.weights.layout.shape().hidden;
        let table = self.weights.parameter(Parameter::Embedding);
        let rows = batch.tokens.iter();
        rows.flat_map(|token| &table[*token as usize * hidden..][..hidden])
            .copied()
            .collect()
    }

    /// The last residual stream of the rows that enter the loss.
    fn gather(&self, forward: &ForwardPass<T>) -> Vec<T> {
        let hidden = self.weights.layout.shape().hidden;
        let rows = forward.batch.loss_targets.iter();
        let Some(last) = forward.layer_inputs.last() else {
            return Vec::new();
        };
        rows.flat_map(|(row, _)| &last[*row as usize * hidden..][..hidden])
            .copied()
            .collect()
    }

    fn layer_forward(&self, layer: usize, forward: &ForwardPass<T>) -> LayerActivations<T> {
        let (weights, shape) = (&self.weights, self.weights.layout.shape());
        let input = &forward.layer_inputs[layer];
        let epsilon = shape.norm_epsilon;
        let norm = weights.parameter(Parameter::AttentionNorm(layer));
        let mut qkv = weights.linear(Parameter::Qkv(layer), &rms_norm(input, norm, epsilon));
        let qkv_before_norm = if shape.head_norms {
            qkv.clone()
        } else {
            Vec::new()
        };
        let head_norms = self.head_norms(layer);
        for_qk_heads(shape, forward, &mut qkv, |head, values, angles| {
            if let Some(norms) = head_norms {
                let norm = head_norm(norms, shape, head);
                values.copy_from_slice(&rms_norm(values, norm, epsilon));
            }
            rope(values, angles);
        });
        let (attn_out, lse) = attention(&qkv, shape.attention(), &forward.batch.lengths);
        let mut mid_residual = input.clone();
        add(
            &mut mid_residual,
            &weights.linear(Parameter::AttentionOutput(layer), &attn_out),
        );
        let norm = weights.parameter(Parameter::FeedForwardNorm(layer));
        let normed = rms_norm(&mid_residual, norm, epsilon);
        LayerActivations {
            gate_up: weights.linear(Parameter::GateUp(layer), &normed),
            qkv_before_norm,
            qkv,
            attn_out,
            lse,
            mid_residual,
        }
    }

    /// Norms of the query heads, then of the key heads, where there are any.
    fn head_norms(&self, layer: usize) -> Option<&[T]> {
        let has_norms = self.weights.layout.shape().head_norms;
        has_norms.then(|| self.weights.parameter(Parameter::HeadNorms(layer)))
    }

    /// Calls with the first row, targets and logits of each chunk of the rows that enter the loss.
    fn for_logits(
        &self,
        forward: &ForwardPass<T>,
        mut visit: impl FnMut(usize, &[usize], &mut [T]),
    ) {
        let shape = self.weights.layout.shape();
        let head = self.weights.parameter(self.weights.layout.base().lm_head());
        let head = Matrix::new(head, shape.hidden);
        let targets: Vec<usize> = forward.batch.targets().collect();
        let rows_at_once = (MAX_LOGITS / shape.vocabulary).max(1);
        let hidden = forward.hidden.chunks(rows_at_once * shape.hidden);
        for (chunk, (targets, hidden)) in targets.chunks(rows_at_once).zip(hidden).enumerate() {
            let mut logits = vec![T::ZERO; targets.len() * shape.vocabulary];
            let hidden = Matrix::new(hidden, shape.hidden);
            gemm(
                &mut logits,
                shape.vocabulary,
                Scaling::OVERWRITE,
                hidden,
                head.t(),
            );
            visit(chunk * rows_at_once, targets, &mut logits);
        }
    }

    /// Gradients of hidden states, and of the LM head where it trains. `heard` gets log-probabilities chunk by chunk.
    fn head_backward(
        &self,
        forward: &ForwardPass<T>,
        upstream: &[[f64; 2]],
        d_hidden: &mut [T],
        d_head: &mut Vec<T>,
        heard: &mut dyn FnMut(&[f64]),
    ) {
        let shape = self.weights.layout.shape();
        let (width, vocabulary) = (shape.hidden, shape.vocabulary);
        let parameter = self.weights.layout.base().lm_head();
        let head = Matrix::new(self.weights.parameter(parameter), width);
        if self.weights.layout.parameter(parameter).is_some() {
            d_head.resize(vocabulary * width, T::ZERO);
        }
        self.for_logits(forward, |first, targets, logits| {
            let rows = logits.par_chunks_exact_mut(vocabulary).zip(targets);
            let upstream = &upstream[first..first + targets.len()];
            let logprobs: Vec<f64> = rows
                .zip(upstream)
                .map(|((row, target), upstream)| {
                    let stats = LogitStats::new(row);
                    let logprob = stats.logprob(row, *target);
                    stats.backward(row, *target, *upstream);
                    logprob
                })
                .collect();
            heard(&logprobs);
            let d_logits = Matrix::new(logits, vocabulary);
            let range = first * width..(first + targets.len()) * width;
            gemm(
                &mut d_hidden[range.clone()],
                width,
                Scaling::OVERWRITE,
                d_logits,
                head,
            );
            if !d_head.is_empty() {
                let hidden = Matrix::new(&forward.hidden[range], width);
                gemm(d_head, width, Scaling::ACCUMULATE, d_logits.t(), hidden);
            }
        });
    }

    fn add_head_grad(&mut self, d_head: &[T]) {
        let head = self.weights.layout.base().lm_head();
        self.weights.add_grad(head, d_head);
    }

    /// From the gradient of the final hidden states to the gradients of all that trains.
    fn backward(&mut self, mut forward: ForwardPass<T>, d_hidden: &[T]) {
        let shape = self.weights.layout.shape().clone();
        let (hidden, epsilon) = (shape.hidden, shape.norm_epsilon);
        let last = self.gather(&forward);
        let norm = self.weights.parameter(Parameter::FinalNorm);
        let (d_last, d_norm) = rms_norm_bwd(&last, norm, epsilon, d_hidden);
        self.weights.add_grad(Parameter::FinalNorm, &d_norm);
        let mut d_residual = vec![T::ZERO; forward.batch.rows() * hidden];
        let rows = forward.batch.loss_targets.iter();
        for ((row, _), d_row) in rows.zip(d_last.chunks_exact(hidden)) {
            d_residual[*row as usize * hidden..][..hidden].copy_from_slice(d_row);
        }
        for layer in (0..shape.layers).rev() {
            forward.layer_inputs.truncate(layer + 1);
            let activations = match forward.layers.pop() {
                Some(stored) => stored,
                None => self.layer_forward(layer, &forward),
            };
            self.feed_forward_backward(layer, &activations, &mut d_residual);
            self.attention_backward(layer, &forward, &activations, &mut d_residual);
        }
        if let Some(d_table) = self.weights.grad_mut(Parameter::Embedding) {
            let rows = forward.batch.tokens.iter();
            for (token, d_row) in rows.zip(d_residual.chunks_exact(hidden)) {
                add(&mut d_table[*token as usize * hidden..][..hidden], d_row);
            }
        }
    }

    fn feed_forward_backward(
        &mut self,
        layer: usize,
        activations: &LayerActivations<T>,
        d_residual: &mut [T],
    ) {
        let (gate_up, mid_residual) = (&activations.gate_up, &activations.mid_residual);
        let weights = &mut self.weights;
        let d_hidden = weights.linear_bwd(Parameter::Down(layer), &swiglu(gate_up), d_residual);
        let d_gate_up = swiglu_bwd(gate_up, &d_hidden);
        let norm = Parameter::FeedForwardNorm(layer);
        self.normed_linear_backward(
            Parameter::GateUp(layer),
            norm,
            mid_residual,
            &d_gate_up,
            d_residual,
        );
    }

    fn attention_backward(
        &mut self,
        layer: usize,
        forward: &ForwardPass<T>,
        activations: &LayerActivations<T>,
        d_residual: &mut [T],
    ) {
        let shape = self.weights.layout.shape().clone();
        let output = Parameter::AttentionOutput(layer);
        let d_attn_out = self
            .weights
            .linear_bwd(output, &activations.attn_out, d_residual);
        let output = AttentionOutput {
            out: &activations.attn_out,
            lse: &activations.lse,
        };
        let lengths = &forward.batch.lengths;
        let mut d_qkv = attention_bwd(
            &activations.qkv,
            shape.attention(),
            lengths,
            &output,
            &d_attn_out,
        );
        for_qk_heads(&shape, forward, &mut d_qkv, |_, d_head, angles| {
            rope_bwd(d_head, angles);
        });
        self.head_norm_backward(layer, activations, &mut d_qkv);
        let (qkv, norm) = (Parameter::Qkv(layer), Parameter::AttentionNorm(layer));
        let input = &forward.layer_inputs[layer];
        self.normed_linear_backward(qkv, norm, input, &d_qkv, d_residual);
    }

    /// Replaces gradients of normed heads by those of what the QKV product left.
    fn head_norm_backward(
        &mut self,
        layer: usize,
        activations: &LayerActivations<T>,
        d_qkv: &mut [T],
    ) {
        let shape = self.weights.layout.shape();
        let Some(norms) = self.head_norms(layer) else {
            return;
        };
        let (width, dim) = (shape.qkv_width(), shape.head_dim);
        let mut d_norms = vec![T::ZERO; 2 * dim];
        let rows = d_qkv.chunks_exact_mut(width);
        for (d_row, row) in rows.zip(activations.qkv_before_norm.chunks_exact(width)) {
            let heads = d_row.chunks_exact_mut(dim).zip(row.chunks_exact(dim));
            for (head, (d_head, x)) in heads.take(shape.heads + shape.kv_heads).enumerate() {
                let norm = head_norm(norms, shape, head);
                let (d_x, d_norm) = rms_norm_bwd(x, norm, shape.norm_epsilon, d_head);
                d_head.copy_from_slice(&d_x);
                let start = if head < shape.heads { 0 } else { dim };
                add(&mut d_norms[start..start + dim], &d_norm);
            }
        }
        self.weights.add_grad(Parameter::HeadNorms(layer), &d_norms);
    }

    /// Backward of a product that reads the normed residual stream; adds to the residual stream's gradient.
    fn normed_linear_backward(
        &mut self,
        linear: Parameter,
        norm: Parameter,
        residual: &[T],
        d_out: &[T],
        d_residual: &mut [T],
    ) {
        let epsilon = self.weights.layout.shape().norm_epsilon;
        let normed = rms_norm(residual, self.weights.parameter(norm), epsilon);
        let d_normed = self.weights.linear_bwd(linear, &normed, d_out);
        let weight = self.weights.parameter(norm);
        let (d_rows, d_norm) = rms_norm_bwd(residual, weight, epsilon, &d_normed);
        self.weights.add_grad(norm, &d_norm);
        add(d_residual, &d_rows);
    }
}

/// The norm of a query or key head.
fn head_norm<'a, T>(norms: &'a [T], shape: &ModelShape, head: usize) -> &'a [T] {
    let (of_queries, of_keys) = norms.split_at(shape.head_dim);
    if head < shape.heads {
        of_queries
    } else {
        of_keys
    }
}

/// Calls for each query head and key head of each row with its index, its values and its position's angles.
fn for_qk_heads<T: Real>(
    shape: &ModelShape,
    forward: &ForwardPass<T>,
    qkv: &mut [T],
    each: impl Fn(usize, &mut [T], &[[T; 2]]) + Sync,
) {
    let rows = qkv.par_chunks_exact_mut(shape.qkv_width());
    let rows = rows.zip(forward.batch.positions());
    rows.for_each(|(values, position)| {
        let heads = values.chunks_exact_mut(shape.head_dim).enumerate();
        for (head, values) in heads.take(shape.heads + shape.kv_heads) {
            each(head, values, &forward.angles[position]);
        }
    });
}

fn dot<T: Real>(a: &[T], b: &[T]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a.to_f64() * b.to_f64()).sum()
}
