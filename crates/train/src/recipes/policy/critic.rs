//! The critic's part of a step: what it expects, and what it learns.

use super::batch::Batch;
use super::learn::finite;
use super::numbers::Means;
use super::{Advantages, Counters, CriticSettings, PolicyRun};
use crate::TrainError;
use crate::algorithms::{Aggregation, Estimates, explained_variance, value_loss};
use crate::metrics::Numbers;
use crate::network::Critic;

/// What a critic expected of every token of a batch, and what should be made of that.
pub(super) struct Expected {
    values: Vec<f32>,
    pub(super) estimates: Estimates,
}

impl Expected {
    pub(super) fn of(
        batch: &Batch,
        critic: &dyn Critic,
        settings: &CriticSettings,
        tokens_per_microbatch: usize,
        numbers: &mut Numbers,
    ) -> Result<Self, TrainError> {
        let values = batch.values(critic, tokens_per_microbatch)?;
        let estimates = batch.estimates(&values, &settings.gae);
        let mask = vec![true; values.len()];
        if let Some(explained) = explained_variance(&values, &estimates.returns, &mask) {
            numbers.insert("explained_variance", explained);
        }
        Ok(Self { values, estimates })
    }
}

impl PolicyRun<'_> {
    /// A critic learns from all episodes, also from those that teach the policy nothing or were cut, and as often as it
    /// needs: its targets do not move while it does.
    pub(super) fn learn_critic(
        &mut self,
        batch: &Batch,
        expected: &Expected,
        counters: &mut Counters,
        step: u64,
        numbers: &mut Numbers,
    ) -> Result<(), TrainError> {
        let Advantages::Critic(settings) = self.settings.advantages else {
            return Ok(());
        };
        let all: Vec<usize> = (0..batch.len()).collect();
        let plan = self.plan(batch, &all, step, settings.epochs);
        let Some(critic) = &mut self.critic else {
            return Ok(());
        };
        let mut means = Means::default();
        let (mut norm, mut total, mut updates) = (0.0_f64, 0.0, 0.0);
        for packs in plan.iter().flatten() {
            let aggregation = self.settings.aggregation.of_means();
            let critic = &mut **critic;
            total += push(
                critic,
                batch,
                packs,
                expected,
                &settings,
                aggregation,
                &mut means,
            )?;
            counters.critic_updates += 1;
            updates += 1.0;
            let steps = self.settings.steps;
            let update = settings
                .optimizer
                .update(step, steps, counters.critic_updates);
            norm = norm.max(critic.step(&update)?);
        }
        means.into(numbers);
        numbers.insert("value_loss", total / updates);
        numbers.insert("critic_grad_norm", norm);
        Ok(())
    }
}

/// Adds the gradient of one update's episodes. Gives the loss.
fn push(
    critic: &mut dyn Critic,
    batch: &Batch,
    packs: &[Vec<usize>],
    expected: &Expected,
    settings: &CriticSettings,
    aggregation: Aggregation,
    means: &mut Means,
) -> Result<f64, TrainError> {
    let weights = batch.weights(aggregation, &packs.concat());
    let mut total = 0.0;
    for pack in packs {
        let gather = |numbers: &[f32]| batch.gather(pack, numbers);
        let (old, weights) = (gather(&expected.values), gather(&weights));
        let returns = gather(&expected.estimates.returns);
        critic.backward(&batch.sequences(pack), &mut |values| {
            let part = value_loss(values, &old, &returns, &weights, settings.value_clip);
            total += finite(&part.loss)?;
            means.value(&part);
            Ok(part.loss.gradient)
        })?;
    }
    Ok(total)
}
