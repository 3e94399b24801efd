//! The kernels once more, on the processor and in float32: what they are tested against.

pub mod model;
pub mod training;

use crate::AT_ONCE;

/// Root mean square norm of each row.
pub fn norm(rows: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let each = rows.chunks_exact(weight.len());
    each.flat_map(|row| {
        let squares: f32 = row.iter().map(|one| one * one).sum();
        let scale = (squares / row.len() as f32 + epsilon).sqrt().recip();
        row.iter()
            .zip(weight)
            .map(move |(one, by)| one * scale * by)
    })
    .collect()
}

/// `silu(gate) * up`; eight gates, their eight factors, and so on.
pub fn swiglu(both: &[f32]) -> Vec<f32> {
    let each = both.chunks_exact(2 * AT_ONCE);
    each.flat_map(|some| {
        let (gate, up) = some.split_at(AT_ONCE);
        gate.iter()
            .zip(up)
            .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
    })
    .collect()
}

/// Turns one head at a position: its first half against its second.
pub fn rotate(head: &mut [f32], position: u32, frequencies: &[f32]) {
    let (first, second) = head.split_at_mut(frequencies.len());
    for ((one, two), frequency) in first.iter_mut().zip(second).zip(frequencies) {
        let (sine, cosine) = (position as f32 * frequency).sin_cos();
        (*one, *two) = (*one * cosine - *two * sine, *two * cosine + *one * sine);
    }
}

/// `x · weightᵀ`, `inputs` numbers a row.
pub fn linear(x: &[f32], weight: &[f32], inputs: usize) -> Vec<f32> {
    let each = x.chunks_exact(inputs);
    each.flat_map(|row| {
        let outputs = weight.chunks_exact(inputs);
        outputs.map(move |column| row.iter().zip(column).map(|(one, two)| one * two).sum())
    })
    .collect()
}

/// One query over keys and values of the same size, position after position.
pub fn attend(query: &[f32], keys: &[f32], values: &[f32]) -> Vec<f32> {
    let width = query.len();
    let scale = (width as f32).sqrt().recip();
    let dot = |key: &[f32]| {
        query
            .iter()
            .zip(key)
            .map(|(one, two)| one * two)
            .sum::<f32>()
            * scale
    };
    let mut shares: Vec<f32> = keys.chunks_exact(width).map(dot).collect();
    let highest = shares.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for share in &mut shares {
        *share = (*share - highest).exp();
    }
    let total: f32 = shares.iter().sum();
    let mut out = vec![0.0; width];
    for (share, value) in shares.iter().zip(values.chunks_exact(width)) {
        for (to, from) in out.iter_mut().zip(value) {
            *to += share / total * from;
        }
    }
    out
}
