//! How much each token counts.

use serde::{Deserialize, Serialize};

/// How the losses of a batch's tokens become one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// The mean over each trajectory's tokens, then the mean over trajectories: all trajectories count the same, and a
    /// token of a long one less.
    Trajectory,
    /// The mean over all tokens: all tokens count the same, and a long trajectory more.
    Token,
    /// Dr. GRPO: the sum over each trajectory's tokens divided by a constant, then the mean over trajectories. A token counts
    /// the same however long its trajectory is, and whichever others are in the batch.
    Constant {
        /// The constant: the most tokens of a reply.
        tokens: u32,
    },
}

impl Aggregation {
    /// How to take means with the same proportions, which need weights that sum to one.
    #[must_use]
    pub fn of_means(self) -> Self {
        match self {
            Self::Trajectory | Self::Token => self,
            Self::Constant { .. } => Self::Token,
        }
    }
}

/// A weight for each token of a batch, from the masks of its trajectories: what is not in its mask gets zero, the rest
/// sums to one, but with [`Aggregation::Constant`]. A trajectory that has nothing in its mask counts for nothing, also in the
/// number of trajectories.
pub fn token_weights(aggregation: Aggregation, masks: &[&[bool]]) -> Vec<f32> {
    let count = |mask: &[bool]| mask.iter().filter(|said| **said).count();
    let tokens: usize = masks.iter().map(|mask| count(mask)).sum();
    let trajectories = masks.iter().filter(|mask| count(mask) > 0).count();
    let mut weights = Vec::with_capacity(masks.iter().map(|mask| mask.len()).sum());
    for mask in masks {
        let weight = match aggregation {
            Aggregation::Trajectory => (count(mask) as f64 * trajectories as f64).recip(),
            Aggregation::Token => (tokens as f64).recip(),
            Aggregation::Constant { tokens } => (f64::from(tokens) * trajectories as f64).recip(),
        };
        let each = mask.iter();
        weights.extend(each.map(|said| if *said { weight as f32 } else { 0.0 }));
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_trajectory_counts_as_much_as_a_short_one_or_as_its_tokens() {
        let (long, short, silent) = ([true, false, true, true, true], [false, true], [false; 3]);
        let masks: [&[bool]; 3] = [&long, &short, &silent];
        let expected = [0.125, 0.0, 0.125, 0.125, 0.125, 0.0, 0.5, 0.0, 0.0, 0.0];
        assert_eq!(token_weights(Aggregation::Trajectory, &masks), expected);
        let expected = [0.2, 0.0, 0.2, 0.2, 0.2, 0.0, 0.2, 0.0, 0.0, 0.0];
        assert_eq!(token_weights(Aggregation::Token, &masks), expected);
        assert_eq!(token_weights(Aggregation::Token, &[&silent]), [0.0; 3]);
    }

    /// Two that said something, at most 8 tokens each: 1/16 for each token, whatever the lengths.
    #[test]
    fn with_a_constant_a_token_counts_the_same_in_any_trajectory() {
        let (long, short, silent) = ([true, false, true, true, true], [false, true], [false; 3]);
        let dr_grpo = Aggregation::Constant { tokens: 8 };
        let found = token_weights(dr_grpo, &[&long, &short, &silent]);
        let each = 1.0 / 16.0;
        let expected = [each, 0.0, each, each, each, 0.0, each, 0.0, 0.0, 0.0];
        assert_eq!(found, expected);
        // Not of the batch: a longer neighbour changes nothing.
        let twice = token_weights(dr_grpo, &[&short, &short])[1];
        assert!((twice - each).abs() < f32::EPSILON);
        assert_eq!(dr_grpo.of_means(), Aggregation::Token);
    }
}
