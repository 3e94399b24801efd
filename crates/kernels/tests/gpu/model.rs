//! Whole models that train, against the CPU backend in `f64`.

use std::cell::RefCell;
use std::rc::Rc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::training::cpu::{CpuFrozenWeights, CpuTrainableModel};
use warpsmith_kernels::training::gpu::{
    ActivationCheckpointing, BatchCapacity, GpuTrainableModel, ScoreGrad, TrainBuffers,
};
use warpsmith_kernels::training::{
    AdamW, AdamWStep, ModelHead, ModelShape, PackedBatch, Parameter, ParameterLayout,
    ProjectionBiases, TokenSequence, TrainableInit,
};

use crate::{gpu, numbers};

/// Small models with all that distinguishes the families.
pub(crate) fn shapes() -> [(&'static str, ModelShape); 3] {
    let shape = |head_dim: usize, (heads, kv_heads): (usize, usize)| ModelShape {
        layers: 3,
        hidden: 192,
        feed_forward: 320,
        heads,
        kv_heads,
        head_dim,
        vocabulary: 520,
        norm_epsilon: 1e-5,
        rope_frequencies: (0..head_dim / 2)
            .map(|pair| 10_000f32.powf(-2.0 * pair as f32 / head_dim as f32))
            .collect(),
        tied_embeddings: true,
        biases: ProjectionBiases::default(),
        head_norms: false,
    };
    let llama = shape(64, (6, 2));
    let qwen2 = ModelShape {
        biases: ProjectionBiases {
            qkv: true,
            ..ProjectionBiases::default()
        },
        tied_embeddings: false,
        ..shape(64, (4, 2))
    };
    let qwen3 = ModelShape {
        head_norms: true,
        ..shape(128, (4, 1))
    };
    [("llama", llama), ("qwen2", qwen2), ("qwen3", qwen3)]
}

/// Weights of a size at which hidden states keep their norm through the layers.
pub(crate) fn random_weights(random: &mut StdRng, layout: &ParameterLayout) -> Vec<f32> {
    let shape = layout.shape();
    let mut all = Vec::new();
    for parameter in layout.parameters() {
        let count = layout.range(parameter).len();
        let inputs = match parameter {
            Parameter::AttentionOutput(_) => shape.query_width(),
            Parameter::Down(_) => shape.feed_forward,
            _ => shape.hidden,
        };
        let size = 1.7 / (inputs as f32).sqrt();
        all.extend(match parameter {
            Parameter::AttentionNorm(_)
            | Parameter::FeedForwardNorm(_)
            | Parameter::FinalNorm
            | Parameter::HeadNorms(_) => {
                let around = numbers(random, count, 0.3);
                around.iter().map(|one| 1.0 + one).collect()
            }
            _ => numbers(random, count, size),
        });
    }
    all
}

/// Sequences of some lengths, of which two tokens in three enter the loss.
pub(crate) fn batch(random: &mut StdRng, lengths: &[usize], vocabulary: usize) -> PackedBatch {
    let sequences: Vec<TokenSequence> = lengths
        .iter()
        .map(|length| {
            let tokens = (0..*length)
                .map(|_| random.random_range(0..vocabulary as u32))
                .collect();
            let mask: Vec<bool> = (0..*length).map(|position| position % 3 != 0).collect();
            TokenSequence::new(tokens, &mask)
        })
        .collect();
    PackedBatch::new(&sequences.iter().collect::<Vec<_>>())
}

pub(crate) fn random_grads(random: &mut StdRng, count: usize) -> Vec<ScoreGrad> {
    (0..count)
        .map(|_| ScoreGrad {
            logprob: random.random_range(-0.02..0.005),
            entropy: random.random_range(-0.002..0.002),
        })
        .collect()
}

pub(crate) const CHECKPOINTING: [ActivationCheckpointing; 2] = [
    ActivationCheckpointing::Off,
    ActivationCheckpointing::PerLayer,
];

/// Scores and gradients of the CPU backend in `f64`.
pub(crate) fn reference(
    init: &TrainableInit<'_, CpuFrozenWeights<f64>>,
    batch: &PackedBatch,
    grads: &[ScoreGrad],
) -> (Vec<[f64; 2]>, Vec<f64>) {
    let mut model = CpuTrainableModel::<f64>::new(init, ModelHead::LanguageModel);
    let scores = model.score_exact(batch);
    model.backward_scores_exact(&exact(grads));
    (scores, model.grad_exact().to_vec())
}

/// Gradients from the same state, three times: later ones launch a CUDA graph instead of single kernels.
pub(crate) fn repeated_grads(
    model: &mut GpuTrainableModel,
    batch: &PackedBatch,
    grads: &[ScoreGrad],
) -> [Vec<f32>; 3] {
    let state = model.state().unwrap();
    [(); 3].map(|()| {
        model.restore(&state).unwrap();
        model.score_backward(batch, grads).unwrap();
        model.grad().unwrap()
    })
}

fn exact(grads: &[ScoreGrad]) -> Vec<[f64; 2]> {
    grads
        .iter()
        .map(|grad| [f64::from(grad.logprob), f64::from(grad.entropy)])
        .collect()
}

pub(crate) fn norm(of: &[f64]) -> f64 {
    of.iter().map(|one| one * one).sum::<f64>().sqrt()
}

/// Norm of the difference over the norm of what was expected.
pub(crate) fn relative_error(found: &[f32], expected: &[f64]) -> f64 {
    let pairs = found.iter().zip(expected);
    let difference: Vec<f64> = pairs.map(|(one, two)| f64::from(*one) - two).collect();
    norm(&difference) / norm(expected).max(1e-12)
}

/// Largest difference to one of the two exact scores.
pub(crate) fn furthest(found: &[f32], expected: &[[f64; 2]], which: usize) -> f64 {
    let pairs = found.iter().zip(expected);
    let differences = pairs.map(|(found, expected)| (f64::from(*found) - expected[which]).abs());
    differences.fold(0.0, f64::max)
}

pub(crate) fn buffers(shape: &ModelShape, capacity: BatchCapacity) -> Rc<RefCell<TrainBuffers>> {
    let mut buffers = TrainBuffers::new(gpu(), shape.clone()).unwrap();
    buffers.allocate(capacity).unwrap();
    Rc::new(RefCell::new(buffers))
}

pub(crate) fn adamw(step: u64) -> AdamWStep {
    AdamWStep {
        adamw: AdamW {
            beta2: 0.95,
            ..AdamW::default()
        },
        learning_rate: 3e-3,
        step,
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn gradients_of_whole_models() {
    let mut random = StdRng::seed_from_u64(21);
    for (name, shape) in shapes() {
        let layout = ParameterLayout::new(shape.clone());
        let weights = random_weights(&mut random, &layout);
        // Not a round number of rows.
        let batch = batch(&mut random, &[70, 1, 150, 30], shape.vocabulary);
        let grads = random_grads(&mut random, batch.loss_tokens());

        let init = TrainableInit::Full {
            layout: layout.clone(),
            weights: &weights,
        };
        let (expected, expected_grad) = reference(&init, &batch, &grads);

        let mut first: Option<Vec<f32>> = None;
        for checkpointing in CHECKPOINTING {
            // Chunks that do not divide the rows of the loss.
            let capacity = BatchCapacity {
                checkpointing,
                logits_chunk: 128,
                ..BatchCapacity::new(&shape, 300, 200)
            };
            let init = TrainableInit::Full {
                layout: layout.clone(),
                weights: &weights,
            };
            let buffers = buffers(&shape, capacity);
            let mut model =
                GpuTrainableModel::new(&buffers, &init, ModelHead::LanguageModel).unwrap();
            let scores = model.score(&batch).unwrap();
            let (logprobs, entropies) = (
                furthest(&scores.logprobs, &expected, 0),
                furthest(&scores.entropies, &expected, 1),
            );
            assert!(
                logprobs < 0.1 && entropies < 0.05,
                "{name} {checkpointing:?}: {logprobs} {entropies}"
            );
            model.backward_scores(&grads).unwrap();
            let grad = model.grad().unwrap();
            for parameter in layout.parameters() {
                let range = layout.range(parameter);
                let error = relative_error(&grad[range.clone()], &expected_grad[range]);
                assert!(
                    error < 0.05,
                    "{name} {checkpointing:?}: {parameter:?} is off by {error} of its norm"
                );
            }
            // Checkpointing, and launching a CUDA graph instead of single kernels, change no bit.
            let first = first.get_or_insert_with(|| grad.clone());
            assert!(*first == grad, "{name} {checkpointing:?}");
            let grads_again = repeated_grads(&mut model, &batch, &grads);
            for (round, again) in grads_again.into_iter().enumerate() {
                assert!(*first == again, "{name} {checkpointing:?}, round {round}");
            }
            // Once more, accumulated.
            model.score_backward(&batch, &grads).unwrap();
            let doubled: Vec<f64> = first.iter().map(|one| 2.0 * f64::from(*one)).collect();
            let error = relative_error(&model.grad().unwrap(), &doubled);
            assert!(error < 5e-5, "{name} {checkpointing:?}: accumulated");
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn a_model_overfits_a_batch() {
    let mut random = StdRng::seed_from_u64(22);
    let (_, shape) = shapes().into_iter().next().unwrap();
    let layout = ParameterLayout::new(shape.clone());
    let weights = random_weights(&mut random, &layout);
    let batch = batch(&mut random, &[60, 90], shape.vocabulary);
    let count = batch.loss_tokens() as f32;
    let grad = ScoreGrad {
        logprob: -1.0 / count,
        entropy: 0.0,
    };
    let grads = vec![grad; batch.loss_tokens()];
    let buffers = buffers(&shape, BatchCapacity::new(&shape, 192, 128));
    let init = TrainableInit::Full {
        layout,
        weights: &weights,
    };
    let mut model = GpuTrainableModel::new(&buffers, &init, ModelHead::LanguageModel).unwrap();
    let mut losses = Vec::new();
    for step in 1..=60 {
        model.score_backward(&batch, &grads).unwrap();
        losses.push(-model.scores().unwrap().logprobs.iter().sum::<f32>() / count);
        model.step(adamw(step)).unwrap();
    }
    assert!(model.grad_norm().unwrap().is_finite());
    assert!(losses[0] > 5.0 && losses[59] < 1.0, "{losses:?}");
}
