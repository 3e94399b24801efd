//! What a trajectory is worth.

use serde::{Deserialize, Serialize};
use warpsmith_schema::{CountedAttempt, EpisodeEnding, Reward, Trajectory};

use super::finding::rewards;

/// Which of a verdict's rewards counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RewardKind {
    Robust,
    Raw,
    Composite,
    Ladder,
}

impl RewardKind {
    pub fn of(self, reward: &Reward) -> f64 {
        match self {
            Self::Robust => reward.robust,
            Self::Raw => reward.raw.0,
            Self::Composite => reward.composite.0,
            Self::Ladder => reward.ladder,
        }
    }
}

/// How trajectories are rewarded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RewardRule {
    pub kind: RewardKind,
    /// Which attempt is the trajectory's.
    pub counts: CountedAttempt,
}

impl RewardRule {
    /// A trajectory of which nothing was judged gets the least there is. `None` where the policy could not answer for
    /// reasons of ours: that is no reward at all.
    pub fn reward(&self, trajectory: &Trajectory) -> Option<f64> {
        if matches!(
            trajectory.ending,
            EpisodeEnding::PolicyFailed { .. } | EpisodeEnding::Interrupted
        ) {
            return None;
        }
        let reward = self.kind.of(&rewards(trajectory, self.counts));
        reward.is_finite().then_some(reward)
    }
}
