//! Whole models that learn, against their twin.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::training::{
    AdamW, Batch, Keep, Layout, Learner, Parameter, Room, Shape, Wanted,
};
use warpsmith_kernels::twin::model::{Lesson, learn};

use crate::{gpu, numbers};

/// Small, with everything that a family has.
pub(crate) fn shapes() -> [(&'static str, Shape); 3] {
    let shape = |head_dim: usize, (heads, kv_heads): (usize, usize)| Shape {
        layers: 3,
        hidden: 192,
        feed_forward: 320,
        heads,
        kv_heads,
        head_dim,
        vocabulary: 520,
        norm_epsilon: 1e-5,
        frequencies: (0..head_dim / 2)
            .map(|pair| 10_000f32.powf(-2.0 * pair as f32 / head_dim as f32))
            .collect(),
        tied: true,
        biased: false,
        head_norms: false,
    };
    let llama = shape(64, (6, 2));
    let qwen2 = Shape {
        biased: true,
        tied: false,
        ..shape(64, (4, 2))
    };
    let qwen3 = Shape {
        head_norms: true,
        ..shape(128, (4, 1))
    };
    [("llama", llama), ("qwen2", qwen2), ("qwen3", qwen3)]
}

/// Sizes as training would leave them: rows keep their length on the way.
pub(crate) fn random_weights(random: &mut StdRng, layout: &Layout) -> Vec<f32> {
    let shape = layout.shape();
    let mut all = Vec::new();
    for parameter in layout.parameters() {
        let count = layout.place(parameter).len();
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

/// Tokens of some lengths, and places of those that were said.
pub(crate) fn sequences(
    random: &mut StdRng,
    lengths: &[usize],
    vocabulary: usize,
) -> Vec<(Vec<u32>, Vec<usize>)> {
    let each = lengths.iter().map(|length| {
        let tokens = (0..*length)
            .map(|_| random.random_range(0..vocabulary as u32))
            .collect();
        let said = (1..*length).filter(|place| place % 3 != 0).collect();
        (tokens, said)
    });
    each.collect()
}

pub(crate) fn batch(sequences: &[(Vec<u32>, Vec<usize>)]) -> Batch {
    Batch::new(
        sequences
            .iter()
            .map(|(tokens, said)| (tokens.as_slice(), said.as_slice())),
    )
}

pub(crate) fn length(of: &[f64]) -> f64 {
    of.iter().map(|one| one * one).sum::<f64>().sqrt()
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn gradients_of_whole_models() {
    let mut random = StdRng::seed_from_u64(21);
    for (name, shape) in shapes() {
        let layout = Layout::new(shape.clone());
        let weights = random_weights(&mut random, &layout);
        // Not a round number of rows.
        let lengths = [70, 1, 150, 30];
        let sequences = sequences(&mut random, &lengths, shape.vocabulary);
        let batch = batch(&sequences);
        let wanted: Vec<Wanted> = (0..batch.said())
            .map(|_| Wanted {
                logprob: random.random_range(-0.02..0.005),
                entropy: random.random_range(-0.002..0.002),
            })
            .collect();

        // The twin's.
        let exact: Vec<f64> = weights.iter().copied().map(f64::from).collect();
        let tokens: Vec<u32> = sequences
            .iter()
            .flat_map(|(tokens, _)| tokens.clone())
            .collect();
        let mut begin = 0;
        let mut picked = Vec::new();
        for (tokens, said) in &sequences {
            picked.extend(
                said.iter()
                    .map(|place| (begin + place - 1, tokens[*place] as usize)),
            );
            begin += tokens.len();
        }
        let slopes: Vec<(f64, f64)> = wanted
            .iter()
            .map(|one| (f64::from(one.logprob), f64::from(one.entropy)))
            .collect();
        let twin = learn(
            &layout,
            &exact,
            &Lesson {
                tokens: &tokens,
                lengths: &lengths,
                picked: &picked,
                wanted: &slopes,
            },
        );

        let mut first: Option<Vec<f32>> = None;
        for keep in [Keep::All, Keep::Starts] {
            // Chunks that do not divide what was said.
            let room = Room {
                keep,
                chunk: 128,
                ..Room::new(&shape, 300, 200)
            };
            let mut learner = Learner::new(gpu(), layout.clone(), &weights, room).unwrap();
            let heard = learner.listen(&batch).unwrap();
            let scores = heard.scores().unwrap();
            let furthest = |seen: &[f32], wanted: &[f64]| {
                let each = seen
                    .iter()
                    .zip(wanted)
                    .map(|(one, two)| (f64::from(*one) - two).abs());
                each.fold(0.0, f64::max)
            };
            let (logprobs, entropies) = (
                furthest(&scores.logprobs, &twin.logprobs),
                furthest(&scores.entropies, &twin.entropies),
            );
            assert!(
                logprobs < 0.1 && entropies < 0.05,
                "{name} {keep:?}: {logprobs} {entropies}"
            );
            heard.learn(&wanted).unwrap();
            let gradient = learner.pupil().gradient().unwrap();
            for parameter in layout.parameters() {
                let place = layout.place(parameter);
                let wanted = &twin.gradient[place.clone()];
                let apart: Vec<f64> = gradient[place]
                    .iter()
                    .zip(wanted)
                    .map(|(one, two)| f64::from(*one) - two)
                    .collect();
                let share = length(&apart) / length(wanted).max(1e-12);
                assert!(
                    share < 0.05,
                    "{name} {keep:?}: {parameter:?} is off by {share} of its length"
                );
            }
            // Whether layers are made again, and whether kernels are launched one by one or as a recording, is all the same.
            let first = first.get_or_insert_with(|| gradient.clone());
            assert!(*first == gradient, "{name} {keep:?}");
            let state = learner.pupil().state().unwrap();
            for round in 0..3 {
                learner.pupil_mut().restore(&state).unwrap();
                learner.learn(&batch, &wanted).unwrap();
                assert!(
                    *first == learner.pupil().gradient().unwrap(),
                    "{name} {keep:?}, round {round}"
                );
            }
            // Once more on top.
            learner.learn(&batch, &wanted).unwrap();
            let twice = learner.pupil().gradient().unwrap();
            let apart: Vec<f64> = twice
                .iter()
                .zip(&*first)
                .map(|(two, one)| f64::from(two - 2.0 * one))
                .collect();
            let whole: Vec<f64> = first.iter().copied().map(f64::from).collect();
            assert!(
                length(&apart) < 1e-4 * length(&whole),
                "{name} {keep:?}: added on top"
            );
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn a_model_learns_by_heart() {
    let mut random = StdRng::seed_from_u64(22);
    let (_, shape) = shapes().into_iter().next().unwrap();
    let layout = Layout::new(shape.clone());
    let weights = random_weights(&mut random, &layout);
    let batch = batch(&sequences(&mut random, &[60, 90], shape.vocabulary));
    let count = batch.said() as f32;
    let wanted = vec![
        Wanted {
            logprob: -1.0 / count,
            entropy: 0.0
        };
        batch.said()
    ];
    let room = Room::new(&shape, 192, 128);
    let mut learner = Learner::new(gpu(), layout, &weights, room).unwrap();
    let mut losses = Vec::new();
    for step in 1..=60 {
        learner.learn(&batch, &wanted).unwrap();
        losses.push(-learner.scores().unwrap().logprobs.iter().sum::<f32>() / count);
        let settings = AdamW {
            rate: 3e-3,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.01,
            longest: 1.0,
            step,
        };
        learner.update(settings).unwrap();
    }
    assert!(learner.pupil().gradient_length().unwrap().is_finite());
    assert!(losses[0] > 5.0 && losses[59] < 1.0, "{losses:?}");
}
