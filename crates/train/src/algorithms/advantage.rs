//! How much better than expected each token turned out: generalised advantage estimation.

use serde::{Deserialize, Serialize};

/// How far ahead to look. A small `lambda` trusts the values, 1 trusts only the reward.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gae {
    pub gamma: f64,
    /// Of the advantages the policy learns from. Below 1 a token hears of the reward only through the values of those after
    /// it: with 0.95 and a critic that knows nothing, all but the last sixty hear nothing.
    pub lam: f64,
    /// Of the returns the critic learns. With 1 these are what was paid, whatever the critic believed.
    pub critic_lambda: f64,
}

/// What a trajectory teaches policy and critic; zero at tokens that were given.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimates {
    pub advantages: Vec<f32>,
    pub returns: Vec<f32>,
}

impl Gae {
    /// Of one trajectory, whose rewards, values and mask lie one for each token. Only tokens in the mask are steps: what
    /// was given between two of them takes no time. After the last the value is zero.
    pub fn estimate(&self, rewards: &[f32], values: &[f32], mask: &[bool]) -> Estimates {
        let advantages = |lambda| generalised_advantages(rewards, values, mask, self.gamma, lambda);
        let mut returns = advantages(self.critic_lambda);
        for ((to, value), said) in returns.iter_mut().zip(values).zip(mask) {
            if *said {
                *to += value;
            }
        }
        Estimates {
            advantages: advantages(self.lam),
            returns,
        }
    }
}

/// `A = δ + γλ·A'` from the last token to the first, with `δ = r + γ·V' − V`.
pub fn generalised_advantages(
    rewards: &[f32],
    values: &[f32],
    mask: &[bool],
    gamma: f64,
    lambda: f64,
) -> Vec<f32> {
    assert_eq!(rewards.len(), mask.len());
    assert_eq!(values.len(), mask.len());
    let mut advantages = vec![0.0; mask.len()];
    let (mut next_value, mut next_advantage) = (0.0, 0.0);
    for token in (0..mask.len()).rev() {
        if !mask[token] {
            continue;
        }
        let value = f64::from(values[token]);
        let surprise = f64::from(rewards[token]) + gamma * next_value - value;
        next_advantage = surprise + gamma * lambda * next_advantage;
        next_value = value;
        advantages[token] = next_advantage as f32;
    }
    advantages
}

/// Below it a variance is no variance.
const SMALL: f64 = 1e-8;

/// Brings numbers to mean 0 and variance 1 over the batch, by the weights their tokens have in the loss. With equal weights
/// that is what TRL and verl do: the variance is that of a sample. What has no weight, and a single number, stays as it is.
pub fn whiten(advantages: &mut [f32], weights: &[f32]) {
    assert_eq!(advantages.len(), weights.len());
    let total: f64 = weights.iter().map(|one| f64::from(*one)).sum();
    let counted = || {
        let pairs = advantages.iter().zip(weights);
        pairs
            .filter(|(_, weight)| **weight > 0.0)
            .map(|(one, weight)| (f64::from(*one), f64::from(*weight) / total))
    };
    // What n − 1 in place of n is for numbers that count the same.
    let freedom = 1.0 - counted().map(|(_, weight)| weight * weight).sum::<f64>();
    if counted().count() < 2 || freedom <= 0.0 {
        return;
    }
    let mean: f64 = counted().map(|(one, weight)| weight * one).sum();
    let squares: f64 = counted()
        .map(|(one, weight)| weight * (one - mean).powi(2))
        .sum();
    let scale = (squares / freedom + SMALL).sqrt().recip();
    for (one, weight) in advantages.iter_mut().zip(weights) {
        if *weight > 0.0 {
            *one = ((f64::from(*one) - mean) * scale) as f32;
        }
    }
}
