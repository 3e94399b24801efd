//! How fast tokens are written on a GPU: `gpu_speed [REPEATS [BATCH]]`
//!
//! Random weights of known shapes, since speed does not depend on what they say: milliseconds a step after a prompt of 512
//! tokens, as median, least and most of several runs of 32 steps; with it the time that reading weights, and keys and values,
//! takes at the device's bandwidth.

#[path = "../tests/random_weights/mod.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "a test's own")]
mod random_weights;

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::StdRng;
use warpsmith_kernels::{Gpu, RowSampling};
use warpsmith_model::catalogue;
use warpsmith_model::gpu::{DeviceSegment, DeviceTransformer, KvCapacity};
use warpsmith_model::{ModelConfig, ModelError, Weights};

const PROMPT: usize = 512;
const STEPS: usize = 32;
/// Of an H200.
const BYTES_A_SECOND: f64 = 4.8e12;

fn main() -> Result<(), Box<dyn Error>> {
    let repeats: usize = match std::env::args().nth(1) {
        Some(text) => text.parse::<usize>()?.max(1),
        None => 5,
    };
    let only: Option<usize> = match std::env::args().nth(2) {
        Some(text) => Some(text.parse()?),
        None => None,
    };
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "| model | batch | ms a step | least, most | reading alone | share | prompt, tokens/s |"
    )?;
    writeln!(out, "|---|---|---|---|---|---|---|")?;
    for (name, config, batches) in [
        ("SmolLM2-135M", shape("smollm2-135m")?, &[1, 256][..]),
        (
            "Qwen2.5-Coder-1.5B",
            shape("qwen2.5-coder-1.5b")?,
            &[1, 64][..],
        ),
    ] {
        let weights = shaped(&config);
        for &batch in batches
            .iter()
            .filter(|&&batch| only.is_none_or(|only| only == batch))
        {
            let row = measure(&weights, batch, repeats)?;
            writeln!(out, "| {name} | {batch} | {row} |")?;
            out.flush()?;
        }
    }
    Ok(())
}

fn measure(weights: &Weights, batch: usize, repeats: usize) -> Result<String, ModelError> {
    let room = KvCapacity {
        sequences: batch,
        slots: batch,
        positions: PROMPT + (repeats + 2) * STEPS,
        rows: 8192,
    };
    let mut device = DeviceTransformer::new(Gpu::open(0)?, weights, room)?;
    let config = &weights.config;
    let prompt: Vec<u32> = (0..PROMPT)
        .map(|one| (one * 7919 % config.vocabulary) as u32)
        .collect();
    let mut caches: Vec<_> = (0..batch).map_while(|_| device.new_cache()).collect();
    let mut last = vec![0u32; batch];
    let mut step = |device: &mut DeviceTransformer,
                    last: &mut Vec<u32>,
                    number: u64,
                    first: bool|
     -> Result<(), ModelError> {
        let mut segments: Vec<DeviceSegment<'_>> = caches
            .iter_mut()
            .zip(last.iter())
            .enumerate()
            .map(|(row, (cache, last))| DeviceSegment {
                cache,
                tokens: if first {
                    &prompt
                } else {
                    std::slice::from_ref(last)
                },
                choice: Some((
                    RowSampling {
                        temperature: 1.0,
                        top_p: 1.0,
                        seed: row as u64,
                    },
                    number,
                )),
            })
            .collect();
        let chosen = device.step(&mut segments)?;
        *last = chosen.into_iter().flatten().map(|one| one.token).collect();
        Ok(())
    };
    let started = Instant::now();
    step(&mut device, &mut last, 0, true)?;
    let prompt_seconds = started.elapsed().as_secs_f64();
    let mut times = Vec::new();
    let mut number = 1;
    for run in 0..=repeats {
        let started = Instant::now();
        for _ in 0..STEPS {
            step(&mut device, &mut last, number, false)?;
            number += 1;
        }
        // The first run captures the graph.
        if run > 0 {
            times.push(started.elapsed().as_secs_f64() * 1e3 / STEPS as f64);
        }
    }
    times.sort_by(f64::total_cmp);
    let middle = times[times.len() / 2];
    let kept = batch * PROMPT * config.layers * 2 * config.kv_heads * config.head_dim;
    let reading = |numbers: usize| numbers as f64 * 2.0 / BYTES_A_SECOND * 1e3;
    Ok(format!(
        "{middle:.3} | {:.3}, {:.3} | {:.3} + {:.3} | {:.0} % | {:.0}",
        times[0],
        times[times.len() - 1],
        reading(config.parameters()),
        reading(kept),
        100.0 * reading(config.parameters()) / middle,
        (batch * PROMPT) as f64 / prompt_seconds,
    ))
}

/// Every layer has the same numbers.
fn shaped(config: &ModelConfig) -> Weights {
    let one = ModelConfig {
        layers: 1,
        ..config.clone()
    };
    let mut weights = random_weights::random_weights(one, 1);
    let layer = random_weights::layer(config, &mut StdRng::seed_from_u64(2));
    weights.layers = vec![layer; config.layers];
    weights.config = config.clone();
    weights
}

/// The output layer is the embedding again, as the models' cards have it.
fn shape(name: &str) -> Result<ModelConfig, ModelError> {
    Ok(ModelConfig {
        tied: true,
        ..catalogue::find(name)?.config
    })
}
