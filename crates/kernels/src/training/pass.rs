//! One pass of a batch through a model, forward and back.
//!
//! Every launch goes to the device's stream and none is waited for, so that a pass can be recorded and launched as one.

use super::attention::{Attended, AttendedBack};
use super::batch::DeviceBatch;
use super::layout::{Layout, Parameter};
use super::rows::{Adding, PARTS, Turning};
use super::step::{Parameters, Scored};
use super::work::{Keep, ROUND_CHUNK, Work};
use crate::{Buffer, Gpu, GpuError, View, bf16};

pub(super) struct Pass<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) layout: &'a Layout,
    pub(super) parameters: &'a mut Parameters,
    pub(super) work: &'a mut Work,
    pub(super) batch: &'a mut DeviceBatch,
    pub(super) turns: &'a Buffer<f32>,
}

/// A parameter that matrices are multiplied with.
fn matrix<'a>(of: &'a Parameters, layout: &Layout, which: Parameter) -> View<'a, bf16> {
    of.narrow.slice(layout.place(which))
}

/// One that is read as it is.
fn vector<'a>(of: &'a Parameters, layout: &Layout, which: Parameter) -> View<'a, f32> {
    of.weights.slice(layout.place(which))
}

impl Pass<'_> {
    /// From tokens to normed rows of the last layer, in `work.normed`.
    pub(super) fn forward(&mut self) -> Result<(), GpuError> {
        let (shape, rows) = (self.layout.shape(), self.batch.extent.rows);
        let table = matrix(self.parameters, self.layout, Parameter::Embedding);
        self.gpu.embed(
            &mut self.work.starts[0],
            &table,
            &self.batch.tokens,
            (rows, shape.hidden),
        )?;
        for layer in 0..shape.layers {
            self.start(layer, Parameter::AttentionNorm(layer))?;
            self.inside(layer)?;
            let work = &mut *self.work;
            let kept = &work.kept[work.inside(layer)];
            let wide = shape.feed_forward;
            self.gpu.swiglu(&mut work.gated, &kept.both, (rows, wide))?;
            let down = matrix(self.parameters, self.layout, Parameter::Down(layer));
            self.gpu
                .linear(&mut work.delta, &work.gated, &down, (rows, wide))?;
        }
        self.start(shape.layers, Parameter::FinalNorm)
    }

    /// The residual before a layer, or after the last: what the layer before it gave is added, and all is normed.
    fn start(&mut self, layer: usize, norm: Parameter) -> Result<(), GpuError> {
        let (rows, epsilon) = (self.batch.extent.rows, self.layout.shape().norm_epsilon);
        let weight = vector(self.parameters, self.layout, norm);
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
        let (gpu, layout) = (self.gpu, self.layout);
        let (shape, rows) = (layout.shape(), self.batch.extent.rows);
        let parameters = &*self.parameters;
        let turning = turning(parameters, layout, layer, self.turns, &self.batch.positions);
        let work = &mut *self.work;
        let place = work.inside(layer);
        let kept = &mut work.kept[place];
        let qkv = matrix(parameters, layout, Parameter::Qkv(layer));
        if let Some(raw) = &mut kept.raw {
            gpu.linear(raw, &work.normed, &qkv, (rows, shape.hidden))?;
            gpu.training_turn(raw, Some(&mut kept.qkv), &turning, shape, rows)?;
        } else {
            gpu.linear(&mut kept.qkv, &work.normed, &qkv, (rows, shape.hidden))?;
            gpu.training_turn(&mut kept.qkv, None, &turning, shape, rows)?;
        }
        gpu.packed_attention(
            &mut Attended {
                out: &mut kept.attended,
                log_totals: &mut kept.log_totals,
                qkv: &kept.qkv,
                stretches: &self.batch.stretches,
                count: self.batch.extent.stretches,
            },
            shape,
            rows,
        )?;
        let output = matrix(parameters, layout, Parameter::AttentionOutput(layer));
        let queries = (rows, shape.query_width());
        gpu.linear(&mut work.delta, &kept.attended, &output, queries)?;
        gpu.training_add_norm(
            &mut work.normed,
            Some(&mut kept.middle),
            &work.starts[layer],
            Some(&work.delta),
            &vector(parameters, layout, Parameter::FeedForwardNorm(layer)),
            rows,
            shape.norm_epsilon,
        )?;
        let both = matrix(parameters, layout, Parameter::GateAndUp(layer));
        gpu.linear(&mut kept.both, &work.normed, &both, (rows, shape.hidden))
    }

    /// Log-probabilities and entropies of what was said, from `work.normed`. With `back` also slopes of those rows, in
    /// `work.delta`, and of what makes logits.
    pub(super) fn score(&mut self, back: Option<Adding>) -> Result<(), GpuError> {
        let (gpu, layout) = (self.gpu, self.layout);
        let (shape, extent) = (layout.shape(), self.batch.extent);
        let hidden = shape.hidden;
        let (work, batch) = (&mut *self.work, &mut *self.batch);
        let head = self.parameters.narrow.slice(layout.place(layout.head()));
        if back.is_some() {
            gpu.training_clear(&mut work.delta.slice_mut(..extent.rows * hidden))?;
        }
        // As few chunks as there is room for, all alike.
        let chunks = extent.picked.div_ceil(work.room.chunk).max(1);
        let each = extent.picked.div_ceil(chunks).next_multiple_of(ROUND_CHUNK);
        for first in (0..extent.picked).step_by(each.max(1)) {
            let chunk = first..extent.picked.min(first + each);
            let count = chunk.len();
            let picked = batch.picked.slice(chunk.clone());
            gpu.training_pick(
                &mut work.chunk,
                (&work.normed, extent.rows),
                &picked,
                hidden,
            )?;
            gpu.linear(&mut work.logits, &work.chunk, &head, (count, hidden))?;
            let mut scored = Scored {
                logprobs: batch.logprobs.slice_mut(chunk.clone()),
                entropies: batch.entropies.slice_mut(chunk.clone()),
                logits: &work.logits,
                targets: batch.targets.slice(chunk.clone()),
                vocabulary: shape.vocabulary,
            };
            let Some(adding) = back else {
                gpu.training_score(&mut scored, None)?;
                continue;
            };
            let wanted = batch.wanted.slice(chunk);
            gpu.training_score(&mut scored, Some((&mut work.logit_slopes, wanted)))?;
            let slopes = &work.logit_slopes;
            gpu.linear_back_to_inputs(&mut work.chunk_slopes, slopes, &head, (count, hidden))?;
            let mut to = self
                .parameters
                .gradient
                .slice_mut(layout.place(layout.head()));
            let adding = if first == 0 { adding } else { Adding::OnTop };
            gpu.linear_back_to_weights((&mut to, adding), slopes, &work.chunk, (count, hidden))?;
            let to = (&mut work.delta, extent.rows);
            gpu.training_put_back(to, &work.chunk_slopes, &picked, hidden)?;
        }
        Ok(())
    }

    /// From slopes of the last normed rows, in `work.delta`, to those of all parameters.
    pub(super) fn backward(&mut self, adding: Adding) -> Result<(), GpuError> {
        let (gpu, layout) = (self.gpu, self.layout);
        let (shape, extent) = (layout.shape(), self.batch.extent);
        self.norm_back(NormOf::Last, Adding::Anew)?;
        for layer in (0..shape.layers).rev() {
            if self.work.room.keep == Keep::Starts {
                self.restart(layer)?;
                self.inside(layer)?;
            }
            self.feed_forward_back(layer, adding)?;
            self.attention_back(layer, adding)?;
        }
        let gradient = &mut self.parameters.gradient;
        // All norms lie together, from the start.
        let norms = (2 * shape.layers + 1) * shape.hidden;
        let sums = (&mut gradient.slice_mut(..norms), adding);
        gpu.training_add_parts(sums, &self.work.norm_parts, shape.hidden)?;
        let mut table = gradient.slice_mut(layout.place(Parameter::Embedding));
        if !shape.tied && adding == Adding::Anew {
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
        let norm = Parameter::AttentionNorm(layer);
        self.gpu.training_add_norm(
            &mut self.work.normed,
            None,
            &self.work.starts[layer],
            None,
            &vector(self.parameters, self.layout, norm),
            self.batch.extent.rows,
            self.layout.shape().norm_epsilon,
        )
    }

    fn feed_forward_back(&mut self, layer: usize, adding: Adding) -> Result<(), GpuError> {
        let (gpu, layout) = (self.gpu, self.layout);
        let (shape, rows) = (layout.shape(), self.batch.extent.rows);
        let (hidden, wide) = (shape.hidden, shape.feed_forward);
        {
            let parameters = &mut *self.parameters;
            let work = &mut *self.work;
            let place = work.inside(layer);
            let both = &mut work.kept[place].both;
            let down = matrix(parameters, layout, Parameter::Down(layer));
            gpu.linear_back_to_inputs(&mut work.gated, &work.narrow_slopes, &down, (rows, wide))?;
            gpu.training_swiglu_back(both, &mut work.gated, (rows, wide))?;
            let mut to = parameters
                .gradient
                .slice_mut(layout.place(Parameter::Down(layer)));
            let slopes = &work.narrow_slopes;
            gpu.linear_back_to_weights((&mut to, adding), slopes, &work.gated, (rows, wide))?;
            let up = matrix(parameters, layout, Parameter::GateAndUp(layer));
            gpu.linear_back_to_inputs(&mut work.delta, &*both, &up, (rows, hidden))?;
        }
        self.norm_back(NormOf::FeedForward(layer), Adding::OnTop)?;
        let place = layout.place(Parameter::GateAndUp(layer));
        let mut to = self.parameters.gradient.slice_mut(place);
        let work = &*self.work;
        let both = &work.kept[work.inside(layer)].both;
        gpu.linear_back_to_weights((&mut to, adding), both, &work.delta, (rows, hidden))
    }

    fn attention_back(&mut self, layer: usize, adding: Adding) -> Result<(), GpuError> {
        let (gpu, layout) = (self.gpu, self.layout);
        let (shape, rows) = (layout.shape(), self.batch.extent.rows);
        let (hidden, queries) = (shape.hidden, shape.query_width());
        {
            let parameters = &mut *self.parameters;
            let work = &mut *self.work;
            let kept = &work.kept[work.inside(layer)];
            let slopes = &work.narrow_slopes;
            let output = matrix(parameters, layout, Parameter::AttentionOutput(layer));
            let attended = &mut work.attended_slopes;
            gpu.linear_back_to_inputs(attended, slopes, &output, (rows, queries))?;
            let place = layout.place(Parameter::AttentionOutput(layer));
            let mut to = parameters.gradient.slice_mut(place);
            gpu.linear_back_to_weights((&mut to, adding), slopes, &kept.attended, (rows, queries))?;
            gpu.packed_attention_back(
                &mut AttendedBack {
                    slopes: &mut work.qkv_slopes,
                    agreements: &mut work.agreements,
                    out_slopes: &work.attended_slopes,
                    out: &kept.attended,
                    log_totals: &kept.log_totals,
                    qkv: &kept.qkv,
                    stretches: &self.batch.stretches,
                    by_keys: &self.batch.by_keys,
                    count: self.batch.extent.stretches,
                },
                shape,
                rows,
            )?;
            let positions = &self.batch.positions;
            let turning = turning(parameters, layout, layer, self.turns, positions);
            let norms = kept
                .raw
                .as_ref()
                .map(|raw| (raw, &mut work.head_norm_parts));
            gpu.training_turn_back(&mut work.qkv_slopes, norms, &turning, shape, rows)?;
            if shape.head_norms {
                let place = layout.place(Parameter::HeadNorms(layer));
                let to = (&mut parameters.gradient.slice_mut(place), adding);
                gpu.training_add_parts(to, &work.head_norm_parts, 2 * shape.head_dim)?;
            }
            if shape.biased {
                let width = shape.qkv_width();
                gpu.training_column_parts(&mut work.bias_parts, &work.qkv_slopes, (rows, width))?;
                let place = layout.place(Parameter::Bias(layer));
                let to = (&mut parameters.gradient.slice_mut(place), adding);
                gpu.training_add_parts(to, &work.bias_parts, width)?;
            }
            let qkv = matrix(parameters, layout, Parameter::Qkv(layer));
            gpu.linear_back_to_inputs(&mut work.delta, &work.qkv_slopes, &qkv, (rows, hidden))?;
        }
        self.norm_back(NormOf::Attention(layer), Adding::OnTop)?;
        let place = layout.place(Parameter::Qkv(layer));
        let mut to = self.parameters.gradient.slice_mut(place);
        let work = &*self.work;
        let slopes = &work.qkv_slopes;
        gpu.linear_back_to_weights((&mut to, adding), slopes, &work.delta, (rows, hidden))
    }

    /// From slopes of normed rows, in `work.delta`, which then has the normed rows, to those of the residual.
    fn norm_back(&mut self, of: NormOf, adding: Adding) -> Result<(), GpuError> {
        let (shape, rows) = (self.layout.shape(), self.batch.extent.rows);
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
            &vector(self.parameters, self.layout, norm),
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
    of: &'a Parameters,
    layout: &Layout,
    layer: usize,
    turns: &'a Buffer<f32>,
    positions: &'a Buffer<u32>,
) -> Turning<'a> {
    let shape = layout.shape();
    let norms = Parameter::HeadNorms(layer);
    Turning {
        bias: shape
            .biased
            .then(|| vector(of, layout, Parameter::Bias(layer))),
        norms: shape.head_norms.then(|| vector(of, layout, norms)),
        turns,
        positions,
    }
}
