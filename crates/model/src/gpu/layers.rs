//! Weights on a device, and one pass of rows through them.

use rayon::prelude::*;
use warpsmith_kernels::{Buffer, Gpu, GpuError, KvCacheLayer, QkvRope, VEC, bf16};

use super::kv_slots::KvSlots;
use super::work::Work;
use crate::matrix::Linear;
use crate::{HostTensor, LayerWeights, ModelConfig, ModelError, Weights};

pub(super) struct DeviceWeights {
    embedding: Buffer<bf16>,
    layers: Vec<DeviceLayer>,
    final_norm: Buffer<f32>,
    /// Absent where the embedding serves again.
    output: Option<Buffer<bf16>>,
    frequencies: Buffer<f32>,
}

/// Matrices that read the same rows are one.
struct DeviceLayer {
    attention_norm: Buffer<f32>,
    qkv: Buffer<bf16>,
    bias: Option<Buffer<f32>>,
    head_norms: Option<(Buffer<f32>, Buffer<f32>)>,
    attention_output: Buffer<bf16>,
    feed_forward_norm: Buffer<f32>,
    /// Eight gates, their eight factors, and so on.
    gate_and_up: Buffer<bf16>,
    down: Buffer<bf16>,
}

impl DeviceWeights {
    pub(super) fn upload(gpu: &Gpu, weights: &Weights) -> Result<Self, ModelError> {
        let mut layers = Vec::with_capacity(weights.layers.len());
        for some in weights.layers.chunks(TOGETHER) {
            let made: Vec<Matrices> = some.par_iter().map(Matrices::of).collect();
            for (layer, made) in some.iter().zip(made) {
                layers.push(DeviceLayer {
                    attention_norm: gpu.upload(&layer.attention_norm)?,
                    qkv: gpu.upload(&made.qkv)?,
                    bias: biases(gpu, &[&layer.query, &layer.key, &layer.value])?,
                    head_norms: match &layer.head_norms {
                        Some(norms) => Some((gpu.upload(&norms.query)?, gpu.upload(&norms.key)?)),
                        None => None,
                    },
                    attention_output: gpu.upload(&made.attention_output)?,
                    feed_forward_norm: gpu.upload(&layer.feed_forward_norm)?,
                    gate_and_up: gpu.upload(&made.gate_and_up)?,
                    down: gpu.upload(&made.down)?,
                });
            }
        }
        Ok(Self {
            embedding: gpu.upload(&narrow(&weights.embedding.to_f32()))?,
            layers,
            final_norm: gpu.upload(&weights.final_norm)?,
            output: match &weights.output {
                Some(output) => Some(gpu.upload(&narrow(&output.to_f32()))?),
                None => None,
            },
            frequencies: gpu.upload(&weights.config.frequencies())?,
        })
    }

    /// What makes logits.
    fn head(&self) -> &Buffer<bf16> {
        self.output.as_ref().unwrap_or(&self.embedding)
    }
}

fn narrow(numbers: &HostTensor) -> Vec<bf16> {
    let numbers = numbers.data().par_iter();
    numbers.map(|one| bf16::from_f32(*one)).collect()
}

/// Layers that are made ready at the same time: each takes some hundred megabytes on the way.
const TOGETHER: usize = 16;

/// A layer's, as the device has them.
struct Matrices {
    qkv: Vec<bf16>,
    attention_output: Vec<bf16>,
    gate_and_up: Vec<bf16>,
    down: Vec<bf16>,
}

impl Matrices {
    fn of(layer: &LayerWeights) -> Self {
        Self {
            qkv: below_each_other(&[&layer.query, &layer.key, &layer.value]),
            attention_output: below_each_other(&[&layer.attention_output]),
            gate_and_up: interleaved(&layer.gate, &layer.up),
            down: below_each_other(&[&layer.down]),
        }
    }
}

fn below_each_other(linears: &[&Linear]) -> Vec<bf16> {
    let linears = linears.iter();
    linears
        .flat_map(|linear| narrow(&linear.merged_weight()))
        .collect()
}

/// Some rows of one, as many of the other, and so on: what belongs together is made together.
fn interleaved(one: &Linear, other: &Linear) -> Vec<bf16> {
    let (left, right) = (narrow(&one.merged_weight()), narrow(&other.merged_weight()));
    let some = VEC * (left.len() / one.weight.rows());
    let pairs = left.chunks(some).zip(right.chunks(some));
    let mut rows = Vec::with_capacity(left.len() + right.len());
    for (left, right) in pairs {
        rows.extend_from_slice(left);
        rows.extend_from_slice(right);
    }
    rows
}

/// All biases one after the other; where some have one, the others' are zeros.
fn biases(gpu: &Gpu, linears: &[&Linear]) -> Result<Option<Buffer<f32>>, ModelError> {
    if linears.iter().all(|linear| linear.bias.is_none()) {
        return Ok(None);
    }
    let mut all = Vec::new();
    for linear in linears {
        match &linear.bias {
            Some(bias) => all.extend_from_slice(bias),
            None => all.resize(all.len() + linear.weight.rows(), 0.0),
        }
    }
    Ok(Some(gpu.upload(&all)?))
}

/// How the rows of a pass stand to each other.
#[derive(Debug, Clone, Copy)]
pub(super) enum Positions {
    /// Each in a sequence of its own.
    Single,
    /// So many tiles of neighbours.
    Tiles(usize),
}

pub(super) struct Pass<'a> {
    pub(super) gpu: &'a Gpu,
    pub(super) config: &'a ModelConfig,
    pub(super) weights: &'a DeviceWeights,
    pub(super) slots: &'a mut KvSlots,
    pub(super) work: &'a mut Work,
}

impl Pass<'_> {
    /// From tokens to logits: of the picked rows, so many of them, or of all.
    pub(super) fn run(
        &mut self,
        rows: usize,
        positions: Positions,
        picked: Option<usize>,
    ) -> Result<(), GpuError> {
        if matches!(positions, Positions::Single)
            && self.gpu.supports_skinny_gemm(rows, self.config.vocabulary)
        {
            return self.run_few(rows);
        }
        let (gpu, config, work) = (self.gpu, self.config, &mut *self.work);
        let (hidden, epsilon) = (config.hidden, config.norm_epsilon);
        let queries = config.heads * config.head_dim;
        gpu.embedding_fwd(
            &mut work.residual,
            &self.weights.embedding,
            &work.tokens,
            (rows, hidden),
        )?;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let before = (index > 0).then_some(&work.delta);
            gpu.rms_norm_residual_inplace(
                &mut work.normed,
                &mut work.residual,
                before,
                &layer.attention_norm,
                None,
                rows,
                epsilon,
            )?;
            gpu.linear(&mut work.qkv, &work.normed, &layer.qkv, (rows, hidden))?;
            let mut cached = cached(self.slots, index, config, &work.slots, &work.positions);
            let rotation = rotation(self.weights, layer, config);
            match positions {
                Positions::Single => gpu.flash_attn_decode(
                    &mut work.attended,
                    &work.qkv,
                    &mut cached,
                    &rotation,
                    work.decoding.of(rows),
                    rows,
                )?,
                Positions::Tiles(count) => {
                    gpu.rope_append_kv(&mut work.qkv, &mut cached, &rotation, rows)?;
                    gpu.flash_attn_prefill(
                        &mut work.attended,
                        &work.qkv,
                        &cached,
                        config.heads,
                        &work.tiles,
                        count,
                    )?;
                }
            }
            gpu.linear(
                &mut work.delta,
                &work.attended,
                &layer.attention_output,
                (rows, queries),
            )?;
            let (norm, delta) = (&layer.feed_forward_norm, Some(&work.delta));
            gpu.rms_norm_residual_inplace(
                &mut work.normed,
                &mut work.residual,
                delta,
                norm,
                None,
                rows,
                epsilon,
            )?;
            gpu.linear(
                &mut work.both,
                &work.normed,
                &layer.gate_and_up,
                (rows, hidden),
            )?;
            gpu.swiglu_fwd(&mut work.gated, &work.both, (rows, config.feed_forward))?;
            gpu.linear(
                &mut work.delta,
                &work.gated,
                &layer.down,
                (rows, config.feed_forward),
            )?;
        }
        let rows = match picked {
            Some(0) => return Ok(()),
            Some(count) => count,
            None => rows,
        };
        let picked = picked.is_some().then_some(&work.picked);
        let (norm, delta) = (&self.weights.final_norm, Some(&work.delta));
        gpu.rms_norm_residual_inplace(
            &mut work.normed,
            &mut work.residual,
            delta,
            norm,
            picked,
            rows,
            epsilon,
        )?;
        let head = self.weights.head();
        gpu.linear(&mut work.logits, &work.normed, head, (rows, hidden))
    }

    /// The same for one token of each of few sequences: what stands between two products is done by them.
    fn run_few(&mut self, rows: usize) -> Result<(), GpuError> {
        let (gpu, config, work, weights) = (self.gpu, self.config, &mut *self.work, self.weights);
        // The norm that comes before each layer, and after the last.
        let norm = |index: usize| match weights.layers.get(index) {
            Some(layer) => &layer.attention_norm,
            None => &weights.final_norm,
        };
        let stream = &mut work.stream;
        gpu.embedding_fwd_deferred_norm(stream, &weights.embedding, &work.tokens, norm(0), rows)?;
        for (index, layer) in weights.layers.iter().enumerate() {
            gpu.skinny_gemm(&mut work.qkv, stream, &layer.qkv, rows)?;
            gpu.flash_attn_decode(
                &mut work.attended,
                &work.qkv,
                &mut cached(self.slots, index, config, &work.slots, &work.positions),
                &rotation(weights, layer, config),
                work.decoding.of(rows),
                rows,
            )?;
            let (output, then) = (&layer.attention_output, &layer.feed_forward_norm);
            gpu.skinny_gemm_residual_norm(stream, &work.attended, output, then, rows)?;
            gpu.skinny_gemm_swiglu(&mut work.gated, stream, &layer.gate_and_up, rows)?;
            gpu.skinny_gemm_residual_norm(stream, &work.gated, &layer.down, norm(index + 1), rows)?;
        }
        gpu.skinny_gemm(&mut work.logits, stream, weights.head(), rows)
    }

    /// Chooses a token for each of the first rows of logits.
    pub(super) fn choose(&mut self, rows: usize) -> Result<(), GpuError> {
        let work = &mut *self.work;
        self.gpu.sample_tokens(
            &mut work.tokens,
            &mut work.chosen,
            &work.logits,
            &work.choices,
            &mut work.steps,
            &mut work.positions,
            &mut work.parts,
            (rows, self.config.vocabulary),
        )
    }
}

/// A layer's keys and values, and where the rows stand in them.
fn cached<'a>(
    of: &'a mut KvSlots,
    layer: usize,
    config: &ModelConfig,
    slots: &'a Buffer<u32>,
    positions: &'a Buffer<u32>,
) -> KvCacheLayer<'a> {
    KvCacheLayer {
        keys: &mut of.keys[layer],
        values: &mut of.values[layer],
        slots,
        positions,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        capacity: of.capacity.positions,
    }
}

fn rotation<'a>(
    weights: &'a DeviceWeights,
    layer: &'a DeviceLayer,
    config: &ModelConfig,
) -> QkvRope<'a> {
    QkvRope {
        bias: layer.bias.as_ref(),
        head_norms: layer.head_norms.as_ref().map(|(query, key)| (query, key)),
        frequencies: &weights.frequencies,
        heads: config.heads,
        epsilon: config.norm_epsilon,
    }
}
