//! Kernels of training, forward and backward, against the CPU backend in `f64`.

mod attention;
mod rowwise;
mod step;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::training::gpu::{
    CrossEntropyRows, DeviceParameters, FlashAttnBwd, FlashAttnFwd, FlashAttnKind, PARTIALS,
    RopeTables, ScoreGrad, SequenceBlocks, TokenOccurrences, cos_sin_table,
};
use warpsmith_kernels::training::{
    AdamW, AdamWStep, AttentionShape, ModelShape, ProjectionBiases, cpu,
};
use warpsmith_kernels::{Buffer, Gpu, WriteMode, bf16};

use crate::{ROUNDED, gpu, max_error, numbers, to_bf16, to_f32};

fn exact(from: &[f32]) -> Vec<f64> {
    from.iter().copied().map(f64::from).collect()
}

fn single(from: &[f64]) -> Vec<f32> {
    from.iter().map(|one| *one as f32).collect()
}

fn close(what: &str, found: &[f32], expected: &[f64], limit: f32) {
    let worst = max_error(found, &single(expected));
    assert!(worst < limit, "{what}: off by {worst}, {limit} is allowed");
}

/// Rounding of single precision after a few thousand additions.
const SUMMED: f32 = 2e-5;

fn shape(heads: usize, kv_heads: usize, head_dim: usize) -> ModelShape {
    let pairs = 0..head_dim / 2;
    ModelShape {
        layers: 1,
        hidden: 64,
        feed_forward: 64,
        heads,
        kv_heads,
        head_dim,
        vocabulary: 64,
        norm_epsilon: 1e-6,
        rope_frequencies: pairs
            .map(|pair| 10_000f32.powf(-2.0 * pair as f32 / head_dim as f32))
            .collect(),
        tied_embeddings: true,
        biases: ProjectionBiases::default(),
        head_norms: false,
    }
}
