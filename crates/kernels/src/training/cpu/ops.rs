//! RMS norm, SwiGLU and RoPE, forward and backward. Rows are processed on all cores.

use rayon::prelude::*;

use super::real::Real;
use crate::VEC;

/// Elements below which threads cost more than they gain.
const PARALLEL_LEN: usize = 1 << 14;

/// Calls for every row of `to` with its index, on all cores where there are enough of them.
fn for_rows<T: Real>(to: &mut [T], width: usize, each: impl Fn(usize, &mut [T]) + Sync) {
    let rows_per_task = (PARALLEL_LEN / width).max(1);
    if to.len() < 2 * PARALLEL_LEN {
        let rows = to.chunks_exact_mut(width).enumerate();
        return rows.for_each(|(row, values)| each(row, values));
    }
    let tasks = to.par_chunks_mut(rows_per_task * width).enumerate();
    tasks.for_each(|(task, rows)| {
        for (row, values) in rows.chunks_exact_mut(width).enumerate() {
            each(task * rows_per_task + row, values);
        }
    });
}

/// `row / rms(row) * weight`.
pub fn rms_norm<T: Real>(rows: &[T], weight: &[T], epsilon: f32) -> Vec<T> {
    let width = weight.len();
    let mut out = vec![T::ZERO; rows.len()];
    for_rows(&mut out, width, |row, out| {
        let row = &rows[row * width..][..width];
        let inverse_rms = inverse_rms(row, epsilon);
        for ((to, x), weight) in out.iter_mut().zip(row).zip(weight) {
            *to = *x * inverse_rms * *weight;
        }
    });
    out
}

/// Gradients of the rows and of the weight, from that of the normed rows.
pub fn rms_norm_bwd<T: Real>(
    rows: &[T],
    weight: &[T],
    epsilon: f32,
    d_normed: &[T],
) -> (Vec<T>, Vec<T>) {
    let width = weight.len();
    let mut d_rows = vec![T::ZERO; rows.len()];
    for_rows(&mut d_rows, width, |row, d_row| {
        let (x, d) = (
            &rows[row * width..][..width],
            &d_normed[row * width..][..width],
        );
        let inverse_rms = inverse_rms(x, epsilon);
        let terms = x.iter().zip(d).zip(weight);
        let dot: f64 = terms.map(|((x, d), w)| (*x * *d * *w).to_f64()).sum();
        let scale = inverse_rms.to_f64();
        let through_rms = T::from_f64(dot * scale * scale * scale / width as f64);
        for (i, to) in d_row.iter_mut().enumerate() {
            *to = d[i] * weight[i] * inverse_rms - x[i] * through_rms;
        }
    });
    // Row by row, so that the sum does not depend on the number of threads.
    let mut d_weight = vec![0.0; width];
    for (x, d) in rows.chunks_exact(width).zip(d_normed.chunks_exact(width)) {
        let inverse_rms = inverse_rms(x, epsilon);
        for ((to, x), d) in d_weight.iter_mut().zip(x).zip(d) {
            *to += (*d * *x * inverse_rms).to_f64();
        }
    }
    (d_rows, d_weight.into_iter().map(T::from_f64).collect())
}

fn inverse_rms<T: Real>(row: &[T], epsilon: f32) -> T {
    let squares: f64 = row.iter().map(|x| x.to_f64() * x.to_f64()).sum();
    T::from_f64(
        (squares / row.len() as f64 + f64::from(epsilon))
            .sqrt()
            .recip(),
    )
}

/// `silu(gate) * up`. Columns alternate: [`VEC`] gates, the ups that belong to them, and so on.
pub fn swiglu<T: Real>(gate_up: &[T]) -> Vec<T> {
    let mut out = vec![T::ZERO; gate_up.len() / 2];
    for_rows(&mut out, VEC, |vector, out| {
        let (gate, up) = gate_up[2 * VEC * vector..][..2 * VEC].split_at(VEC);
        for ((to, gate), up) in out.iter_mut().zip(gate).zip(up) {
            *to = *gate * sigmoid(*gate) * *up;
        }
    });
    out
}

/// Gradients of gates and ups, from that of [`swiglu`].
pub fn swiglu_bwd<T: Real>(gate_up: &[T], d_out: &[T]) -> Vec<T> {
    let mut d_gate_up = vec![T::ZERO; gate_up.len()];
    for_rows(&mut d_gate_up, 2 * VEC, |vector, to| {
        let (gates, ups) = gate_up[2 * VEC * vector..][..2 * VEC].split_at(VEC);
        let d_out = &d_out[VEC * vector..][..VEC];
        let (d_gates, d_ups) = to.split_at_mut(VEC);
        for i in 0..VEC {
            let (gate, sigmoid) = (gates[i], sigmoid(gates[i]));
            d_gates[i] = d_out[i] * ups[i] * sigmoid * (T::ONE + gate * (T::ONE - sigmoid));
            d_ups[i] = d_out[i] * gate * sigmoid;
        }
    });
    d_gate_up
}

fn sigmoid<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).exp())
}

/// Cosine and sine of each pair of dimensions at a position.
pub fn rope_angles<T: Real>(position: usize, frequencies: &[f32]) -> Vec<[T; 2]> {
    let angles = frequencies.iter().map(|frequency| {
        // The product in float32, as in the model that samples.
        let angle = f64::from(position as f32 * frequency);
        [T::from_f64(angle.cos()), T::from_f64(angle.sin())]
    });
    angles.collect()
}

/// RoPE: rotates each dimension of a head's first half with its partner in the second half.
pub fn rope<T: Real>(head: &mut [T], angles: &[[T; 2]]) {
    let (first, second) = head.split_at_mut(angles.len());
    for ((x1, x2), [cosine, sine]) in first.iter_mut().zip(second).zip(angles) {
        (*x1, *x2) = (*x1 * *cosine - *x2 * *sine, *x2 * *cosine + *x1 * *sine);
    }
}

/// The backward of [`rope`]: the opposite rotation.
pub fn rope_bwd<T: Real>(d_head: &mut [T], angles: &[[T; 2]]) {
    let (first, second) = d_head.split_at_mut(angles.len());
    for ((d1, d2), [cosine, sine]) in first.iter_mut().zip(second).zip(angles) {
        (*d1, *d2) = (*d1 * *cosine + *d2 * *sine, *d2 * *cosine - *d1 * *sine);
    }
}

/// `to += from`.
pub(super) fn add<T: Real>(to: &mut [T], from: &[T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += *from;
    }
}
