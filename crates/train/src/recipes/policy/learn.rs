//! One step's learning.

use super::batch::Batch;
use super::collect::{Collected, replies};
use super::critic::Expected;
use super::numbers::{self, Means};
use super::{Advantages, Counters, PolicyRun};
use crate::TrainError;
use crate::algorithms::{
    GroupAdvantages, Kl, Loss, LossMode, Mismatch, PolicyTokens, entropy_coeff, gspo_loss, kl_loss,
    policy_loss, truncated_importance, whiten,
};
use crate::data::batches;
use crate::metrics::Numbers;
use crate::network::TokenScores;

/// Before anything was learnt, ratios are one but for this.
const REPEATABLE: f64 = 1e-5;

/// Everything about the tokens of a batch that stays the same while it is learnt from; zero where nothing is.
struct Known {
    /// How the tokens of all that is learnt from count together in means.
    weights: Vec<f32>,
    /// By the policy that is to learn, in its own arithmetic.
    old: Vec<f32>,
    importance: Vec<f32>,
    advantages: Vec<f32>,
    /// By the reference, where there is one.
    reference: Option<Vec<f32>>,
}

/// Packs of episodes for each update.
pub(super) type Plan = Vec<Vec<Vec<usize>>>;

impl PolicyRun<'_> {
    pub(super) fn learn(
        &mut self,
        collected: &Collected,
        counters: &mut Counters,
        step: u64,
        numbers: &mut Numbers,
    ) -> Result<(), TrainError> {
        let (batch, taught) = (&collected.batch, collected.taught());
        let settings = &self.settings;
        let (advantages, expected) = match (&settings.advantages, &self.critic) {
            (Advantages::Critic(critic_settings), Some(critic)) => {
                let microbatch = settings.tokens_per_microbatch;
                let expected =
                    Expected::of(batch, &**critic, critic_settings, microbatch, numbers)?;
                let mut advantages = expected.estimates.advantages.clone();
                if critic_settings.whiten {
                    whiten(
                        &mut advantages,
                        &batch.weights(settings.aggregation, &taught),
                    );
                }
                (advantages, Some(expected))
            }
            (Advantages::Critic(_), None) => {
                return Err(TrainError::NothingToLearn {
                    why: "PPO needs a critic".into(),
                });
            }
            (Advantages::Group { rule }, _) => (by_group(collected, rule), None),
        };
        if !taught.is_empty() {
            self.learn_actor(batch, &taught, advantages, counters, step, numbers)?;
        }
        if let Some(expected) = expected {
            self.learn_critic(batch, &expected, counters, step, numbers)?;
        }
        Ok(())
    }

    fn learn_actor(
        &mut self,
        batch: &Batch,
        taught: &[usize],
        advantages: Vec<f32>,
        counters: &mut Counters,
        step: u64,
        numbers: &mut Numbers,
    ) -> Result<(), TrainError> {
        let plan = self.plan(batch, taught, step, self.settings.epochs);
        let scored = plan[0].concat();
        let known = self.known(batch, advantages, &scored, numbers)?;
        let mut means = Means::default();
        let (mut norm, mut total, mut made, mut moved) = (0.0_f64, 0.0, 0, 0.0);
        let planned = plan.iter().map(Vec::len).sum::<usize>();
        for packs in plan.iter().flatten() {
            total += self.push_actor(batch, packs, &known, made == 0, &mut means)?;
            counters.updates += 1;
            made += 1;
            let settings = &self.settings;
            let update = settings
                .optimizer
                .update(step, settings.steps, counters.updates);
            norm = norm.max(self.actor.step(&update)?);
            numbers.insert("learning_rate", update.learning_rate);
            let target_kl = self.settings.target_kl;
            if made == planned || target_kl.is_some() {
                moved = self.moved(batch, &scored, &known)?;
            }
            if target_kl.is_some_and(|target_kl| moved > target_kl) {
                break;
            }
        }
        means.into(numbers);
        numbers.insert("kl_step", moved);
        numbers.insert("updates", made as f64);
        numbers.insert("policy_loss", total / made as f64);
        numbers.insert("grad_norm", norm);
        Ok(())
    }

    /// For each pass over the chosen episodes, each update's packs.
    pub(super) fn plan(
        &self,
        batch: &Batch,
        chosen: &[usize],
        step: u64,
        epochs: u64,
    ) -> Vec<Plan> {
        let settings = &self.settings;
        let size = chosen.len().div_ceil(settings.minibatches.max(1));
        let packs = |places: &Vec<usize>| {
            let episodes: Vec<usize> = places.iter().map(|place| chosen[*place]).collect();
            batch.packs(&episodes, settings.tokens_per_microbatch)
        };
        (0..epochs.max(1))
            .map(|pass| {
                let epoch = step * epochs.max(1) + pass;
                let order = batches(chosen.len(), size, settings.seed, epoch);
                order.iter().map(packs).collect()
            })
            .collect()
    }

    fn known(
        &self,
        batch: &Batch,
        advantages: Vec<f32>,
        packs: &[Vec<usize>],
        numbers: &mut Numbers,
    ) -> Result<Known, TrainError> {
        let settings = &self.settings;
        let scores = batch.scores(self.actor, packs)?;
        let weights = batch.weights(settings.aggregation.of_means(), &packs.concat());
        let entropy: f64 = weights
            .iter()
            .zip(&scores.entropies)
            .map(|(weight, entropy)| f64::from(*weight) * f64::from(*entropy))
            .sum();
        numbers.insert("entropy", entropy);
        let sampled = batch.sampled();
        let mask: Vec<bool> = weights.iter().map(|weight| *weight > 0.0).collect();
        let cap = settings.importance_cap;
        if let Some(mismatch) = Mismatch::of(&scores.logprobs, &sampled, &mask, cap) {
            numbers::of_mismatch(&mismatch, numbers);
        }
        let reference = match self.reference {
            Some(reference) => Some(batch.scores(reference, packs)?.logprobs),
            None => None,
        };
        if let Some(reference) = &reference {
            let kl = kl_loss(Kl::K3, &scores.logprobs, reference, &weights);
            numbers.insert("kl", kl.value);
        }
        Ok(Known {
            importance: truncated_importance(&scores.logprobs, &sampled, cap),
            weights,
            old: scores.logprobs,
            advantages,
            reference,
        })
    }

    /// How far the policy is by now from what it was at the step's beginning.
    fn moved(&self, batch: &Batch, packs: &[Vec<usize>], known: &Known) -> Result<f64, TrainError> {
        let new = batch.scores(self.actor, packs)?.logprobs;
        // The tokens are the old policy's, so that is whose divergence they can tell.
        Ok(kl_loss(Kl::K3, &known.old, &new, &known.weights).value)
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
        let weights = batch.weights(settings.aggregation, &packs.concat());
        let mut total = 0.0;
        for pack in packs {
            let gather = |numbers: &[f32]| batch.gather(pack, numbers);
            let weights = gather(&weights);
            let (old, advantages) = (gather(&known.old), gather(&known.advantages));
            let importance = gather(&known.importance);
            let reference = known.reference.as_deref().map(gather);
            let lengths: Vec<usize> = pack.iter().map(|place| batch.span(*place).len()).collect();
            self.actor.backward(&batch.sequences(pack), &mut |scores| {
                let new = &scores.logprobs;
                let tokens = PolicyTokens {
                    logprobs: new,
                    old: &old,
                    advantages: &advantages,
                    importance: Some(&importance),
                    weights: &weights,
                };
                let part = match settings.loss_mode {
                    LossMode::Vanilla => policy_loss(&tokens, settings.clip),
                    LossMode::Gspo => gspo_loss(&tokens, &lengths, settings.clip),
                };
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
                Ok(TokenScores {
                    logprobs: loss.gradient,
                    entropies: bonus.gradient,
                })
            })?;
        }
        Ok(total)
    }
}

fn by_group(collected: &Collected, rule: &GroupAdvantages) -> Vec<f32> {
    let episodes = collected.batch.episodes();
    let mut advantages = vec![0.0; episodes.len()];
    for group in &collected.groups {
        if let Some(found) = rule.of(&replies(&episodes[group.clone()])) {
            advantages[group.clone()].copy_from_slice(&found);
        }
    }
    collected.batch.spread(&advantages)
}

pub(super) fn finite(loss: &Loss) -> Result<f64, TrainError> {
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
