//! Supervised fine-tuning: a policy learns to say what was said.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::progress::{Keeping, Kept, OptimizerSettings, Progress, RecipeOutcome, Watch};
use crate::algorithms::{Aggregation, negative_log_likelihood, token_weights};
use crate::data::{Example, batches, packs};
use crate::metrics::Numbers;
use crate::network::{Actor, TokenSequence};
use crate::{Alarm, TrainError};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SftSettings {
    pub epochs: u64,
    /// Trajectories that make one update.
    pub batch: usize,
    pub optimizer: OptimizerSettings,
    pub aggregation: Aggregation,
    /// Tokens that go through the network together; more need more memory, and are a little quicker.
    pub tokens_per_microbatch: usize,
    /// Of the order.
    pub seed: u64,
    /// Steps between looks at the examples that were held out.
    pub evaluate_every: u64,
}

/// `held_out` are never learnt from; what the policy thinks of them is `validation_loss`.
pub fn sft(
    actor: &mut dyn Actor,
    examples: &[Example],
    held_out: &[Example],
    settings: &SftSettings,
    keeping: &Keeping,
    watch: &mut dyn Watch,
) -> Result<RecipeOutcome, TrainError> {
    if examples.is_empty() {
        return Err(TrainError::NothingToLearn {
            why: "no trajectory has a reply that fits".into(),
        });
    }
    let in_epoch = examples.len().div_ceil(settings.batch.max(1)) as u64;
    let steps = settings.epochs * in_epoch;
    let (mut progress, _) = Progress::open(keeping, steps, &mut [("actor", &mut *actor)])?;
    progress.arrived(&|| actor.publish())?;
    while progress.step < steps {
        watch.begins(progress.step + 1, steps);
        let begun = Instant::now();
        let epoch = progress.step / in_epoch;
        let order = batches(examples.len(), settings.batch, settings.seed, epoch);
        let batch = &order[(progress.step % in_epoch) as usize];
        let batch: Vec<&Example> = batch.iter().map(|place| &examples[*place]).collect();
        let (loss, tokens) = learn(actor, &batch, settings)?;
        let step = progress.step + 1;
        let update = settings.optimizer.update(step, steps, step);
        let norm = actor.step(&update)?;
        let mut numbers = Numbers::from([
            ("loss", loss),
            ("grad_norm", norm),
            ("learning_rate", update.learning_rate),
            ("epoch", step as f64 / in_epoch as f64),
            ("tokens", tokens as f64),
        ]);
        let seconds = begun.elapsed().as_secs_f64();
        numbers.insert("tokens_per_second", tokens as f64 / seconds);
        let evaluated = step.is_multiple_of(settings.evaluate_every.max(1)) || step == steps;
        let mut merit = None;
        if evaluated && !held_out.is_empty() {
            let loss = validation_loss(actor, held_out, settings)?;
            numbers.insert("validation_loss", loss);
            merit = Some(-loss);
        }
        let kept = Kept {
            networks: &[("actor", &*actor)],
            tensors: BTreeMap::new(),
            memory: Value::Null,
            merit,
            published: Some(&|| actor.publish()),
        };
        if progress.stepped(&numbers, &[("loss", Alarm::Rise)], &kept, watch)? {
            return Ok(progress.outcome(true));
        }
    }
    Ok(progress.outcome(false))
}

/// Adds the gradient of a batch. Gives its loss, and how many tokens went through the network.
fn learn(
    actor: &mut dyn Actor,
    batch: &[&Example],
    settings: &SftSettings,
) -> Result<(f64, usize), TrainError> {
    let mut weights = weights(batch, settings.aggregation).into_iter();
    let (mut loss, mut tokens) = (0.0, 0);
    for pack in packs(&lengths(batch), settings.tokens_per_microbatch) {
        let sequences = sequences(&batch[pack]);
        tokens += sequences.iter().map(|one| one.len()).sum::<usize>();
        let said = sequences.iter().map(|one| one.loss_positions().len()).sum();
        let weights: Vec<f32> = weights.by_ref().take(said).collect();
        // How a likelihood counts does not depend on what it is.
        let grads: Vec<f32> = weights.iter().map(|weight| -weight).collect();
        let logprobs = actor.backward_known(&sequences, &grads)?;
        loss += negative_log_likelihood(&logprobs, &weights).value;
    }
    if loss.is_finite() {
        Ok((loss, tokens))
    } else {
        Err(TrainError::NotFinite { what: "the loss" })
    }
}

fn validation_loss(
    actor: &dyn Actor,
    held_out: &[Example],
    settings: &SftSettings,
) -> Result<f64, TrainError> {
    let all: Vec<&Example> = held_out.iter().collect();
    let mut weights = weights(&all, settings.aggregation).into_iter();
    let mut loss = 0.0;
    for pack in packs(&lengths(&all), settings.tokens_per_microbatch) {
        let scores = actor.score(&sequences(&all[pack]))?;
        let weights: Vec<f32> = weights.by_ref().take(scores.logprobs.len()).collect();
        loss += negative_log_likelihood(&scores.logprobs, &weights).value;
    }
    Ok(loss)
}

/// Of every token that was said.
fn weights(batch: &[&Example], aggregation: Aggregation) -> Vec<f32> {
    let masks: Vec<Vec<bool>> = batch.iter().map(|one| vec![true; one.said()]).collect();
    let masks: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
    token_weights(aggregation, &masks)
}

fn lengths(batch: &[&Example]) -> Vec<usize> {
    let length = |example: &&Example| example.sequences.iter().map(TokenSequence::len).sum();
    batch.iter().map(length).collect()
}

fn sequences<'a>(batch: &[&'a Example]) -> Vec<&'a TokenSequence> {
    batch.iter().flat_map(|one| &one.sequences).collect()
}
