//! What is learnt from tokens: losses, advantages, filters.
//!
//! Numbers of a batch lie one after the other, trajectory after trajectory, one for each token. A loss is a sum over
//! tokens, each with its weight ([`token_weights`]); a token of weight zero was given, not said, and is not learnt from.
//! Because the weights are worked out for the whole batch, a loss may be summed over parts of it in any order.
//!
//! Sums are in `f64`: a batch has more tokens than an `f32` counts exactly.

mod advantage;
mod cross_entropy;
mod curriculum;
mod entropy;
mod group;
mod kl;
mod mismatch;
mod policy_loss;
mod rejection;
mod selection;
mod value_loss;
mod weights;

pub use advantage::{Estimates, Gae, generalised_advantages, whiten};
pub use cross_entropy::{cross_entropy, negative_log_likelihood};
pub use curriculum::{Band, Curriculum, Standing};
pub use entropy::{entropy, entropy_coeff};
pub use group::{Difficulty, GroupAdvantages, LengthPenalty, Spread};
pub use kl::{Kl, kl_loss};
pub use mismatch::{Mismatch, truncated_importance};
pub use policy_loss::{Clip, LossMode, PolicyLoss, PolicyTokens, gspo_loss, policy_loss};
pub use rejection::{Flaw, Rejection, Rejections};
pub use selection::{ImitationCandidate, ImitationChoice, PerTask};
pub use value_loss::{ValueLoss, explained_variance, value_loss};
pub use weights::{Aggregation, token_weights};

/// A number to make small, and how it changes with each of the numbers it was made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Loss {
    pub value: f64,
    pub gradient: Vec<f32>,
}

impl Loss {
    /// The sum over tokens of `weight · loss`, where `each` gives a token's loss and its derivative. Tokens that do not
    /// count are not looked at: what a model says of them may be anything.
    fn weighted(weights: &[f32], mut each: impl FnMut(usize) -> (f64, f64)) -> Self {
        let mut value = 0.0;
        let gradient = weights.iter().enumerate().map(|(token, &weight)| {
            if weight == 0.0 {
                return 0.0;
            }
            let (loss, grad) = each(token);
            value += f64::from(weight) * loss;
            (f64::from(weight) * grad) as f32
        });
        let gradient = gradient.collect();
        Self { value, gradient }
    }

    /// The same, `factor` times.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        self.value *= factor;
        for one in &mut self.gradient {
            *one = (f64::from(*one) * factor) as f32;
        }
        self
    }

    /// Both together.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        assert_eq!(self.gradient.len(), other.gradient.len());
        self.value += other.value;
        for (to, from) in self.gradient.iter_mut().zip(&other.gradient) {
            *to += from;
        }
        self
    }
}
