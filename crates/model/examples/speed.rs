//! How fast a model reads and writes here: `cargo run --release -p warpsmith-model --example speed -- smollm2-135m`
//!
//! Fetches a known model where it is missing. Reads a prompt of 512 tokens, writes 64 tokens one by one,
//! then 16 replies of 64 tokens at once.

use std::error::Error;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use warpsmith_machine::{Caches, ProgressBars};
use warpsmith_model::catalogue::{ModelReference, Network, pull};
use warpsmith_model::{
    BatchLimits, Engine, GenerationRequest, Sampler, Tokenizer, Transformer, Weights,
};

const PROMPT: usize = 512;
const WRITTEN: usize = 64;
const BATCH: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or("smollm2-135m".into());
    let path = match ModelReference::parse(&name)? {
        ModelReference::Path(path) => path,
        ModelReference::Known(model) => pull(
            &model,
            &Caches::locate()?,
            Network::Allowed,
            &ProgressBars::new(),
        )?,
    };
    let mut out = std::io::stdout().lock();
    let started = Instant::now();
    let weights = Weights::load(&path)?;
    let tokenizer = Arc::new(Tokenizer::load(&path)?);
    writeln!(out, "loaded in {:.2} s", started.elapsed().as_secs_f64())?;
    let vocabulary = weights.config.vocabulary as u32;
    let limits = BatchLimits {
        prompt_tokens_per_step: PROMPT,
        kept_tokens: 0,
        ..BatchLimits::default()
    };
    let mut engine = Engine::new(Transformer::new(Arc::new(weights)), tokenizer, limits);
    let request = |prompt: usize, seed: u64| -> Result<GenerationRequest, Box<dyn Error>> {
        Ok(GenerationRequest {
            prompt: (0..prompt as u32)
                .map(|one| (one * 7919 + 1000) % vocabulary)
                .collect(),
            sampling: Sampler::random(1.0, 1.0, seed)?,
            max_tokens: WRITTEN,
            stop: Vec::new(),
        })
    };
    // Weights are repacked for the processor on first use.
    engine.generate(request(40, 0)?, |_| {})?;

    engine.submit(request(PROMPT, 1)?)?;
    let started = Instant::now();
    engine.step()?;
    let seconds = started.elapsed().as_secs_f64();
    writeln!(
        out,
        "prompt: {:.1} tokens/s ({PROMPT} tokens)",
        PROMPT as f64 / seconds
    )?;
    let started = Instant::now();
    let mut steps = 0;
    while !engine.is_idle() {
        engine.step()?;
        steps += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    writeln!(
        out,
        "one reply: {:.1} tokens/s ({steps} tokens)",
        f64::from(steps) / seconds
    )?;

    for seed in 0..BATCH as u64 {
        engine.submit(request(32, seed)?)?;
    }
    // The prompt, once for all of them.
    engine.step()?;
    let started = Instant::now();
    let mut written = 0;
    while !engine.is_idle() {
        for event in engine.step()? {
            if let warpsmith_model::EngineEvent::Done { reply, .. } = event {
                written += reply.tokens.len();
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    writeln!(
        out,
        "{BATCH} replies: {:.1} tokens/s ({written} tokens)",
        written as f64 / seconds
    )?;
    Ok(())
}
