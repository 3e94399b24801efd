//! A whole model's loss and gradient in float64.

use super::training::{
    attention, attention_back, back_to_inputs, back_to_weights, linear, norm, norm_back, rotate,
    score, score_back, swiglu, swiglu_back,
};
use crate::training::{Layout, Parameter};

/// Sequences one after the other, and which rows must say what.
pub struct Lesson<'a> {
    pub tokens: &'a [u32],
    pub lengths: &'a [usize],
    /// Rows, and the token that should follow each.
    pub picked: &'a [(usize, usize)],
    /// How the loss changes with each one's log-probability and entropy.
    pub wanted: &'a [(f64, f64)],
}

/// Log-probabilities, entropies, and the gradient of their sum with the given slopes.
pub struct Learnt {
    pub logprobs: Vec<f64>,
    pub entropies: Vec<f64>,
    pub gradient: Vec<f64>,
}

struct Kept {
    start: Vec<f64>,
    normed: Vec<f64>,
    /// As the product left it, with bias.
    raw: Vec<f64>,
    turned: Vec<f64>,
    attended: Vec<f64>,
    middle: Vec<f64>,
    middle_normed: Vec<f64>,
    both: Vec<f64>,
}

pub fn learn(layout: &Layout, weights: &[f64], lesson: &Lesson<'_>) -> Learnt {
    let shape = layout.shape();
    let (hidden, heads) = (shape.hidden, shape.all_heads());
    let (queries, width, size) = (shape.query_width(), shape.qkv_width(), shape.head_dim);
    let epsilon = f64::from(shape.norm_epsilon);
    let of = |parameter| &weights[layout.place(parameter)];
    let positions: Vec<usize> = lesson
        .lengths
        .iter()
        .flat_map(|length| 0..*length)
        .collect();
    // Query and key heads of a row, and the norm that each has.
    let turned_heads = shape.heads + shape.kv_heads;
    let head_norm = |layer: usize, head: usize| {
        let start = if head < shape.heads { 0 } else { size };
        &of(Parameter::HeadNorms(layer))[start..start + size]
    };

    let embedding = of(Parameter::Embedding);
    let mut residual: Vec<f64> = lesson
        .tokens
        .iter()
        .flat_map(|token| {
            embedding[*token as usize * hidden..][..hidden]
                .iter()
                .copied()
        })
        .collect();
    let mut layers = Vec::new();
    for layer in 0..shape.layers {
        let start = residual.clone();
        let normed = norm(&start, of(Parameter::AttentionNorm(layer)), epsilon);
        let mut raw = linear(&normed, of(Parameter::Qkv(layer)), hidden);
        if shape.biased {
            for row in raw.chunks_exact_mut(width) {
                add(row, of(Parameter::Bias(layer)));
            }
        }
        let mut turned = raw.clone();
        for (row, position) in turned.chunks_exact_mut(width).zip(&positions) {
            for (head, numbers) in row.chunks_exact_mut(size).take(turned_heads).enumerate() {
                if shape.head_norms {
                    numbers.copy_from_slice(&norm(numbers, head_norm(layer, head), epsilon));
                }
                rotate(numbers, *position as f64, &shape.frequencies);
            }
        }
        let (attended, _) = attention(&turned, heads, lesson.lengths);
        let mut middle = start.clone();
        add(
            &mut middle,
            &linear(&attended, of(Parameter::AttentionOutput(layer)), queries),
        );
        let middle_normed = norm(&middle, of(Parameter::FeedForwardNorm(layer)), epsilon);
        let both = linear(&middle_normed, of(Parameter::GateAndUp(layer)), hidden);
        residual.clone_from(&middle);
        add(
            &mut residual,
            &linear(
                &swiglu(&both),
                of(Parameter::Down(layer)),
                shape.feed_forward,
            ),
        );
        layers.push(Kept {
            start,
            normed,
            raw,
            turned,
            attended,
            middle,
            middle_normed,
            both,
        });
    }
    let last = norm(&residual, of(Parameter::FinalNorm), epsilon);

    let mut gradient = vec![0.0; layout.count()];
    let mut give = |parameter, slopes: &[f64]| add(&mut gradient[layout.place(parameter)], slopes);
    let (mut logprobs, mut entropies) = (Vec::new(), Vec::new());
    let mut slopes = vec![0.0; last.len()];
    for ((row, target), wanted) in lesson.picked.iter().zip(lesson.wanted) {
        let normed = &last[row * hidden..][..hidden];
        let logits = linear(normed, of(layout.head()), hidden);
        let (logprob, entropy) = score(&logits, *target);
        logprobs.push(logprob);
        entropies.push(entropy);
        let of_logits = score_back(&logits, *target, *wanted);
        give(layout.head(), &back_to_weights(&of_logits, normed, hidden));
        add(
            &mut slopes[row * hidden..][..hidden],
            &back_to_inputs(&of_logits, of(layout.head()), hidden),
        );
    }
    let (mut slopes, of_norm) = norm_back(&residual, of(Parameter::FinalNorm), epsilon, &slopes);
    give(Parameter::FinalNorm, &of_norm);

    for (layer, kept) in layers.iter().enumerate().rev() {
        give(
            Parameter::Down(layer),
            &back_to_weights(&slopes, &swiglu(&kept.both), shape.feed_forward),
        );
        let of_gated = back_to_inputs(&slopes, of(Parameter::Down(layer)), shape.feed_forward);
        let of_both = swiglu_back(&kept.both, &of_gated);
        give(
            Parameter::GateAndUp(layer),
            &back_to_weights(&of_both, &kept.middle_normed, hidden),
        );
        let of_normed = back_to_inputs(&of_both, of(Parameter::GateAndUp(layer)), hidden);
        let (more, of_norm) = norm_back(
            &kept.middle,
            of(Parameter::FeedForwardNorm(layer)),
            epsilon,
            &of_normed,
        );
        give(Parameter::FeedForwardNorm(layer), &of_norm);
        add(&mut slopes, &more);

        give(
            Parameter::AttentionOutput(layer),
            &back_to_weights(&slopes, &kept.attended, queries),
        );
        let of_attended = back_to_inputs(&slopes, of(Parameter::AttentionOutput(layer)), queries);
        let mut of_qkv = attention_back(&kept.turned, heads, lesson.lengths, &of_attended);
        let rows = of_qkv
            .chunks_exact_mut(width)
            .zip(kept.raw.chunks_exact(width));
        for ((row, raw), position) in rows.zip(&positions) {
            let each = row.chunks_exact_mut(size).zip(raw.chunks_exact(size));
            for (head, (numbers, raw)) in each.take(turned_heads).enumerate() {
                rotate(numbers, -(*position as f64), &shape.frequencies);
                if shape.head_norms {
                    let (back, of_norm) = norm_back(raw, head_norm(layer, head), epsilon, numbers);
                    let mut both = vec![0.0; 2 * size];
                    let start = if head < shape.heads { 0 } else { size };
                    both[start..start + size].copy_from_slice(&of_norm);
                    give(Parameter::HeadNorms(layer), &both);
                    numbers.copy_from_slice(&back);
                }
            }
            if shape.biased {
                give(Parameter::Bias(layer), row);
            }
        }
        give(
            Parameter::Qkv(layer),
            &back_to_weights(&of_qkv, &kept.normed, hidden),
        );
        let of_normed = back_to_inputs(&of_qkv, of(Parameter::Qkv(layer)), hidden);
        let (more, of_norm) = norm_back(
            &kept.start,
            of(Parameter::AttentionNorm(layer)),
            epsilon,
            &of_normed,
        );
        give(Parameter::AttentionNorm(layer), &of_norm);
        add(&mut slopes, &more);
    }
    let table = layout.place(Parameter::Embedding).start;
    for (token, slopes) in lesson.tokens.iter().zip(slopes.chunks_exact(hidden)) {
        add(
            &mut gradient[table + *token as usize * hidden..][..hidden],
            slopes,
        );
    }
    Learnt {
        logprobs,
        entropies,
        gradient,
    }
}

fn add(to: &mut [f64], from: &[f64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}
