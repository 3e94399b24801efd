//! What a model says here, on the processor and with its weights as they are in the file, of replies that it once sampled elsewhere:
//! `cargo run --release -p warpsmith-train --example reread -- MODEL.gguf RUN COUNT [ADAPTER…]`
//!
//! RUN is the folder of a rollout whose trajectories have their tokens; COUNT of them are read, evenly spread. Prints how far the
//! log-probabilities are apart, as training does between its sampler and its learner.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use warpsmith_model::{Adapter, LogitsFor, Segment, Transformer, Weights};
use warpsmith_schema::TokenRecord;
use warpsmith_train::algorithms::Mismatch;
use warpsmith_train::data::read_trajectories;

/// Positions that go through the model together: their logits are all in memory at once.
const AT_ONCE: usize = 128;
const CAP: f32 = 2.0;

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(model), Some(run), Some(count)) = (words.next(), words.next(), words.next()) else {
        return Err("MODEL.gguf RUN COUNT [ADAPTER…]".into());
    };
    let count: usize = count.parse()?;
    let mut weights = Weights::load(&PathBuf::from(model))?;
    for adapter in words {
        weights = weights.stacked(&Adapter::load(&PathBuf::from(adapter))?)?;
    }
    let transformer = Transformer::new(Arc::new(weights));

    let trajectories = read_trajectories(&PathBuf::from(run))?;
    let records: Vec<&TokenRecord> = trajectories
        .iter()
        .flat_map(|one| one.tokens.iter().flatten())
        .collect();
    let count = count.min(records.len());
    let (mut here, mut there) = (Vec::new(), Vec::new());
    for place in 0..count {
        let record = records[place * records.len() / count];
        let said = log_probabilities(&transformer, &record.ids)?;
        for (position, sampled) in record.logprobs.iter().enumerate() {
            if let (Some(sampled), true) = (sampled, record.loss_mask[position]) {
                // The first token follows nothing and is never sampled.
                here.push(said[position - 1]);
                there.push(*sampled);
            }
        }
    }
    let mask = vec![true; here.len()];
    let mismatch = Mismatch::of(&here, &there, &mask, CAP).ok_or("no tokens were sampled there")?;
    let loss = |of: &[f32]| -of.iter().map(|one| f64::from(*one)).sum::<f64>() / of.len() as f64;
    writeln!(
        std::io::stdout().lock(),
        "{count} replies, {} tokens: {:.4} apart in the mean, |ratio - 1| up to {:.3} for 99.9 %; loss {:.4} there, {:.4} here",
        here.len(),
        mismatch.mean_difference,
        mismatch.usual_deviation,
        loss(&there),
        loss(&here),
    )?;
    Ok(())
}

/// Of each token but the first, after those before it.
fn log_probabilities(model: &Transformer, tokens: &[u32]) -> Result<Vec<f32>, Box<dyn Error>> {
    let mut cache = model.new_cache();
    let mut said = Vec::with_capacity(tokens.len());
    let after = tokens.get(1..).unwrap_or_default();
    for (chunk, next) in tokens.chunks(AT_ONCE).zip(after.chunks(AT_ONCE)) {
        let segment = Segment {
            cache: &mut cache,
            tokens: chunk,
            logits_for: LogitsFor::All,
        };
        let logits = model.forward(&mut [segment])?.remove(0);
        for (row, token) in logits.data().chunks(logits.columns()).zip(next) {
            let top = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = row.iter().map(|one| f64::from(one - top).exp()).sum();
            said.push(row[*token as usize] - top - sum.ln() as f32);
        }
    }
    Ok(said)
}
