//! Advantages without a critic: several replies to one prompt are each other's expectation (GRPO, RLOO).

use serde::{Deserialize, Serialize};

/// What a difference within a group is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// Rewards as they are: `A = R − mean`.
    Absolute,
    /// Divided by the group's standard deviation, which makes small differences as loud as large ones.
    Deviation,
    /// RLOO: `A = R − mean of the others`. A baseline that the reply itself has no part in is unbiased; it is `n / (n − 1)`
    /// times the plain difference.
    LeaveOneOut,
}

/// GRPO-LEAD's shorter-is-better: a reply that passed is worth `exp(−alpha·z)` of its reward, with `z` how much longer it is
/// than those of its group that passed, in standard deviations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LengthPenalty {
    pub alpha: f64,
}

/// GRPO-LEAD's harder-counts-more: advantages are scaled by a logistic function of the group's pass rate. What went well is
/// scaled by `w(rate)`, what went badly by `w(1 − rate)`, so that a rare success and a rare failure both count most.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Difficulty {
    /// The weight at a high rate, and at a low one.
    pub least: f64,
    pub most: f64,
    /// The rate half way between, and how steep it is there.
    pub middle: f64,
    pub steepness: f64,
}

impl Default for Difficulty {
    /// As published.
    fn default() -> Self {
        Self {
            least: 0.4,
            most: 1.5,
            middle: 0.75,
            steepness: 10.0,
        }
    }
}

impl Difficulty {
    pub fn weight(&self, rate: f64) -> f64 {
        let share = (self.steepness * (rate - self.middle)).exp();
        self.least + (self.most - self.least) / (1.0 + share)
    }
}

/// Ways to tell good replies of a group from bad ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GroupAdvantages {
    pub spread: Spread,
    pub length: Option<LengthPenalty>,
    pub difficulty: Option<Difficulty>,
}

/// Rewards that differ by less are the same.
const SAME: f64 = 1e-9;
/// Keeps a division by a deviation finite.
const SMALL: f64 = 1e-6;

impl GroupAdvantages {
    /// The study's: reward minus the group's mean.
    pub const PLAIN: Self = Self {
        spread: Spread::Absolute,
        length: None,
        difficulty: None,
    };

    /// One advantage for each reply of a group, from its reward and its length in tokens. A reward above zero is a pass.
    /// `None` where all replies were worth the same: nothing can be learnt from them.
    pub fn of(&self, replies: &[(f64, usize)]) -> Option<Vec<f64>> {
        let same = |pair: &[(f64, usize)]| (pair[0].0 - pair[1].0).abs() < SAME;
        if replies.windows(2).all(same) {
            return None;
        }
        let rewards = match self.length {
            None => replies.iter().map(|(reward, _)| *reward).collect(),
            Some(penalty) => penalty.applied(replies),
        };
        let (mean, deviation) = mean_and_deviation(&rewards);
        let scale = match self.spread {
            Spread::Absolute => 1.0,
            Spread::Deviation => (deviation + SMALL).recip(),
            // At least two, as they differ.
            Spread::LeaveOneOut => rewards.len() as f64 / (rewards.len() - 1) as f64,
        };
        let rate = replies.iter().filter(|(reward, _)| *reward > 0.0).count() as f64
            / replies.len() as f64;
        let weight = |advantage: f64| match self.difficulty {
            None => 1.0,
            Some(difficulty) if advantage > 0.0 => difficulty.weight(rate),
            Some(difficulty) => difficulty.weight(1.0 - rate),
        };
        let advantages = rewards.iter().map(|reward| (reward - mean) * scale);
        Some(advantages.map(|one| one * weight(one)).collect())
    }
}

impl LengthPenalty {
    fn applied(self, replies: &[(f64, usize)]) -> Vec<f64> {
        let lengths: Vec<f64> = replies
            .iter()
            .filter(|(reward, _)| *reward > 0.0)
            .map(|(_, length)| *length as f64)
            .collect();
        let (mean, deviation) = mean_and_deviation(&lengths);
        let worth = |&(reward, length): &(f64, usize)| {
            if reward > 0.0 {
                let longer = (length as f64 - mean) / (deviation + SMALL);
                reward * (-self.alpha * longer).exp()
            } else {
                reward
            }
        };
        replies.iter().map(worth).collect()
    }
}

/// The deviation is that of a population: groups are small, and this is all of one.
fn mean_and_deviation(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len().max(1) as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let squares: f64 = numbers.iter().map(|one| (one - mean).powi(2)).sum();
    (mean, (squares / count).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each reward minus the mean of the other three, by hand.
    #[test]
    fn rloo_compares_a_reply_with_the_mean_of_the_others() {
        let rloo = GroupAdvantages {
            spread: Spread::LeaveOneOut,
            ..GroupAdvantages::PLAIN
        };
        let replies = [(3.0, 10), (1.0, 20), (-1.0, 30), (-1.0, 40)];
        let expected = [10.0 / 3.0, 2.0 / 3.0, -2.0, -2.0];
        for (found, expected) in rloo.of(&replies).unwrap().iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{found}, {expected}");
        }
        assert_eq!(rloo.of(&[(1.0, 10), (0.0, 5)]), Some(vec![1.0, -1.0]));
        // Nobody else, or nobody who differs.
        assert_eq!(rloo.of(&replies[..1]), None);
        assert_eq!(rloo.of(&replies[2..]), None);
    }
}
