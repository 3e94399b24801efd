//! What is reinforced: tokens that a policy sampled, with the probabilities they had, and what came of them.

use warpsmith_model::policy::{ChatCodec, Origin};
use warpsmith_schema::{EpisodeEnding, EpisodeId, EpisodeLimit, TokenRecord, Trajectory};

use super::{Finding, RewardRule};
use crate::TrainError;
use crate::network::TokenSequence;

/// An episode of the policy that learns.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenEpisode {
    /// Episodes of one task are a group.
    pub task: String,
    pub tokens: Tokens,
    /// Its reward.
    pub reward: f64,
    pub finding: Finding,
    /// It ended because there was no more room, not because the policy was done.
    pub cut: bool,
}

/// What was read and sampled.
#[derive(Debug, Clone, PartialEq)]
pub struct Tokens {
    pub sequences: Vec<TokenSequence>,
    /// The sampler's log-probability of every token that was said, sequence after sequence.
    pub sampled: Vec<f32>,
}

impl Tokens {
    /// Tokens that were said.
    pub fn said(&self) -> usize {
        self.sampled.len()
    }

    fn last_said(&self) -> Option<u32> {
        let last = |one: &TokenSequence| {
            one.loss_positions()
                .last()
                .map(|place| one.tokens()[*place])
        };
        self.sequences.iter().rev().find_map(last)
    }

    /// From a trajectory's record; `model` is what the tokens must be of.
    pub fn of(trajectory: &Trajectory, origin: &Origin, model: &str) -> Result<Self, TrainError> {
        let episode = || EpisodeId::of(trajectory).to_string();
        let records = trajectory
            .tokens
            .as_ref()
            .ok_or_else(|| TrainError::NoTokens { episode: episode() })?;
        let mut tokens = Self {
            sequences: Vec::new(),
            sampled: Vec::new(),
        };
        for record in records {
            // An endpoint may not say what it tokenised with; what it says must be right.
            let other =
                |said: &Option<String>, own: &String| said.as_ref().is_some_and(|it| it != own);
            if other(&record.tokenizer, &origin.tokenizer)
                || other(&record.template, &origin.template)
            {
                return Err(TrainError::OtherTokens {
                    episode: episode(),
                    model: model.to_owned(),
                });
            }
            tokens
                .add(record)
                .ok_or_else(|| TrainError::BrokenTokens { episode: episode() })?;
        }
        Ok(tokens)
    }

    /// `None` where the record does not account for all that it says was sampled.
    fn add(&mut self, record: &TokenRecord) -> Option<()> {
        let lengths = [record.loss_mask.len(), record.logprobs.len()];
        if lengths != [record.ids.len(); 2] {
            return None;
        }
        let sequence = TokenSequence::new(record.ids.clone(), &record.loss_mask);
        for place in sequence.loss_positions() {
            self.sampled.push(record.logprobs[*place]?);
        }
        self.sequences.push(sequence);
        Some(())
    }
}

impl TokenEpisode {
    /// `None` where it says nothing of the policy: it said nothing, or could not. `dialogue` is how one talks to the policy,
    /// `model` what it is called.
    pub fn of(
        trajectory: &Trajectory,
        reward_rule: &RewardRule,
        codec: &ChatCodec,
        model: &str,
    ) -> Result<Option<Self>, TrainError> {
        let Some(reward) = reward_rule.reward(trajectory) else {
            return Ok(None);
        };
        let tokens = Tokens::of(trajectory, codec.origin(), model)?;
        let limited = matches!(
            trajectory.ending,
            EpisodeEnding::ContextFull
                | EpisodeEnding::Limit {
                    which: EpisodeLimit::Tokens | EpisodeLimit::Turns
                }
        );
        Ok(tokens.last_said().map(|last| Self {
            task: trajectory.task.id.clone(),
            reward,
            finding: Finding::of(trajectory, reward_rule.counts),
            // A reply that was cut has no token that ends it.
            cut: limited || !codec.tokenizer().is_end(last),
            tokens,
        }))
    }
}
