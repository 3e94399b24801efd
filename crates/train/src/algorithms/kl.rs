//! How far a policy has moved from a reference, estimated from the tokens it said.

use serde::{Deserialize, Serialize};

use super::Loss;

/// Estimators of `KL(policy ‖ reference)` from tokens of the policy, by Schulman's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kl {
    /// `log p − log q`: unbiased, of either sign. As a loss its expected gradient is zero: it is for rewards.
    K1,
    /// `q/p − 1 − log(q/p)`: unbiased, never negative.
    K3,
}

impl Kl {
    /// Of one token.
    pub fn estimate(self, logprob: f32, reference: f32) -> f64 {
        let behind = f64::from(reference) - f64::from(logprob);
        match self {
            Self::K1 => -behind,
            Self::K3 => behind.exp_m1() - behind,
        }
    }

    /// How the estimate changes with the policy's log-probability.
    fn grad(self, logprob: f32, reference: f32) -> f64 {
        match self {
            Self::K1 => 1.0,
            Self::K3 => -(f64::from(reference) - f64::from(logprob)).exp_m1(),
        }
    }
}

/// The weighted estimate; the gradient is with respect to the policy's log-probabilities.
pub fn kl_loss(kl: Kl, logprobs: &[f32], reference: &[f32], weights: &[f32]) -> Loss {
    assert_eq!(logprobs.len(), weights.len());
    assert_eq!(reference.len(), weights.len());
    Loss::weighted(weights, |token| {
        let (own, other) = (logprobs[token], reference[token]);
        (kl.estimate(own, other), kl.grad(own, other))
    })
}
