//! Slopes that the twins find, against differences.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::training::{Layout, Shape};
use warpsmith_kernels::twin::model::{Lesson, learn};
use warpsmith_kernels::twin::training::{
    Heads, attention, attention_back, norm, norm_back, rotate, score, score_back, swiglu,
    swiglu_back,
};

fn numbers(random: &mut StdRng, count: usize) -> Vec<f64> {
    (0..count).map(|_| random.random_range(-1.0..1.0)).collect()
}

fn dot(one: &[f64], two: &[f64]) -> f64 {
    one.iter().zip(two).map(|(one, two)| one * two).sum()
}

/// How a loss changes along a random direction: by differences and by slopes, which must agree.
fn agrees(random: &mut StdRng, at: &[f64], slopes: &[f64], loss: impl Fn(&[f64]) -> f64) {
    assert_eq!(at.len(), slopes.len());
    for _ in 0..4 {
        let way = numbers(random, at.len());
        let step = 1e-5;
        let moved =
            |by: f64| -> Vec<f64> { at.iter().zip(&way).map(|(at, way)| at + by * way).collect() };
        let by_difference = (loss(&moved(step)) - loss(&moved(-step))) / (2.0 * step);
        let by_slopes = dot(slopes, &way);
        let size = by_difference.abs().max(by_slopes.abs()).max(1e-3);
        assert!(
            (by_difference - by_slopes).abs() < 1e-6 * size,
            "{by_difference} by difference, {by_slopes} by slopes"
        );
    }
}

#[test]
fn norms() {
    let mut random = StdRng::seed_from_u64(1);
    let (rows, weight, by) = (
        numbers(&mut random, 5 * 24),
        numbers(&mut random, 24),
        numbers(&mut random, 5 * 24),
    );
    let (of_rows, of_weight) = norm_back(&rows, &weight, 1e-5, &by);
    agrees(&mut random, &rows, &of_rows, |rows| {
        dot(&norm(rows, &weight, 1e-5), &by)
    });
    agrees(&mut random, &weight, &of_weight, |weight| {
        dot(&norm(&rows, weight, 1e-5), &by)
    });
}

#[test]
fn gates() {
    let mut random = StdRng::seed_from_u64(2);
    let (both, by) = (numbers(&mut random, 64), numbers(&mut random, 32));
    agrees(&mut random, &both, &swiglu_back(&both, &by), |both| {
        dot(&swiglu(both), &by)
    });
}

#[test]
fn rotations_are_undone() {
    let mut random = StdRng::seed_from_u64(3);
    let head = numbers(&mut random, 8);
    let mut turned = head.clone();
    rotate(&mut turned, 17.0, &[1.0, 0.3, 0.1, 0.01]);
    assert!(
        head.iter()
            .zip(&turned)
            .any(|(one, two)| (one - two).abs() > 0.1)
    );
    rotate(&mut turned, -17.0, &[1.0, 0.3, 0.1, 0.01]);
    assert!(
        head.iter()
            .zip(&turned)
            .all(|(one, two)| (one - two).abs() < 1e-12)
    );
}

#[test]
fn attention_of_packed_sequences() {
    let mut random = StdRng::seed_from_u64(4);
    let heads = Heads {
        queries: 4,
        keys: 2,
        size: 6,
    };
    let lengths = [1, 5, 3];
    let qkv = numbers(&mut random, 9 * heads.width());
    let by = numbers(&mut random, 9 * heads.queries * heads.size);
    let slopes = attention_back(&qkv, heads, &lengths, &by);
    agrees(&mut random, &qkv, &slopes, |qkv| {
        dot(&attention(qkv, heads, &lengths).0, &by)
    });
}

#[test]
fn log_probability_and_entropy() {
    let mut random = StdRng::seed_from_u64(5);
    let logits: Vec<f64> = numbers(&mut random, 30)
        .iter()
        .map(|one| 4.0 * one)
        .collect();
    for wanted in [(1.0, 0.0), (0.0, 1.0), (-0.7, 0.3)] {
        let slopes = score_back(&logits, 7, wanted);
        agrees(&mut random, &logits, &slopes, |logits| {
            let (logprob, entropy) = score(logits, 7);
            wanted.0 * logprob + wanted.1 * entropy
        });
    }
}

#[test]
fn whole_models() {
    let mut random = StdRng::seed_from_u64(6);
    for (tied, biased, head_norms) in [
        (true, false, false),
        (false, true, false),
        (true, false, true),
    ] {
        let layout = Layout::new(Shape {
            layers: 2,
            hidden: 16,
            feed_forward: 24,
            heads: 4,
            kv_heads: 2,
            head_dim: 8,
            vocabulary: 24,
            norm_epsilon: 1e-5,
            frequencies: vec![1.0, 0.3, 0.1, 0.03],
            tied,
            biased,
            head_norms,
        });
        let weights = numbers(&mut random, layout.count());
        let lesson = Lesson {
            tokens: &[1, 5, 5, 23, 0, 7, 1, 2, 9],
            lengths: &[4, 1, 4],
            picked: &[(0, 5), (2, 23), (5, 1), (7, 9)],
            wanted: &[(-1.0, 0.0), (-0.3, 0.1), (0.5, -0.2), (0.0, 0.4)],
        };
        let loss = |weights: &[f64]| {
            let learnt = learn(&layout, weights, &lesson);
            let each = learnt
                .logprobs
                .iter()
                .zip(&learnt.entropies)
                .zip(lesson.wanted);
            each.map(|((logprob, entropy), wanted)| wanted.0 * logprob + wanted.1 * entropy)
                .sum()
        };
        let gradient = learn(&layout, &weights, &lesson).gradient;
        agrees(&mut random, &weights, &gradient, loss);
        // Each parameter by itself: a direction through all of them would hide a small one.
        for parameter in layout.parameters() {
            let place = layout.place(parameter);
            let (part, slopes) = (&weights[place.clone()], &gradient[place.clone()]);
            assert!(
                slopes.iter().any(|one| one.abs() > 1e-9),
                "{parameter:?} has no slopes"
            );
            agrees(&mut random, part, slopes, |part| {
                let mut moved = weights.clone();
                moved[place.clone()].copy_from_slice(part);
                loss(&moved)
            });
        }
    }
}
