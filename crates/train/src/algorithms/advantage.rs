//! How much better than expected each token turned out: generalised advantage estimation.

use serde::{Deserialize, Serialize};

/// How far ahead to look. A small `lambda` trusts the values, 1 trusts only what was really paid.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gae {
    pub gamma: f64,
    /// Of the advantages the policy learns from.
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

/// Brings the numbers in the mask to mean 0 and variance 1 over the batch, as TRL and verl do: the variance is that of a
/// sample, and a single number stays as it is.
pub fn whiten(advantages: &mut [f32], mask: &[bool]) {
    assert_eq!(advantages.len(), mask.len());
    let counted = advantages.iter().zip(mask).filter(|(_, said)| **said);
    let numbers: Vec<f64> = counted.map(|(one, _)| f64::from(*one)).collect();
    if numbers.len() < 2 {
        return;
    }
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let squares: f64 = numbers.iter().map(|one| (one - mean).powi(2)).sum();
    let scale = (squares / (count - 1.0) + SMALL).sqrt().recip();
    for (one, said) in advantages.iter_mut().zip(mask) {
        if *said {
            *one = ((f64::from(*one) - mean) * scale) as f32;
        }
    }
}
