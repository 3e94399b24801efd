//! Gradients of the CPU backend in `f64`, against differences.

use std::ops::Range;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::training::cpu::{
    AttentionOutput, CpuFrozenWeights, CpuTrainableModel, LogitStats, attention, attention_bwd,
    rms_norm, rms_norm_bwd, rope, rope_angles, rope_bwd, swiglu, swiglu_bwd,
};
use warpsmith_kernels::training::{
    AttentionShape, LoraLayout, LoraSpec, ModelHead, ModelShape, PackedBatch, ParameterLayout,
    Projection, ProjectionBiases, TokenSequence, TrainableInit,
};

fn numbers(random: &mut StdRng, count: usize) -> Vec<f64> {
    (0..count).map(|_| random.random_range(-1.0..1.0)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The derivative of a loss along random directions, by differences and by the gradient: both must agree.
fn agrees(random: &mut StdRng, at: &[f64], grad: &[f64], loss: impl Fn(&[f64]) -> f64) {
    assert_eq!(at.len(), grad.len());
    for _ in 0..4 {
        let direction = numbers(random, at.len());
        let step = 1e-5;
        let moved = |by: f64| -> Vec<f64> {
            let pairs = at.iter().zip(&direction);
            pairs.map(|(at, direction)| at + by * direction).collect()
        };
        let by_difference = (loss(&moved(step)) - loss(&moved(-step))) / (2.0 * step);
        let by_gradient = dot(grad, &direction);
        let size = by_difference.abs().max(by_gradient.abs()).max(1e-3);
        assert!(
            (by_difference - by_gradient).abs() < 1e-6 * size,
            "{by_difference} by difference, {by_gradient} by gradient"
        );
    }
}

#[test]
fn rms_norms() {
    let mut random = StdRng::seed_from_u64(1);
    let (rows, weight, by) = (
        numbers(&mut random, 5 * 24),
        numbers(&mut random, 24),
        numbers(&mut random, 5 * 24),
    );
    let (d_rows, d_weight) = rms_norm_bwd(&rows, &weight, 1e-5, &by);
    agrees(&mut random, &rows, &d_rows, |rows| {
        dot(&rms_norm(rows, &weight, 1e-5), &by)
    });
    agrees(&mut random, &weight, &d_weight, |weight| {
        dot(&rms_norm(&rows, weight, 1e-5), &by)
    });
}

#[test]
fn swiglus() {
    let mut random = StdRng::seed_from_u64(2);
    let (gate_up, by) = (numbers(&mut random, 64), numbers(&mut random, 32));
    let grad = swiglu_bwd(&gate_up, &by);
    agrees(&mut random, &gate_up, &grad, |gate_up| {
        dot(&swiglu(gate_up), &by)
    });
}

#[test]
fn rope_is_undone_by_its_backward() {
    let mut random = StdRng::seed_from_u64(3);
    let head = numbers(&mut random, 8);
    let angles = rope_angles(17, &[1.0, 0.3, 0.1, 0.01]);
    let mut rotated = head.clone();
    rope(&mut rotated, &angles);
    let mut pairs = head.iter().zip(&rotated);
    assert!(pairs.any(|(one, two)| (one - two).abs() > 0.1));
    rope_bwd(&mut rotated, &angles);
    let mut pairs = head.iter().zip(&rotated);
    assert!(pairs.all(|(one, two)| (one - two).abs() < 1e-12));
}

#[test]
fn attention_of_packed_sequences() {
    let mut random = StdRng::seed_from_u64(4);
    let shape = AttentionShape {
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
    };
    // The last is longer than a block of queries.
    let lengths = [1, 5, 3, 140];
    let rows: usize = lengths.iter().sum();
    let qkv = numbers(&mut random, rows * shape.qkv_width());
    let by = numbers(&mut random, rows * shape.heads * shape.head_dim);
    let (out, lse) = attention(&qkv, shape, &lengths);
    let forward = AttentionOutput {
        out: &out,
        lse: &lse,
    };
    let grad = attention_bwd(&qkv, shape, &lengths, &forward, &by);
    agrees(&mut random, &qkv, &grad, |qkv| {
        dot(&attention(qkv, shape, &lengths).0, &by)
    });
}

#[test]
fn log_probability_and_entropy() {
    let mut random = StdRng::seed_from_u64(5);
    let logits: Vec<f64> = numbers(&mut random, 30)
        .iter()
        .map(|one| 4.0 * one)
        .collect();
    for upstream in [[1.0, 0.0], [0.0, 1.0], [-0.7, 0.3]] {
        let mut grad = logits.clone();
        LogitStats::new(&logits).backward(&mut grad, 7, upstream);
        agrees(&mut random, &logits, &grad, |logits| {
            let stats = LogitStats::new(logits);
            upstream[0] * stats.logprob(logits, 7) + upstream[1] * stats.entropy
        });
    }
}

fn shape(tied_embeddings: bool, biases: ProjectionBiases, head_norms: bool) -> ModelShape {
    ModelShape {
        layers: 2,
        hidden: 16,
        feed_forward: 24,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        vocabulary: 24,
        norm_epsilon: 1e-5,
        rope_frequencies: vec![1.0, 0.3, 0.1, 0.03],
        tied_embeddings,
        biases,
        head_norms,
    }
}

const NO_BIAS: ProjectionBiases = ProjectionBiases {
    qkv: false,
    attention_output: false,
    gate_up: false,
    down: false,
};
const VARIANTS: [(bool, ProjectionBiases, bool); 3] = [
    (
        true,
        ProjectionBiases {
            qkv: true,
            attention_output: true,
            gate_up: true,
            down: true,
        },
        false,
    ),
    (
        false,
        ProjectionBiases {
            qkv: true,
            ..NO_BIAS
        },
        false,
    ),
    (true, NO_BIAS, true),
];

fn batch() -> PackedBatch {
    let sequence = |tokens: &[u32], positions: &[usize]| {
        let mask: Vec<bool> = (0..tokens.len())
            .map(|at| positions.contains(&at))
            .collect();
        TokenSequence::new(tokens.to_vec(), &mask)
    };
    let sequences = [
        sequence(&[1, 5, 5, 23], &[1, 3]),
        sequence(&[0], &[]),
        sequence(&[7, 1, 2, 9], &[1, 3]),
    ];
    PackedBatch::new(&sequences.each_ref())
}

const UPSTREAM: [[f64; 2]; 4] = [[-1.0, 0.0], [-0.3, 0.1], [0.5, -0.2], [0.0, 0.4]];

/// The scores of a model with these weights, weighted by what comes from above.
fn loss(mut model: CpuTrainableModel<f64>, weights: &[f64]) -> f64 {
    model.set_trainable(weights);
    let scores = model.score_exact(&batch());
    let each = scores.iter().zip(UPSTREAM);
    each.map(|(score, upstream)| dot(score, &upstream)).sum()
}

/// The gradient of that with respect to all that trains.
fn grad(mut model: CpuTrainableModel<f64>) -> Vec<f64> {
    model.score_exact(&batch());
    model.backward_scores_exact(&UPSTREAM);
    model.grad_exact().to_vec()
}

/// Where only the weights of a range are moved.
fn agrees_within(
    random: &mut StdRng,
    weights: &[f64],
    range: Range<usize>,
    grad: &[f64],
    loss: impl Fn(&[f64]) -> f64,
) {
    let part = &weights[range.clone()];
    agrees(random, part, &grad[range.clone()], |part| {
        let mut moved = weights.to_vec();
        moved[range.clone()].copy_from_slice(part);
        loss(&moved)
    });
}

/// `f32` values, since models begin with those; differences are small beside them and stay exact enough in `f64`.
fn single(values: &[f64]) -> Vec<f32> {
    values.iter().map(|value| *value as f32).collect()
}

#[test]
fn whole_models() {
    let mut random = StdRng::seed_from_u64(6);
    for (tied, biases, head_norms) in VARIANTS {
        let layout = ParameterLayout::new(shape(tied, biases, head_norms));
        let start = single(&numbers(&mut random, layout.len()));
        let model = || {
            let init = TrainableInit::Full {
                layout: layout.clone(),
                weights: &start,
            };
            CpuTrainableModel::<f64>::new(&init, ModelHead::LanguageModel)
        };
        let loss = |weights: &[f64]| loss(model(), weights);
        let weights: Vec<f64> = start.iter().copied().map(f64::from).collect();
        let grad = grad(model());
        agrees(&mut random, &weights, &grad, loss);
        // Each parameter by itself: a direction through all of them would hide a small one.
        for parameter in layout.parameters() {
            let range = layout.range(parameter);
            assert!(
                grad[range.clone()].iter().any(|one| one.abs() > 1e-9),
                "{parameter:?} has no gradient"
            );
            agrees_within(&mut random, &weights, range, &grad, loss);
        }
    }
}

#[test]
fn adapters() {
    let mut random = StdRng::seed_from_u64(7);
    let targets = [
        Projection::ALL.to_vec(),
        vec![Projection::Query, Projection::Value, Projection::Up],
        vec![
            Projection::AttentionOutput,
            Projection::Gate,
            Projection::Down,
        ],
    ];
    for ((tied, biases, head_norms), targets) in VARIANTS.into_iter().zip(targets) {
        let shape = shape(tied, biases, head_norms);
        let layout = ParameterLayout::new(shape.clone());
        let base = single(&numbers(&mut random, layout.len()));
        let frozen = CpuFrozenWeights::<f64>::new(layout.clone(), |parameter| {
            base[layout.range(parameter)].to_vec()
        });
        let frozen = std::rc::Rc::new(frozen);
        let spec = LoraSpec {
            rank: 5,
            scale: 0.7,
            targets,
        };
        let lora = LoraLayout::new(shape.clone(), &spec);
        let mut start = vec![0.0; lora.len()];
        for range in own_ranges(&lora, &shape, &spec) {
            let values = single(&numbers(&mut random, range.len()));
            start[range].copy_from_slice(&values);
        }
        let model = || {
            let init = TrainableInit::Lora {
                base: frozen.clone(),
                spec: &spec,
                weights: &start,
            };
            CpuTrainableModel::<f64>::new(&init, ModelHead::LanguageModel)
        };
        let loss = |weights: &[f64]| loss(model(), weights);
        let grad = grad(model());
        let weights: Vec<f64> = start.iter().copied().map(f64::from).collect();
        for range in own_ranges(&lora, &shape, &spec) {
            agrees_within(&mut random, &weights, range, &grad, loss);
        }
        // Padding of the rank, and what is outside the diagonal blocks of B, is no parameter.
        let mut own = vec![false; lora.len()];
        for range in own_ranges(&lora, &shape, &spec) {
            own[range].fill(true);
        }
        let padding = grad.iter().zip(&own).filter(|(_, own)| !**own);
        assert!(padding.into_iter().all(|(grad, _)| *grad == 0.0));
    }
}

/// Where the rows of an adapter's matrices lie.
fn own_ranges(lora: &LoraLayout, shape: &ModelShape, spec: &LoraSpec) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    for layer in 0..shape.layers {
        for &projection in &spec.targets {
            let a = (0..spec.rank).filter_map(|row| lora.a_row(layer, projection, row));
            let b = (0..projection.rows(shape)).filter_map(|row| {
                let start = lora.b_row(layer, projection, row)?;
                Some(start..start + spec.rank)
            });
            ranges.extend(a.chain(b));
        }
    }
    ranges
}
