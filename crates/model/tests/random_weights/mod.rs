//! Models of random numbers, of any shape, without files.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_model::{
    HeadNorms, HostTensor, LayerWeights, Linear, Matrix, ModelConfig, ModelFamily, Rope,
    RopeScaling, Weights,
};

/// Few layers with everything a family has.
pub(crate) fn small(family: ModelFamily, head_dim: usize) -> ModelConfig {
    ModelConfig {
        family,
        layers: 3,
        hidden: 192,
        feed_forward: 320,
        heads: 6,
        kv_heads: 2,
        head_dim,
        vocabulary: 1000,
        norm_epsilon: 1e-5,
        rope: Rope {
            theta: 10_000.0,
            scaling: RopeScaling::None,
        },
        context: 2048,
        tied: family != ModelFamily::Llama,
    }
}

/// Sizes as training would leave them: rows keep their length on the way.
pub(crate) fn random_weights(config: ModelConfig, seed: u64) -> Weights {
    let mut random = StdRng::seed_from_u64(seed);
    let layers = (0..config.layers)
        .map(|_| layer(&config, &mut random))
        .collect();
    let embedding = matrix(&mut random, config.vocabulary, config.hidden);
    Weights {
        output: (!config.tied).then(|| matrix(&mut random, config.vocabulary, config.hidden)),
        final_norm: vector(&mut random, config.hidden),
        embedding,
        layers,
        config,
    }
}

pub(crate) fn layer(config: &ModelConfig, random: &mut StdRng) -> LayerWeights {
    let (hidden, queries, keys) = (
        config.hidden,
        config.heads * config.head_dim,
        config.kv_heads * config.head_dim,
    );
    let biased = config.family == ModelFamily::Qwen2;
    LayerWeights {
        attention_norm: vector(random, hidden),
        query: linear(random, queries, hidden, biased),
        key: linear(random, keys, hidden, biased),
        value: linear(random, keys, hidden, biased),
        head_norms: (config.family == ModelFamily::Qwen3).then(|| HeadNorms {
            query: vector(random, config.head_dim),
            key: vector(random, config.head_dim),
        }),
        attention_output: linear(random, hidden, queries, false),
        feed_forward_norm: vector(random, hidden),
        gate: linear(random, config.feed_forward, hidden, false),
        up: linear(random, config.feed_forward, hidden, false),
        down: linear(random, hidden, config.feed_forward, false),
    }
}

fn linear(random: &mut StdRng, rows: usize, columns: usize, biased: bool) -> Linear {
    Linear {
        weight: matrix(random, rows, columns),
        bias: biased.then(|| vector(random, rows)),
        adapters: Vec::new(),
    }
}

fn matrix(random: &mut StdRng, rows: usize, columns: usize) -> Matrix {
    let size = (3.0 / columns as f32).sqrt();
    let numbers: Vec<f32> = (0..rows * columns)
        .map(|_| random.random_range(-size..size))
        .collect();
    HostTensor::new([rows, columns], numbers).into()
}

fn vector(random: &mut StdRng, len: usize) -> Vec<f32> {
    (0..len).map(|_| random.random_range(0.5..1.5)).collect()
}
