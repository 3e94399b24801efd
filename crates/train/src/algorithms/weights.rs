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
}

/// A weight for each token of a batch, from the masks of its trajectories: what is not in its mask gets zero, the rest
/// sums to one. A trajectory that has nothing in its mask counts for nothing, also in the number of trajectories.
pub fn token_weights(aggregation: Aggregation, masks: &[&[bool]]) -> Vec<f32> {
    let count = |mask: &[bool]| mask.iter().filter(|said| **said).count();
    let tokens: usize = masks.iter().map(|mask| count(mask)).sum();
    let trajectories = masks.iter().filter(|mask| count(mask) > 0).count();
    let mut weights = Vec::with_capacity(masks.iter().map(|mask| mask.len()).sum());
    for mask in masks {
        let weight = match aggregation {
            Aggregation::Trajectory => (count(mask) as f64 * trajectories as f64).recip(),
            Aggregation::Token => (tokens as f64).recip(),
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
}
