//! One step's learning.

use super::batch::Batch;
use super::numbers::{self, Means};
use super::{Advantages, Counters, CriticSettings, CutReplies, PolicyRun, replies};
use crate::TrainError;
use crate::algorithms::{
    GroupAdvantages, Kl, Loss, Mismatch, entropy_coeff, explained_variance, kl_loss, policy_loss,
    truncated_importance, value_loss, whiten,
};
use crate::data::{TokenEpisode, batches};
use crate::metrics::Numbers;
use crate::network::{Critic, TokenScores};
use warpsmith_kernels::training::AdamWStep;

/// Before anything was learnt, ratios are one but for this.
const REPEATABLE: f64 = 1e-5;

/// Everything about the tokens of a batch that stays the same while it is learnt from.
struct Known {
    /// By the policy that is to learn, in its own arithmetic.
    old: Vec<f32>,
    importance: Vec<f32>,
    advantages: Vec<f32>,
    /// By the reference, where there is one.
    reference: Option<Vec<f32>>,
    /// The critic's values and what they should have been, where there is one.
    expected: Option<Expected>,
}

/// Values, and what they should have been.
type Expected = (Vec<f32>, Vec<f32>);

/// Packs of episodes for each update.
type Plan = Vec<Vec<Vec<usize>>>;

impl PolicyRun<'_> {
    pub(super) fn learn(
        &mut self,
        batch: &Batch,
        counters: &mut Counters,
        step: u64,
        numbers: &mut Numbers,
    ) -> Result<(), TrainError> {
        let plan = self.plan(batch, step);
        let known = self.known(batch, &plan[0], numbers)?;
        let mut means = Means::default();
        let (mut actor_norm, mut critic_norm) = (0.0_f64, 0.0_f64);
        let (mut policy_total, mut value_total) = (0.0, 0.0);
        let updates = plan.iter().map(Vec::len).sum::<usize>() as f64;
        for (pass, minibatches) in plan.iter().enumerate() {
            for (place, packs) in minibatches.iter().enumerate() {
                let chosen = packs.clone();
                let first = pass == 0 && place == 0;
                policy_total += self.push_actor(batch, &chosen, &known, first, &mut means)?;
                counters.updates += 1;
                let update = self.update(step, counters.updates);
                actor_norm = actor_norm.max(self.actor.step(&update)?);
                numbers.insert("learning_rate", update.learning_rate);
                if let (Some(critic), Advantages::Critic(settings)) =
                    (&mut self.critic, &self.settings.advantages)
                {
                    let aggregation = self.settings.aggregation;
                    value_total += push_critic(
                        &mut **critic,
                        batch,
                        packs,
                        &known,
                        settings,
                        aggregation,
                        &mut means,
                    )?;
                    let steps = self.settings.steps;
                    let update = settings.rates.update(step, steps, counters.updates);
                    critic_norm = critic_norm.max(critic.step(&update)?);
                }
            }
        }
        means.into(numbers);
        numbers.insert("policy_loss", policy_total / updates);
        numbers.insert("grad_norm", actor_norm);
        if known.expected.is_some() {
            numbers.insert("value_loss", value_total / updates);
            numbers.insert("critic_grad_norm", critic_norm);
        }
        Ok(())
    }

    fn update(&self, step: u64, number: u64) -> AdamWStep {
        let settings = &self.settings;
        settings.rates.update(step, settings.steps, number)
    }

    /// For each pass, each update's packs.
    fn plan(&self, batch: &Batch, step: u64) -> Vec<Plan> {
        let settings = &self.settings;
        let size = batch.len().div_ceil(settings.minibatches.max(1));
        (0..settings.epochs.max(1))
            .map(|pass| {
                let epoch = step * settings.epochs.max(1) + pass;
                let order = batches(batch.len(), size, settings.seed, epoch);
                let packs =
                    |chosen: &Vec<usize>| batch.packs(chosen, settings.tokens_per_microbatch);
                order.iter().map(packs).collect()
            })
            .collect()
    }

    fn counts(&self, episode: &TokenEpisode) -> bool {
        !(episode.cut && self.settings.cut_replies == CutReplies::Mask)
    }

    fn known(
        &self,
        batch: &Batch,
        first_pass: &Plan,
        numbers: &mut Numbers,
    ) -> Result<Known, TrainError> {
        let settings = &self.settings;
        let packs = first_pass.concat();
        let scores = batch.scores(self.actor, &packs)?;
        let all: Vec<usize> = (0..batch.len()).collect();
        let weights = batch.weights(settings.aggregation, &all, &|_| true);
        let entropy: f64 = weights
            .iter()
            .zip(&scores.entropies)
            .map(|(weight, entropy)| f64::from(*weight) * f64::from(*entropy))
            .sum();
        numbers.insert("entropy", entropy);
        let sampled = batch.sampled();
        let mask = vec![true; batch.said()];
        let cap = settings.importance_cap;
        if let Some(mismatch) = Mismatch::of(&scores.logprobs, &sampled, &mask, cap) {
            numbers::of_mismatch(&mismatch, numbers);
        }
        let (advantages, expected) = match (&settings.advantages, &self.critic) {
            (Advantages::Critic(settings), Some(critic)) => {
                self.by_critic(batch, &**critic, settings, numbers)?
            }
            (Advantages::Critic(_), None) => {
                return Err(TrainError::NothingToLearn {
                    why: "PPO needs a critic".into(),
                });
            }
            (Advantages::Group { rule, .. }, _) => (by_group(batch, rule), None),
        };
        let reference = match self.reference {
            Some(reference) => Some(batch.scores(reference, &packs)?.logprobs),
            None => None,
        };
        if let Some(reference) = &reference {
            let kl = kl_loss(Kl::K3, &scores.logprobs, reference, &weights);
            numbers.insert("kl", kl.value);
        }
        Ok(Known {
            importance: truncated_importance(&scores.logprobs, &sampled, cap),
            old: scores.logprobs,
            advantages,
            reference,
            expected,
        })
    }

    fn by_critic(
        &self,
        batch: &Batch,
        critic: &dyn Critic,
        settings: &CriticSettings,
        numbers: &mut Numbers,
    ) -> Result<(Vec<f32>, Option<Expected>), TrainError> {
        let values = batch.values(critic, self.settings.tokens_per_microbatch)?;
        let mut estimates = batch.estimates(&values, &settings.gae);
        let mask = vec![true; values.len()];
        if let Some(explained) = explained_variance(&values, &estimates.returns, &mask) {
            numbers.insert("explained_variance", explained);
        }
        if settings.whiten {
            let counted: Vec<bool> = batch
                .episodes()
                .iter()
                .flat_map(|episode| vec![self.counts(episode); episode.tokens.said()])
                .collect();
            whiten(&mut estimates.advantages, &counted);
        }
        let expected = Some((values, estimates.returns));
        Ok((estimates.advantages, expected))
    }

    /// Adds the gradient of one update's episodes. Gives the loss.
    fn push_actor(
        &mut self,
        batch: &Batch,
        packs: &[Vec<usize>],
        known: &Known,
        first: bool,
        means: &mut Means,
    ) -> Result<f64, TrainError> {
        let settings = self.settings;
        let chosen = packs.concat();
        let weights = batch.weights(settings.aggregation, &chosen, &|one| self.counts(one));
        let mut total = 0.0;
        for pack in packs {
            let gather = |numbers: &[f32]| batch.gather(pack, numbers);
            let weights = gather(&weights);
            let (old, advantages) = (gather(&known.old), gather(&known.advantages));
            let importance = gather(&known.importance);
            let reference = known.reference.as_deref().map(gather);
            self.actor.backward(&batch.sequences(pack), &mut |scores| {
                let new = &scores.logprobs;
                let part = policy_loss(
                    new,
                    &old,
                    &advantages,
                    Some(&importance),
                    &weights,
                    settings.clip,
                );
                if first {
                    check_ratios(part.ratios)?;
                }
                let mut loss = part.loss.clone();
                if let (Some(penalty), Some(reference)) = (settings.penalty, &reference) {
                    let kl = kl_loss(penalty.kl, new, reference, &weights);
                    loss = loss.plus(&kl.scaled(penalty.coefficient));
                }
                let bonus = entropy_coeff(&scores.entropies, &weights, settings.entropy_coeff);
                total += finite(&loss)? + bonus.value;
                means.policy(&part);
                means.moved(&old, new);
                Ok(TokenScores {
                    logprobs: loss.gradient,
                    entropies: bonus.gradient,
                })
            })?;
        }
        Ok(total)
    }
}

fn by_group(batch: &Batch, rule: &GroupAdvantages) -> Vec<f32> {
    let mut advantages = Vec::with_capacity(batch.len());
    let groups = batch
        .episodes()
        .chunk_by(|one, other| one.task == other.task);
    for group in groups {
        let found = rule.of(&replies(group));
        advantages.extend(found.unwrap_or_else(|| vec![0.0; group.len()]));
    }
    batch.spread(&advantages)
}

fn push_critic(
    critic: &mut dyn Critic,
    batch: &Batch,
    packs: &[Vec<usize>],
    known: &Known,
    settings: &CriticSettings,
    aggregation: crate::algorithms::Aggregation,
    means: &mut Means,
) -> Result<f64, TrainError> {
    let Some((values, returns)) = &known.expected else {
        return Ok(0.0);
    };
    let chosen = packs.concat();
    // A critic learns from all episodes, also from those that were cut.
    let weights = batch.weights(aggregation, &chosen, &|_| true);
    let mut total = 0.0;
    for pack in packs {
        let gather = |numbers: &[f32]| batch.gather(pack, numbers);
        let (old, returns, weights) = (gather(values), gather(returns), gather(&weights));
        critic.backward(&batch.sequences(pack), &mut |values| {
            let part = value_loss(values, &old, &returns, &weights, settings.value_clip);
            total += finite(&part.loss)?;
            means.value(&part);
            Ok(part.loss.gradient)
        })?;
    }
    Ok(total)
}

fn finite(loss: &Loss) -> Result<f64, TrainError> {
    if loss.value.is_finite() {
        Ok(loss.value)
    } else {
        Err(TrainError::NotFinite { what: "the loss" })
    }
}

/// The old probabilities were just found with the same parameters in the same packs.
fn check_ratios((low, high): (f64, f64)) -> Result<(), TrainError> {
    let furthest = if (high - 1.0).abs() > (low - 1.0).abs() {
        high
    } else {
        low
    };
    if (furthest - 1.0).abs() <= REPEATABLE {
        Ok(())
    } else {
        Err(TrainError::NotRepeatable { ratio: furthest })
    }
}
