//! How fast a model learns on a GPU: `train_speed [SEQUENCES LENGTH [STEPS]]`
//!
//! Random weights of SmolLM2-135M's shape, all of them learning: tokens a second and memory, as rows of a table. With `parts`
//! before the numbers, how long each kernel of a layer takes by itself.

mod parts;

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use warpsmith_kernels::Gpu;
use warpsmith_kernels::training::{
    AdamW, Batch, Keep, Layout, Learner, Parameter, Room, Shape, Wanted,
};

/// Each of so many steps, which nobody waits for in between; the median counts.
const ROUNDS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let only_parts = arguments.first().is_some_and(|first| first == "parts");
    if only_parts {
        arguments.remove(0);
    }
    let numbers: Vec<usize> = arguments
        .iter()
        .map(|text| text.parse())
        .collect::<Result<_, _>>()?;
    let (shapes, steps) = match numbers[..] {
        [] => (vec![(8, 1024), (16, 2048)], 10),
        [sequences, length] => (vec![(sequences, length)], 10),
        [sequences, length, steps] => (vec![(sequences, length)], steps.max(1)),
        _ => return Err("train_speed [SEQUENCES LENGTH [STEPS]]".into()),
    };
    let mut out = std::io::stdout().lock();
    for (sequences, length) in shapes {
        if only_parts {
            parts::measure(&mut out, &smollm2(), (sequences, length), steps)?;
            continue;
        }
        for keep in [Keep::All, Keep::Starts] {
            let row = measure(sequences, length, steps, keep)?;
            writeln!(out, "{row}")?;
            out.flush()?;
        }
    }
    Ok(())
}

fn smollm2() -> Shape {
    Shape {
        layers: 30,
        hidden: 576,
        feed_forward: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocabulary: 49_152,
        norm_epsilon: 1e-5,
        frequencies: (0..32)
            .map(|pair| 100_000f32.powf(-f32::from(pair as u16) / 32.0))
            .collect(),
        tied: true,
        biased: false,
        head_norms: false,
    }
}

fn measure(
    sequences: usize,
    length: usize,
    steps: usize,
    keep: Keep,
) -> Result<String, Box<dyn Error>> {
    let mut random = StdRng::seed_from_u64(1);
    let layout = Layout::new(smollm2());
    let weights = random_weights(&mut random, &layout);
    let gpu = Gpu::open(0)?;
    let (free, _) = gpu.memory()?;
    let room = Room {
        keep,
        ..Room::new(layout.shape(), sequences * length, length)
    };
    let mut learner = Learner::new(gpu, layout, &weights, room)?;

    let vocabulary = learner.layout().shape().vocabulary as u32;
    let said: Vec<usize> = (1..length).collect();
    let tokens: Vec<Vec<u32>> = (0..sequences)
        .map(|_| {
            (0..length)
                .map(|_| random.random_range(0..vocabulary))
                .collect()
        })
        .collect();
    let batch = Batch::new(
        tokens
            .iter()
            .map(|tokens| (tokens.as_slice(), said.as_slice())),
    );
    let share = -1.0 / batch.said() as f32;
    let wanted = vec![
        Wanted {
            logprob: share,
            entropy: 0.0
        };
        batch.said()
    ];
    let step = |learner: &mut Learner, number: u64| -> Result<(), Box<dyn Error>> {
        learner.learn(&batch, &wanted)?;
        Ok(learner.update(AdamW {
            rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.01,
            longest: 1.0,
            step: number,
        })?)
    };
    let loss = |learner: &Learner| -> Result<f32, Box<dyn Error>> {
        Ok(learner.scores()?.logprobs.iter().sum::<f32>() * share)
    };
    step(&mut learner, 1)?;
    let first = loss(&learner)?;
    // The second is recorded, the third the first that is only launched.
    step(&mut learner, 2)?;
    step(&mut learner, 3)?;
    learner.gpu().wait()?;
    let mut times = Vec::new();
    let mut number = 3;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..steps {
            number += 1;
            step(&mut learner, number)?;
        }
        learner.gpu().wait()?;
        times.push(start.elapsed().as_secs_f64() / steps as f64);
    }
    let last = loss(&learner)?;
    times.sort_by(f64::total_cmp);
    let median = times[times.len() / 2];
    let (left, _) = learner.gpu().memory()?;
    let kept = match keep {
        Keep::All => "all kept",
        Keep::Starts => "layers made again",
    };
    Ok(format!(
        "| ours, {kept} | {sequences} x {length} | {:.0} | {:.2} | {:.2} | {:.1} | {first:.3} to {last:.3} |",
        (sequences * length) as f64 / median,
        median * 1e3,
        times[0] * 1e3,
        (free - left) as f64 / (1u64 << 30) as f64,
    ))
}

/// Small around zero; norms are one.
fn random_weights(random: &mut StdRng, layout: &Layout) -> Vec<f32> {
    let each = layout.parameters().into_iter().flat_map(|parameter| {
        let is_norm = matches!(
            parameter,
            Parameter::AttentionNorm(_) | Parameter::FeedForwardNorm(_) | Parameter::FinalNorm
        );
        let random = &mut *random;
        let numbers: Vec<f32> = layout
            .place(parameter)
            .map(|_| {
                if is_norm {
                    1.0
                } else {
                    random.random_range(-0.035..0.035)
                }
            })
            .collect();
        numbers
    });
    each.collect()
}
