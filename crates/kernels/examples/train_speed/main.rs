//! How fast a model trains on a GPU: `train_speed [lora] [SEQUENCES LENGTH [STEPS]]`
//!
//! Random weights of SmolLM2-135M's shape with full fine-tuning; or, with `lora`, of Qwen2.5-Coder-1.5B's with LoRA of rank 32 on all
//! projections. Prints tokens a second and memory as rows of a table. `ATTENTION=mma` uses the attention kernels of devices before
//! Hopper. With `kernels` instead, how long each kernel of a layer takes by itself.

mod kernels;

use std::cell::RefCell;
use std::error::Error;
use std::io::Write;
use std::rc::Rc;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::training::gpu::{
    ActivationCheckpointing, BatchCapacity, FlashAttnKind, FrozenWeights, GpuTrainableModel,
    ScoreGrad, TrainBuffers,
};
use warpsmith_kernels::training::{
    AdamW, AdamWStep, LoraLayout, LoraSpec, LoraWidths, ModelHead, ModelShape, PackedBatch,
    Parameter, ParameterLayout, Projection, ProjectionBiases, TokenSequence, TrainableInit,
};
use warpsmith_kernels::{Gpu, GpuError};

/// Each of so many steps, which are not waited for in between; the median counts.
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let word = arguments
        .first()
        .filter(|first| first.parse::<usize>().is_err());
    let word = word.cloned();
    if word.is_some() {
        arguments.remove(0);
    }
    let numbers: Vec<usize> = arguments
        .iter()
        .map(|text| text.parse())
        .collect::<Result<_, _>>()?;
    let given = match numbers[..] {
        [] => None,
        [sequences, length] => Some((sequences, length, 10)),
        [sequences, length, steps] => Some((sequences, length, steps.max(1))),
        _ => return Err("train_speed [lora] [SEQUENCES LENGTH [STEPS]]".into()),
    };
    let small = given.map_or_else(|| vec![(8, 1024, 10), (16, 2048, 10)], |one| vec![one]);
    let out = &mut std::io::stdout().lock();
    match word.as_deref() {
        None => {
            let model = Model::full(smollm2())?;
            small
                .into_iter()
                .try_for_each(|one| model.measure(out, one))
        }
        Some("lora") => {
            let model = Model::lora(qwen2(), 32)?;
            model.measure(out, given.unwrap_or((8, 2048, 5)))
        }
        Some("kernels") => {
            let models = [(smollm2(), small), (qwen2(), vec![(8, 2048, 5)])];
            models.into_iter().try_for_each(|(shape, sizes)| {
                sizes
                    .into_iter()
                    .try_for_each(|one| kernels::measure(out, &shape, (one.0, one.1), one.2))
            })
        }
        Some(other) => Err(format!("there is no `{other}`").into()),
    }
}

fn smollm2() -> ModelShape {
    ModelShape {
        layers: 30,
        hidden: 576,
        feed_forward: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocabulary: 49_152,
        norm_epsilon: 1e-5,
        rope_frequencies: rope_frequencies(64, 100_000.0),
        tied_embeddings: true,
        biases: ProjectionBiases::default(),
        head_norms: false,
    }
}

fn qwen2() -> ModelShape {
    ModelShape {
        layers: 28,
        hidden: 1536,
        feed_forward: 8960,
        heads: 12,
        kv_heads: 2,
        head_dim: 128,
        vocabulary: 151_936,
        norm_epsilon: 1e-6,
        rope_frequencies: rope_frequencies(128, 1_000_000.0),
        tied_embeddings: true,
        biases: ProjectionBiases {
            qkv: true,
            ..ProjectionBiases::default()
        },
        head_norms: false,
    }
}

fn rope_frequencies(head_dim: u16, theta: f32) -> Vec<f32> {
    (0..head_dim / 2)
        .map(|pair| theta.powf(-2.0 * f32::from(pair) / f32::from(head_dim)))
        .collect()
}

/// A model with random weights, and what of it trains.
struct Model {
    buffers: Rc<RefCell<TrainBuffers>>,
    /// Free bytes before anything was allocated.
    free: usize,
    layout: ParameterLayout,
    trainable: Trainable,
}

enum Trainable {
    Full(Vec<f32>),
    Lora {
        base: Rc<FrozenWeights>,
        spec: LoraSpec,
        weights: Vec<f32>,
        widths: LoraWidths,
    },
}

impl Model {
    fn open(shape: ModelShape) -> Result<(TrainBuffers, usize, ParameterLayout), GpuError> {
        let mut gpu = Gpu::open(0)?;
        if std::env::var("ATTENTION").as_deref() == Ok("mma") {
            gpu = gpu.with_flash_attn(FlashAttnKind::Mma);
        }
        let (free, _) = gpu.free_and_total_memory()?;
        let layout = ParameterLayout::new(shape.clone());
        Ok((TrainBuffers::new(gpu, shape)?, free, layout))
    }

    fn full(shape: ModelShape) -> Result<Self, GpuError> {
        let (buffers, free, layout) = Self::open(shape)?;
        let parameters = layout.parameters().into_iter();
        let weights = parameters.flat_map(|one| random_weights(&layout, one));
        Ok(Self {
            trainable: Trainable::Full(weights.collect()),
            buffers: Rc::new(RefCell::new(buffers)),
            free,
            layout,
        })
    }

    fn lora(shape: ModelShape, rank: usize) -> Result<Self, GpuError> {
        let (buffers, free, layout) = Self::open(shape)?;
        let base = FrozenWeights::new(buffers.gpu(), layout.clone(), |one| {
            random_weights(&layout, one)
        })?;
        let spec = LoraSpec {
            rank,
            scale: 1.0,
            targets: Projection::ALL.to_vec(),
        };
        let lora = LoraLayout::new(layout.shape().clone(), &spec);
        let mut weights = vec![0.0f32; lora.len()];
        let mut random = StdRng::seed_from_u64(2);
        for layer in 0..layout.shape().layers {
            for projection in Projection::ALL {
                let rows = (0..rank).filter_map(|row| lora.a_row(layer, projection, row));
                for range in rows {
                    weights[range].fill_with(|| random.random_range(-0.02..0.02));
                }
            }
        }
        Ok(Self {
            trainable: Trainable::Lora {
                base: Rc::new(base),
                spec,
                weights,
                widths: lora.widths(),
            },
            buffers: Rc::new(RefCell::new(buffers)),
            free,
            layout,
        })
    }

    fn measure(
        &self,
        out: &mut impl Write,
        (sequences, length, steps): (usize, usize, usize),
    ) -> Result<(), Box<dyn Error>> {
        let (init, lora_widths, what) = match &self.trainable {
            Trainable::Full(weights) => {
                let layout = self.layout.clone();
                let init = TrainableInit::Full { layout, weights };
                (init, LoraWidths::default(), "full")
            }
            Trainable::Lora {
                base,
                spec,
                weights,
                widths,
            } => {
                let base = base.clone();
                let init = TrainableInit::Lora {
                    base,
                    spec,
                    weights,
                };
                (init, *widths, "LoRA")
            }
        };
        for checkpointing in [
            ActivationCheckpointing::Off,
            ActivationCheckpointing::PerLayer,
        ] {
            let capacity = BatchCapacity {
                checkpointing,
                lora_widths,
                ..BatchCapacity::new(self.layout.shape(), sequences * length, length)
            };
            self.buffers.borrow_mut().allocate(capacity)?;
            let head = ModelHead::LanguageModel;
            let mut model = GpuTrainableModel::new(&self.buffers, &init, head)?;
            let row = self.timed(&mut model, (sequences, length, steps))?;
            let activations = match checkpointing {
                ActivationCheckpointing::Off => "activations stored",
                ActivationCheckpointing::PerLayer => "activation checkpointing",
            };
            writeln!(out, "| ours, {what}, {activations} {row}")?;
            out.flush()?;
        }
        Ok(())
    }

    fn timed(
        &self,
        model: &mut GpuTrainableModel,
        (sequences, length, steps): (usize, usize, usize),
    ) -> Result<String, Box<dyn Error>> {
        let mut random = StdRng::seed_from_u64(1);
        let vocabulary = self.layout.shape().vocabulary as u32;
        let loss_mask = vec![true; length];
        let sequences_of_tokens: Vec<TokenSequence> = (0..sequences)
            .map(|_| {
                let tokens = (0..length).map(|_| random.random_range(0..vocabulary));
                TokenSequence::new(tokens.collect(), &loss_mask)
            })
            .collect();
        let batch = PackedBatch::new(&sequences_of_tokens.iter().collect::<Vec<_>>());
        let share = -1.0 / batch.loss_tokens() as f32;
        let grad = ScoreGrad {
            logprob: share,
            entropy: 0.0,
        };
        let grads = vec![grad; batch.loss_tokens()];
        let step = |model: &mut GpuTrainableModel, step: u64| -> Result<(), Box<dyn Error>> {
            model.score_backward(&batch, &grads)?;
            Ok(model.step(AdamWStep {
                adamw: AdamW::default(),
                learning_rate: 1e-3,
                step,
            })?)
        };
        let loss = |model: &GpuTrainableModel| -> Result<f32, Box<dyn Error>> {
            Ok(model.scores()?.logprobs.iter().sum::<f32>() * share)
        };
        let synchronize = || self.buffers.borrow().gpu().synchronize();
        step(model, 1)?;
        let first = loss(model)?;
        // The second is captured as a CUDA graph, the third is the first that only launches it.
        step(model, 2)?;
        step(model, 3)?;
        synchronize()?;
        let mut times = Vec::new();
        let mut number = 3;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            for _ in 0..steps {
                number += 1;
                step(model, number)?;
            }
            synchronize()?;
            times.push(start.elapsed().as_secs_f64() / steps as f64);
        }
        let last = loss(model)?;
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let (left, _) = self.buffers.borrow().gpu().free_and_total_memory()?;
        Ok(format!(
            "| {sequences} x {length} | {:.0} | {:.2} | {:.2} | {:.1} | {first:.3} to {last:.3} |",
            (sequences * length) as f64 / median,
            median * 1e3,
            times[0] * 1e3,
            (self.free - left) as f64 / (1u64 << 30) as f64,
        ))
    }
}

/// Small around zero; norms are one.
fn random_weights(layout: &ParameterLayout, parameter: Parameter) -> Vec<f32> {
    let range = layout.range(parameter);
    if matches!(
        parameter,
        Parameter::AttentionNorm(_) | Parameter::FeedForwardNorm(_) | Parameter::FinalNorm
    ) {
        return vec![1.0; range.len()];
    }
    // A draw for each weight would take longer than all that is measured.
    let mut random = StdRng::seed_from_u64(range.start as u64);
    let some: Vec<f32> = (0..99_991)
        .map(|_| random.random_range(-0.035..0.035))
        .collect();
    some.into_iter().cycle().take(range.len()).collect()
}
