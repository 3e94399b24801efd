//! Kernels of training, forward and back, against their twins in float64.

mod attention;
mod rows;
mod step;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::training::{
    AdamW, Adding, Attended, AttendedBack, Attention, PARTS, Parameters, Scored, Shape, Stretches,
    Turning, Uses, Wanted, turns,
};
use warpsmith_kernels::{Buffer, Gpu, bf16, twin::training as twin};

use crate::{ROUNDED, gpu, narrow, numbers, off, wide};

fn exact(from: &[f32]) -> Vec<f64> {
    from.iter().copied().map(f64::from).collect()
}

fn single(from: &[f64]) -> Vec<f32> {
    from.iter().map(|one| *one as f32).collect()
}

/// Says what was off and by how much, if it is too much.
fn close(what: &str, seen: &[f32], wanted: &[f64], limit: f32) {
    let worst = off(seen, &single(wanted));
    assert!(worst < limit, "{what}: off by {worst}, {limit} is allowed");
}

/// What single precision leaves after a few thousand additions.
const SUMMED: f32 = 2e-5;

fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> Shape {
    let pairs = 0..head_dim / 2;
    Shape {
        layers: 1,
        hidden: 64,
        feed_forward: 64,
        heads,
        kv_heads,
        head_dim,
        vocabulary: 64,
        norm_epsilon: 1e-6,
        frequencies: pairs
            .map(|pair| 10_000f32.powf(-2.0 * pair as f32 / head_dim as f32))
            .collect(),
        tied: true,
        biased: false,
        head_norms: false,
    }
}
