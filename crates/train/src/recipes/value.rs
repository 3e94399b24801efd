//! Value pretraining: a critic learns what to expect before a policy learns from its expectations.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::json;
use warpsmith_model::HostTensor;

use super::policy::batch::Batch;
use super::progress::{Keeping, Kept, OptimizerSettings, Progress, RecipeOutcome, Watch};
use crate::algorithms::{Aggregation, Gae, explained_variance, value_loss};
use crate::data::{TokenEpisode, batches};
use crate::metrics::Numbers;
use crate::network::Critic;
use crate::{Alarm, TrainError};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ValueSettings {
    /// At most.
    pub epochs: u64,
    /// Trajectories that make one update.
    pub batch: usize,
    pub optimizer: OptimizerSettings,
    pub aggregation: Aggregation,
    pub tokens_per_microbatch: usize,
    /// Of the order.
    pub seed: u64,
    /// What later rewards are worth.
    pub gamma: f64,
    /// Of the targets. With 1 they are what was paid, whatever the critic believes. With less the first epoch learns what was
    /// paid, and later ones what the critic at the epoch's beginning makes of it.
    pub lam: f64,
    /// Done after the epoch in which the critic explains this share of the variance held out.
    pub enough: f64,
}

const TARGETS: &str = "targets";

/// Learns from all trajectories, good and bad. Without `held_out` all epochs are made.
pub fn pretrain_value(
    critic: &mut dyn Critic,
    episodes: Vec<TokenEpisode>,
    held_out: Vec<TokenEpisode>,
    settings: &ValueSettings,
    keeping: &Keeping,
    watch: &mut dyn Watch,
) -> Result<RecipeOutcome, TrainError> {
    if episodes.is_empty() {
        return Err(TrainError::NothingToLearn {
            why: "no trajectory has a reward".into(),
        });
    }
    let batch = Batch::new(episodes);
    let held_out = Batch::new(held_out);
    let in_epoch = batch.len().div_ceil(settings.batch.max(1)) as u64;
    let steps = settings.epochs * in_epoch;
    let (mut progress, recalled) = Progress::open(keeping, steps, &mut [("critic", &mut *critic)])?;
    let mut targets: Vec<f32> = Vec::new();
    if let Some(recalled) = recalled {
        if let Some(kept) = recalled.tensors.get(TARGETS) {
            targets = kept.data().to_vec();
        }
        if recalled.memory["enough"] == true {
            progress.steps = progress.step;
            return Ok(progress.outcome(false));
        }
    }
    let mut explained = None;
    while progress.step < steps {
        watch.begins(progress.step + 1, steps);
        let begun = Instant::now();
        let epoch = progress.step / in_epoch;
        let within = progress.step % in_epoch;
        if within == 0 {
            let lam = if epoch == 0 { 1.0 } else { settings.lam };
            let values = batch.values(critic, settings.tokens_per_microbatch)?;
            targets = batch.estimates(&values, &settings.gae(lam)).returns;
        }
        let order = batches(batch.len(), settings.batch, settings.seed, epoch);
        let chosen = &order[within as usize];
        let weights = batch.weights(settings.aggregation, chosen);
        let mut loss = 0.0;
        for pack in batch.packs(chosen, settings.tokens_per_microbatch) {
            let (targets, weights) = (batch.gather(&pack, &targets), batch.gather(&pack, &weights));
            critic.backward(&batch.sequences(&pack), &mut |values| {
                let part = value_loss(values, values, &targets, &weights, None).loss;
                loss += part.value;
                Ok(part.gradient)
            })?;
        }
        if !loss.is_finite() {
            return Err(TrainError::NotFinite { what: "the loss" });
        }
        let step = progress.step + 1;
        let update = settings.optimizer.update(step, steps, step);
        let mut numbers = Numbers::from([
            ("value_loss", loss),
            ("grad_norm", critic.step(&update)?),
            ("learning_rate", update.learning_rate),
            ("epoch", step as f64 / in_epoch as f64),
        ]);
        let tokens: usize = chosen.iter().map(|place| batch.length(*place)).sum();
        let seconds = begun.elapsed().as_secs_f64();
        numbers.insert("tokens_per_second", tokens as f64 / seconds);
        if within + 1 == in_epoch && held_out.len() > 0 {
            explained = held_out_variance(critic, &held_out, settings)?;
            if let Some(explained) = explained {
                numbers.insert("explained_variance", explained);
            }
        }
        let enough = explained.is_some_and(|explained| explained >= settings.enough);
        if enough {
            progress.steps = step;
        }
        let kept = Kept {
            networks: &[("critic", &*critic)],
            tensors: BTreeMap::from([(TARGETS.to_owned(), HostTensor::vector(targets.clone()))]),
            memory: json!({ "enough": enough }),
            merit: None,
            published: None,
        };
        if progress.stepped(&numbers, &[("value_loss", Alarm::Rise)], &kept, watch)? {
            return Ok(progress.outcome(true));
        }
        if enough {
            break;
        }
    }
    Ok(progress.outcome(false))
}

impl ValueSettings {
    fn gae(&self, lam: f64) -> Gae {
        Gae {
            gamma: self.gamma,
            lam,
            critic_lambda: lam,
        }
    }
}

/// Of the reward itself.
fn held_out_variance(
    critic: &dyn Critic,
    held_out: &Batch,
    settings: &ValueSettings,
) -> Result<Option<f64>, TrainError> {
    let values = held_out.values(critic, settings.tokens_per_microbatch)?;
    let returns = held_out.estimates(&values, &settings.gae(1.0)).returns;
    Ok(explained_variance(
        &values,
        &returns,
        &vec![true; values.len()],
    ))
}
