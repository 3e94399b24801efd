//! What an estimate of time and memory needs to know of these settings.

use warpsmith_agent::ModelSize;
use warpsmith_train::estimate::ReinforceStage;

use super::{GrpoSettings, PpoSettings, TryingSettings};
use crate::episodes::ModeChoice;

impl PpoSettings {
    pub(in super::super::super) fn stage(&self, stage: &'static str) -> ReinforceStage {
        self.trying
            .stage(stage, Some(self.critic_ppo_epochs.into()))
    }
}

impl GrpoSettings {
    pub(in super::super) fn stage(&self, stage: &'static str) -> ReinforceStage {
        self.trying.stage(stage, None)
    }
}

impl TryingSettings {
    /// Replies and judgements of an episode, at most: an agent works for about two replies at what it submits.
    fn replies(&self) -> (f64, f64) {
        match self.mode {
            ModeChoice::Single => {
                let replies = f64::from(1 + self.repairs);
                (replies, replies)
            }
            ModeChoice::Agent => {
                let turns = self
                    .turns
                    .map_or(ModelSize::Small.limits().turns, u32::from);
                (turns.into(), f64::from(turns) / 2.0)
            }
        }
    }

    /// What an estimate needs to know, with so many passes of the critic where there is one.
    fn stage(&self, stage: &'static str, critic_ppo_epochs: Option<u32>) -> ReinforceStage {
        let (replies, judgements) = self.replies();
        ReinforceStage {
            stage,
            tuning: self.learning.tuning(),
            tokens_per_microbatch: self.learning.tokens_per_microbatch(),
            steps: self.steps.into(),
            tasks_per_step: self.tasks_per_step.into(),
            samples: self.samples.into(),
            // A reply without others to differ from is never replaced.
            refills: if u32::from(self.samples) > 1 {
                self.refills
            } else {
                0
            },
            evaluate_every: self.evaluate_every.into(),
            validation_samples: self.validation_samples.into(),
            ppo_epochs: self.ppo_epochs.into(),
            critic_ppo_epochs,
            reference: self.has_reference(),
            replies,
            judgements,
            longest: match self.mode {
                ModeChoice::Single => None,
                ModeChoice::Agent => Some(self.tokens.unwrap_or(ModelSize::Small.limits().tokens)),
            },
            conversations: self.conversations() as u64,
        }
    }
}
