//! One pass of a batch through a model, forward and back.
//!
//! Every launch goes to the device's stream and none is waited for, so that a pass can be recorded and launched as one.

use std::ops::Range;

use super::attention::{Attended, AttendedBack};
use super::batch::DeviceBatch;
use super::layout::{Parameter, Shape};
use super::learnt::Learnt;
use super::rows::{Adding, PARTS, Turning};
use super::step::Scored;
use super::work::{Keep, ROUND_CHUNK, Work};
use crate::{AT_ONCE, Buffer, Gpu, GpuError};

pub(super) struct Pass<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) shape: &'a Shape,
    pub(super) learnt: &'a mut Learnt,
    pub(super) work: &'a mut Work,
    pub(super) batch: &'a mut DeviceBatch,
    pub(super) turns: &'a Buffer<f32>,
}

impl Pass<'_> {
    /// From tokens to normed rows of the last layer, in `work.normed`.
    pub(super) fn forward(&mut self) -> Result<(), GpuError> {
        let (gpu, shape, rows) = (self.gpu, self.shape, self.batch.extent.rows);
        gpu.embed(
            &mut self.work.starts[0],
            &self.learnt.matrix(Parameter::Embedding),
            &self.batch.tokens,
            (rows, shape.hidden),
        )?;
        for layer in 0..shape.layers {
            self.start(layer, Parameter::AttentionNorm(layer))?;
            self.inside(layer)?;
            let work = &mut *self.work;
            let kept = &work.kept[work.inside(layer)];
            gpu.swiglu(&mut work.gated, &kept.both, (rows, shape.feed_forward))?;
            let (down, inner) = (Parameter::Down(layer), &mut work.down_inner[layer]);
            self.learnt
                .forward(gpu, down, &mut work.delta, &work.gated, (inner, rows))?;
        }
        self.start(shape.layers, Parameter::FinalNorm)
    }

    /// The residual before a layer, or after the last: what the layer before it gave is added, and all is normed.
    fn start(&mut self, layer: usize, norm: Parameter) -> Result<(), GpuError> {
        let (rows, epsilon) = (self.batch.extent.rows, self.shape.norm_epsilon);
        let weight = self.learnt.vector(norm);
        let work = &mut *self.work;
        let normed = &mut work.normed;
        if layer == 0 {
            let start = &work.starts[0];
            return self
                .gpu
                .training_add_norm(normed, None, start, None, &weight, rows, epsilon);
        }
        let before = match work.room.keep {
            Keep::All => layer - 1,
            Keep::Starts => 0,
        };
        let (start, middle) = (&mut work.starts[layer], &work.kept[before].middle);
        let delta = Some(&work.delta);
        self.gpu
            .training_add_norm(normed, Some(start), middle, delta, &weight, rows, epsilon)
    }

    /// From a layer's normed rows to its gates and their factors: all that the way back reads.
    fn inside(&mut self, layer: usize) -> Result<(), GpuError> {
        let (gpu, shape, rows) = (self.gpu, self.shape, self.batch.extent.rows);
        let learnt = &*self.learnt;
        let turning = turning(learnt, layer, self.turns, &self.batch.positions);
        let work = &mut *self.work;
        let place = work.inside(layer);
        let kept = &mut work.kept[place];
        let qkv = Parameter::Qkv(layer);
        let inner = (&mut kept.inner.qkv, rows);
        if let Some(raw) = &mut kept.raw {
            learnt.forward(gpu, qkv, raw, &work.normed, inner)?;
            gpu.training_turn(raw, Some(&mut kept.qkv), &turning, shape, rows)?;
        } else {
            learnt.forward(gpu, qkv, &mut kept.qkv, &work.normed, inner)?;
            gpu.training_turn(&mut kept.qkv, None, &turning, shape, rows)?;
        }
        gpu.packed_attention(
            &mut Attended {
                out: &mut kept.attended,
                log_totals: &mut kept.log_totals,
                qkv: &kept.qkv,
                stretches: &self.batch.stretches,
            },
            shape,
            rows,
        )?;
        let output = Parameter::AttentionOutput(layer);
        let inner = (&mut kept.inner.attention_output, rows);
        learnt.forward(gpu, output, &mut work.delta, &kept.attended, inner)?;
        gpu.training_add_norm(
            &mut work.normed,
            Some(&mut kept.middle),
            &work.starts[layer],
            Some(&work.delta),
            &learnt.vector(Parameter::FeedForwardNorm(layer)),
            rows,
            shape.norm_epsilon,
        )?;
        let both = Parameter::GateAndUp(layer);
        let inner = (&mut kept.inner.gate_and_up, rows);
        learnt.forward(gpu, both, &mut kept.both, &work.normed, inner)
    }

    /// Log-probabilities and entropies of what was said, from `work.normed`. With `back` also slopes of those rows, in
    /// `work.delta`, and of what makes logits.
    pub(super) fn score(&mut self, back: Option<Adding>) -> Result<(), GpuError> {
        let (gpu, extent) = (self.gpu, self.batch.extent);
        let (hidden, vocabulary) = (self.shape.hidden, self.shape.vocabulary);
        let head = self.learnt.layout.head();
        if back.is_some() {
            let rows = ..extent.rows * hidden;
            gpu.training_clear(&mut self.work.delta.slice_mut(rows))?;
        }
        for chunk in self.chunks() {
            let (work, batch) = (&mut *self.work, &mut *self.batch);
            let (first, count) = (chunk.start, chunk.len());
            let picked = batch.picked.slice(chunk.clone());
            let from = (&work.normed, extent.rows);
            gpu.training_pick(&mut work.chunk, from, &picked, hidden)?;
            let matrix = self.learnt.matrix(head);
            gpu.linear(&mut work.logits, &work.chunk, &matrix, (count, hidden))?;
            let mut scored = Scored {
                logprobs: batch.logprobs.slice_mut(chunk.clone()),
                entropies: batch.entropies.slice_mut(chunk.clone()),
                logits: &work.logits,
                targets: batch.targets.slice(chunk.clone()),
                vocabulary,
            };
            let Some(adding) = back else {
                gpu.training_score(&mut scored, None)?;
                continue;
            };
            let wanted = batch.wanted.slice(chunk);
            gpu.training_score(&mut scored, Some((&mut work.logit_slopes, wanted)))?;
            let slopes = &work.logit_slopes;
            gpu.linear_back_to_inputs(&mut work.chunk_slopes, slopes, &matrix, (count, hidden))?;
            let adding = if first == 0 { adding } else { Adding::OnTop };
            if let Some(mut to) = self.learnt.gradient(head) {
                let to = (&mut to, adding);
                gpu.linear_back_to_weights(to, slopes, &work.chunk, (count, hidden))?;
            }
            let to = (&mut work.delta, extent.rows);
            gpu.training_put_back(to, &work.chunk_slopes, &picked, hidden)?;
        }
        Ok(())
    }

    /// Values before what was said, without the bias, from `work.normed`. With `back` instead slopes of those rows, in
    /// `work.delta`, and of what makes values.
    pub(super) fn value(&mut self, back: Option<Adding>) -> Result<(), GpuError> {
        let (gpu, extent, hidden) = (self.gpu, self.batch.extent, self.shape.hidden);
        if back.is_some() {
            let rows = ..extent.rows * hidden;
            gpu.training_clear(&mut self.work.delta.slice_mut(rows))?;
        }
        for chunk in self.chunks() {
            let (work, batch) = (&mut *self.work, &mut *self.batch);
            let sizes = (chunk.len(), hidden);
            let numbers = AT_ONCE * chunk.start..AT_ONCE * chunk.end;
            let first = chunk.start == 0;
            let picked = batch.picked.slice(chunk);
            let from = (&work.normed, extent.rows);
            gpu.training_pick(&mut work.chunk, from, &picked, hidden)?;
            let matrix = self.learnt.value_matrix();
            let Some(adding) = back else {
                let mut values = batch.values.slice_mut(numbers);
                gpu.linear(&mut values, &work.chunk, &matrix, sizes)?;
                continue;
            };
            let slopes = batch.value_slopes.slice(numbers);
            gpu.linear_back_to_inputs(&mut work.chunk_slopes, &slopes, &matrix, sizes)?;
            let adding = if first { adding } else { Adding::OnTop };
            let to = (&mut self.learnt.value_gradient(), adding);
            gpu.linear_back_to_weights(to, &slopes, &work.chunk, sizes)?;
            let to = (&mut work.delta, extent.rows);
            gpu.training_put_back(to, &work.chunk_slopes, &picked, hidden)?;
        }
        Ok(())
    }

    /// What was said, as few chunks as there is room for, all alike.
    fn chunks(&self) -> Vec<Range<usize>> {
        let picked = self.batch.extent.picked;
        let chunks = picked.div_ceil(self.work.room.chunk).max(1);
        let each = picked.div_ceil(chunks).next_multiple_of(ROUND_CHUNK);
        let firsts = (0..picked).step_by(each.max(1));
        firsts
            .map(|first| first..picked.min(first + each))
            .collect()
    }

    /// From slopes of the last normed rows, in `work.delta`, to those of all that learns.
    pub(super) fn backward(&mut self, adding: Adding) -> Result<(), GpuError> {
        let (gpu, shape, extent) = (self.gpu, self.shape, self.batch.extent);
        self.norm_back(NormOf::Last, Adding::Anew)?;
        for layer in (0..shape.layers).rev() {
            if self.work.room.keep == Keep::Starts {
                self.restart(layer)?;
                self.inside(layer)?;
            }
            self.feed_forward_back(layer, adding)?;
            self.attention_back(layer, adding)?;
        }
        if let Some(mut norms) = self.learnt.norm_gradients() {
            let sums = (&mut norms, adding);
            gpu.training_add_parts(sums, &self.work.norm_parts, shape.hidden)?;
        }
        // Its own slopes are the first where it makes no logits.
        let fresh = adding == Adding::Anew && (!shape.tied || self.learnt.makes_values());
        let Some(mut table) = self.learnt.gradient(Parameter::Embedding) else {
            return Ok(());
        };
        if fresh {
            gpu.training_clear(&mut table)?;
        }
        gpu.training_embed_back(
            &mut table,
            (&self.work.slopes, shape.hidden),
            &self.batch.order,
            (&self.batch.uses, extent.uses),
        )
    }

    /// A layer's normed rows once more.
    fn restart(&mut self, layer: usize) -> Result<(), GpuError> {
        self.gpu.training_add_norm(
            &mut self.work.normed,
            None,
            &self.work.starts[layer],
            None,
            &self.learnt.vector(Parameter::AttentionNorm(layer)),
            self.batch.extent.rows,
            self.shape.norm_epsilon,
        )
    }

    fn feed_forward_back(&mut self, layer: usize, adding: Adding) -> Result<(), GpuError> {
        let (gpu, rows, wide) = (self.gpu, self.batch.extent.rows, self.shape.feed_forward);
        let (down, up) = (Parameter::Down(layer), Parameter::GateAndUp(layer));
        {
            let (learnt, work) = (&mut *self.learnt, &mut *self.work);
            let place = work.inside(layer);
            let both = &mut work.kept[place].both;
            let (slopes, gated) = (&work.narrow_slopes, &mut work.gated);
            learnt.back_to_inputs(gpu, down, gated, slopes, (&mut work.inner_slopes, rows))?;
            gpu.training_swiglu_back(both, gated, (rows, wide))?;
            let inner = (&work.down_inner[layer], &work.inner_slopes, rows);
            learnt.back_to_weights(gpu, down, (slopes, gated), inner, adding)?;
            let inner = (&mut work.inner_slopes, rows);
            learnt.back_to_inputs(gpu, up, &mut work.delta, both, inner)?;
        }
        self.norm_back(NormOf::FeedForward(layer), Adding::OnTop)?;
        let work = &mut *self.work;
        let kept = &work.kept[work.inside(layer)];
        let inner = (&kept.inner.gate_and_up, &work.inner_slopes, rows);
        self.learnt
            .back_to_weights(gpu, up, (&kept.both, &work.delta), inner, adding)
    }

    fn attention_back(&mut self, layer: usize, adding: Adding) -> Result<(), GpuError> {
        let (gpu, shape, rows) = (self.gpu, self.shape, self.batch.extent.rows);
        let (output, qkv) = (Parameter::AttentionOutput(layer), Parameter::Qkv(layer));
        {
            let (learnt, work) = (&mut *self.learnt, &mut *self.work);
            let kept = &work.kept[work.inside(layer)];
            let slopes = &work.narrow_slopes;
            let (attended, inner) = (&mut work.attended_slopes, (&mut work.inner_slopes, rows));
            learnt.back_to_inputs(gpu, output, attended, slopes, inner)?;
            let inner = (&kept.inner.attention_output, &work.inner_slopes, rows);
            learnt.back_to_weights(gpu, output, (slopes, &kept.attended), inner, adding)?;
            gpu.packed_attention_back(
                &mut AttendedBack {
                    slopes: &mut work.qkv_slopes,
                    agreements: &mut work.agreements,
                    out_slopes: &work.attended_slopes,
                    out: &kept.attended,
                    log_totals: &kept.log_totals,
                    qkv: &kept.qkv,
                    stretches: &self.batch.stretches,
                },
                shape,
                rows,
            )?;
            let turning = turning(learnt, layer, self.turns, &self.batch.positions);
            let norms = kept
                .raw
                .as_ref()
                .map(|raw| (raw, &mut work.head_norm_parts));
            gpu.training_turn_back(&mut work.qkv_slopes, norms, &turning, shape, rows)?;
            if shape.head_norms
                && let Some(mut to) = learnt.gradient(Parameter::HeadNorms(layer))
            {
                let to = (&mut to, adding);
                gpu.training_add_parts(to, &work.head_norm_parts, 2 * shape.head_dim)?;
            }
            if shape.biased
                && let Some(mut to) = learnt.gradient(Parameter::Bias(layer))
            {
                let width = shape.qkv_width();
                gpu.training_column_parts(&mut work.bias_parts, &work.qkv_slopes, (rows, width))?;
                gpu.training_add_parts((&mut to, adding), &work.bias_parts, width)?;
            }
            let inner = (&mut work.inner_slopes, rows);
            learnt.back_to_inputs(gpu, qkv, &mut work.delta, &work.qkv_slopes, inner)?;
        }
        self.norm_back(NormOf::Attention(layer), Adding::OnTop)?;
        let work = &mut *self.work;
        let inner = &work.kept[work.inside(layer)].inner.qkv;
        let inner = (inner, &work.inner_slopes, rows);
        let read = (&work.qkv_slopes, &work.delta);
        self.learnt.back_to_weights(gpu, qkv, read, inner, adding)
    }

    /// From slopes of normed rows, in `work.delta`, which then has the normed rows, to those of the residual.
    fn norm_back(&mut self, of: NormOf, adding: Adding) -> Result<(), GpuError> {
        let (shape, rows) = (self.shape, self.batch.extent.rows);
        let work = &mut *self.work;
        let (number, residual, norm) = match of {
            NormOf::Attention(layer) => {
                let norm = Parameter::AttentionNorm(layer);
                (2 * layer, &work.starts[layer], norm)
            }
            NormOf::FeedForward(layer) => {
                let norm = Parameter::FeedForwardNorm(layer);
                (2 * layer + 1, &work.kept[work.inside(layer)].middle, norm)
            }
            NormOf::Last => {
                let last = shape.layers;
                (2 * last, &work.starts[last], Parameter::FinalNorm)
            }
        };
        let each = PARTS * shape.hidden;
        self.gpu.training_norm_back(
            &mut work.delta,
            (&mut work.slopes, adding),
            &mut work.narrow_slopes,
            &mut work
                .norm_parts
                .slice_mut(number * each..(number + 1) * each),
            residual,
            &self.learnt.vector(norm),
            rows,
            shape.norm_epsilon,
        )
    }
}

#[derive(Clone, Copy)]
enum NormOf {
    Attention(usize),
    FeedForward(usize),
    Last,
}

fn turning<'a>(
    of: &'a Learnt,
    layer: usize,
    turns: &'a Buffer<f32>,
    positions: &'a Buffer<u32>,
) -> Turning<'a> {
    let shape = of.layout.shape();
    let norms = Parameter::HeadNorms(layer);
    Turning {
        bias: shape.biased.then(|| of.vector(Parameter::Bias(layer))),
        norms: shape.head_norms.then(|| of.vector(norms)),
        turns,
        positions,
    }
}
