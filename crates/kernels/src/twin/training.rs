//! What training does, forward and back, in float64: so that slopes can be compared with differences.
//!
//! Slopes of something are how the loss changes with each of its numbers.

use std::f64::consts::E;

use crate::AT_ONCE;

/// A norm's slopes: of its rows and of its weight.
pub fn norm_back(
    rows: &[f64],
    weight: &[f64],
    epsilon: f64,
    slopes: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let width = weight.len();
    let mut row_slopes = Vec::with_capacity(rows.len());
    let mut weight_slopes = vec![0.0; width];
    for (row, slope) in rows.chunks_exact(width).zip(slopes.chunks_exact(width)) {
        let scale = norm_scale(row, epsilon);
        let along: f64 = (0..width).map(|i| row[i] * slope[i] * weight[i]).sum();
        let back = along * scale.powi(3) / width as f64;
        for i in 0..width {
            weight_slopes[i] += slope[i] * row[i] * scale;
            row_slopes.push(slope[i] * weight[i] * scale - row[i] * back);
        }
    }
    (row_slopes, weight_slopes)
}

pub fn norm(rows: &[f64], weight: &[f64], epsilon: f64) -> Vec<f64> {
    let each = rows.chunks_exact(weight.len());
    each.flat_map(|row| {
        let scale = norm_scale(row, epsilon);
        row.iter()
            .zip(weight)
            .map(move |(one, by)| one * scale * by)
    })
    .collect()
}

fn norm_scale(row: &[f64], epsilon: f64) -> f64 {
    let squares: f64 = row.iter().map(|one| one * one).sum();
    (squares / row.len() as f64 + epsilon).sqrt().recip()
}

/// `silu(gate) * up`; eight gates, their eight factors, and so on.
pub fn swiglu(both: &[f64]) -> Vec<f64> {
    let each = both.chunks_exact(2 * AT_ONCE);
    each.flat_map(|some| (0..AT_ONCE).map(|i| some[i] * open(some[i]) * some[AT_ONCE + i]))
        .collect()
}

/// Slopes of gates and factors, where they are.
pub fn swiglu_back(both: &[f64], slopes: &[f64]) -> Vec<f64> {
    let each = both.chunks_exact(2 * AT_ONCE).zip(slopes.chunks(AT_ONCE));
    each.flat_map(|(some, slopes)| {
        let (gates, factors) = some.split_at(AT_ONCE);
        let gate = (0..AT_ONCE).map(|i| {
            let open = open(gates[i]);
            slopes[i] * factors[i] * open * (1.0 + gates[i] * (1.0 - open))
        });
        let factor = (0..AT_ONCE).map(|i| slopes[i] * gates[i] * open(gates[i]));
        gate.chain(factor).collect::<Vec<_>>()
    })
    .collect()
}

fn open(gate: f64) -> f64 {
    (1.0 + E.powf(-gate)).recip()
}

/// Turns one head: its first half against its second. Turning by the negative position is the way back.
pub fn rotate(head: &mut [f64], position: f64, frequencies: &[f32]) {
    let (first, second) = head.split_at_mut(frequencies.len());
    for ((one, two), frequency) in first.iter_mut().zip(second).zip(frequencies) {
        let (sine, cosine) = (position * f64::from(*frequency)).sin_cos();
        (*one, *two) = (*one * cosine - *two * sine, *two * cosine + *one * sine);
    }
}

/// `x · weightᵀ`, `inputs` numbers a row.
pub fn linear(x: &[f64], weight: &[f64], inputs: usize) -> Vec<f64> {
    let each = x.chunks_exact(inputs);
    each.flat_map(|row| {
        let outputs = weight.chunks_exact(inputs);
        outputs.map(move |column| row.iter().zip(column).map(|(one, two)| one * two).sum())
    })
    .collect()
}

/// `slopes · weight`: slopes of what was multiplied.
pub fn back_to_inputs(slopes: &[f64], weight: &[f64], inputs: usize) -> Vec<f64> {
    let outputs = weight.len() / inputs;
    let mut all = Vec::new();
    for row in slopes.chunks_exact(outputs) {
        let mut sums = vec![0.0; inputs];
        for (slope, column) in row.iter().zip(weight.chunks_exact(inputs)) {
            for (sum, one) in sums.iter_mut().zip(column) {
                *sum += slope * one;
            }
        }
        all.extend(sums);
    }
    all
}

/// `slopesᵀ · x`: slopes of the matrix.
pub fn back_to_weights(slopes: &[f64], x: &[f64], inputs: usize) -> Vec<f64> {
    let rows = x.len() / inputs;
    let outputs = slopes.len() / rows;
    let mut all = vec![0.0; outputs * inputs];
    for (slopes, row) in slopes.chunks_exact(outputs).zip(x.chunks_exact(inputs)) {
        for (slope, sums) in slopes.iter().zip(all.chunks_exact_mut(inputs)) {
            for (sum, one) in sums.iter_mut().zip(row) {
                *sum += slope * one;
            }
        }
    }
    all
}

/// Heads of a row: all of queries, then of keys, then of values.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    pub queries: usize,
    pub keys: usize,
    pub size: usize,
}

impl Heads {
    pub fn width(self) -> usize {
        (self.queries + 2 * self.keys) * self.size
    }

    fn scale(self) -> f64 {
        (self.size as f64).sqrt().recip()
    }

    /// Where a query head's keys and values begin in a row.
    fn shared(self, head: usize) -> (usize, usize) {
        let key = self.queries + head / (self.queries / self.keys);
        (key * self.size, (key + self.keys) * self.size)
    }
}

/// How much a row of a sequence looks at each of the sequence's rows up to it.
fn shares(qkv: &[f64], heads: Heads, begin: usize, row: usize, head: usize) -> (Vec<f64>, f64) {
    let (width, size) = (heads.width(), heads.size);
    let query = &qkv[row * width + head * size..][..size];
    let scores: Vec<f64> = (begin..=row)
        .map(|other| {
            let key = &qkv[other * width + heads.shared(head).0..][..size];
            query
                .iter()
                .zip(key)
                .map(|(one, two)| one * two)
                .sum::<f64>()
                * heads.scale()
        })
        .collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|score| (score - top).exp()).sum();
    let log_total = top + total.ln();
    let shares = scores.iter().map(|score| (score - log_total).exp());
    (shares.collect(), log_total)
}

/// Causal attention of sequences that lie one after the other, and the logarithm of each row's sum over exp(score):
/// `[head][row]`.
pub fn attention(qkv: &[f64], heads: Heads, lengths: &[usize]) -> (Vec<f64>, Vec<f64>) {
    let (width, size, rows) = (heads.width(), heads.size, lengths.iter().sum::<usize>());
    let mut out = vec![0.0; rows * heads.queries * size];
    let mut log_totals = vec![0.0; heads.queries * rows];
    for (begin, row, head) in places(lengths, heads.queries) {
        let (shares, log_total) = shares(qkv, heads, begin, row, head);
        log_totals[head * rows + row] = log_total;
        let to = &mut out[(row * heads.queries + head) * size..][..size];
        for (share, other) in shares.iter().zip(begin..) {
            let value = &qkv[other * width + heads.shared(head).1..][..size];
            for (to, from) in to.iter_mut().zip(value) {
                *to += share * from;
            }
        }
    }
    (out, log_totals)
}

/// Slopes of queries, keys and values.
pub fn attention_back(qkv: &[f64], heads: Heads, lengths: &[usize], slopes: &[f64]) -> Vec<f64> {
    let (width, size) = (heads.width(), heads.size);
    let mut all = vec![0.0; qkv.len()];
    for (begin, row, head) in places(lengths, heads.queries) {
        let (key, value) = heads.shared(head);
        let (shares, _) = shares(qkv, heads, begin, row, head);
        let slope = &slopes[(row * heads.queries + head) * size..][..size];
        let of_shares: Vec<f64> = (begin..=row)
            .map(|other| {
                (0..size)
                    .map(|i| slope[i] * qkv[other * width + value + i])
                    .sum()
            })
            .collect();
        let mean: f64 = shares
            .iter()
            .zip(&of_shares)
            .map(|(one, two)| one * two)
            .sum();
        for (index, other) in (begin..=row).enumerate() {
            let of_score = shares[index] * (of_shares[index] - mean) * heads.scale();
            for (i, slope) in slope.iter().enumerate() {
                all[row * width + head * size + i] += of_score * qkv[other * width + key + i];
                all[other * width + key + i] += of_score * qkv[row * width + head * size + i];
                all[other * width + value + i] += shares[index] * slope;
            }
        }
    }
    all
}

/// Every row with its sequence's first, and every head.
fn places(lengths: &[usize], heads: usize) -> Vec<(usize, usize, usize)> {
    let mut all = Vec::new();
    let mut begin = 0;
    for length in lengths {
        for row in begin..begin + length {
            all.extend((0..heads).map(|head| (begin, row, head)));
        }
        begin += length;
    }
    all
}

/// The log-probability of a row's target, and the entropy of its distribution.
pub fn score(logits: &[f64], target: usize) -> (f64, f64) {
    let logs = log_shares(logits);
    (
        logs[target],
        -logs.iter().map(|log| log.exp() * log).sum::<f64>(),
    )
}

/// Slopes of logits, from those of the log-probability and the entropy.
pub fn score_back(logits: &[f64], target: usize, wanted: (f64, f64)) -> Vec<f64> {
    let (_, entropy) = score(logits, target);
    let logs = log_shares(logits);
    let each = logs.iter().enumerate();
    each.map(|(place, log)| {
        let hit = if place == target { wanted.0 } else { 0.0 };
        hit - log.exp() * (wanted.0 + wanted.1 * (log + entropy))
    })
    .collect()
}

fn log_shares(logits: &[f64]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|one| (one - top).exp()).sum();
    logits.iter().map(|one| one - top - total.ln()).collect()
}
