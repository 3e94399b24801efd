//! Episodes side by side, and the numbers of their tokens.
//!
//! Only tokens that were said have numbers. They lie one after the other, episode after episode.

use std::ops::Range;

use crate::TrainError;
use crate::algorithms::{Aggregation, Estimates, Gae, token_weights};
use crate::data::{TokenEpisode, packs};
use crate::network::{Actor, Critic, TokenScores, TokenSequence};

pub(in crate::recipes) struct Batch {
    episodes: Vec<TokenEpisode>,
    /// Where each episode's numbers are.
    spans: Vec<Range<usize>>,
}

impl Batch {
    pub(in crate::recipes) fn new(episodes: Vec<TokenEpisode>) -> Self {
        let mut end = 0;
        let mut span = |episode: &TokenEpisode| {
            let start = end;
            end += episode.tokens.said();
            start..end
        };
        let spans = episodes.iter().map(&mut span).collect();
        Self { episodes, spans }
    }

    pub(in crate::recipes) fn len(&self) -> usize {
        self.episodes.len()
    }

    pub(super) fn episodes(&self) -> &[TokenEpisode] {
        &self.episodes
    }

    /// Tokens that were said.
    pub(super) fn said(&self) -> usize {
        self.spans.last().map_or(0, |span| span.end)
    }

    /// Tokens of an episode that go through a network.
    pub(in crate::recipes) fn length(&self, episode: usize) -> usize {
        let sequences = &self.episodes[episode].tokens.sequences;
        sequences.iter().map(TokenSequence::len).sum()
    }

    pub(super) fn span(&self, episode: usize) -> Range<usize> {
        self.spans[episode].clone()
    }

    /// Episodes that go through a network together.
    pub(in crate::recipes) fn packs(&self, chosen: &[usize], limit: usize) -> Vec<Vec<usize>> {
        let lengths: Vec<usize> = chosen.iter().map(|place| self.length(*place)).collect();
        let packs = packs(&lengths, limit).into_iter();
        packs.map(|pack| chosen[pack].to_vec()).collect()
    }

    pub(in crate::recipes) fn sequences(&self, chosen: &[usize]) -> Vec<&TokenSequence> {
        chosen
            .iter()
            .flat_map(|place| &self.episodes[*place].tokens.sequences)
            .collect()
    }

    /// The chosen episodes' numbers.
    pub(in crate::recipes) fn gather(&self, chosen: &[usize], numbers: &[f32]) -> Vec<f32> {
        chosen
            .iter()
            .flat_map(|place| &numbers[self.span(*place)])
            .copied()
            .collect()
    }

    fn scatter(&self, chosen: &[usize], from: &[f32], to: &mut [f32]) {
        let mut from = from;
        for place in chosen {
            let span = self.span(*place);
            let (own, rest) = from.split_at(span.len());
            to[span].copy_from_slice(own);
            from = rest;
        }
    }

    /// Of all tokens; zero in episodes that are not chosen.
    pub(in crate::recipes) fn weights(
        &self,
        aggregation: Aggregation,
        chosen: &[usize],
    ) -> Vec<f32> {
        let mask = |place: &usize| vec![true; self.spans[*place].len()];
        let masks: Vec<Vec<bool>> = chosen.iter().map(mask).collect();
        let masks: Vec<&[bool]> = masks.iter().map(Vec::as_slice).collect();
        let mut weights = vec![0.0; self.said()];
        self.scatter(chosen, &token_weights(aggregation, &masks), &mut weights);
        weights
    }

    /// In these packs, so that learning in the same ones finds the same to the last bit.
    pub(super) fn scores(
        &self,
        actor: &dyn Actor,
        packs: &[Vec<usize>],
    ) -> Result<TokenScores, TrainError> {
        let mut all = TokenScores {
            logprobs: vec![0.0; self.said()],
            entropies: vec![0.0; self.said()],
        };
        for pack in packs {
            let scores = actor.score(&self.sequences(pack))?;
            self.scatter(pack, &scores.logprobs, &mut all.logprobs);
            self.scatter(pack, &scores.entropies, &mut all.entropies);
        }
        Ok(all)
    }

    pub(in crate::recipes) fn values(
        &self,
        critic: &dyn Critic,
        tokens_per_microbatch: usize,
    ) -> Result<Vec<f32>, TrainError> {
        let all: Vec<usize> = (0..self.len()).collect();
        let mut values = vec![0.0; self.said()];
        for pack in self.packs(&all, tokens_per_microbatch) {
            let found = critic.values(&self.sequences(&pack))?;
            self.scatter(&pack, &found, &mut values);
        }
        Ok(values)
    }

    /// The reward comes at an episode's last token.
    pub(in crate::recipes) fn estimates(&self, values: &[f32], gae: &Gae) -> Estimates {
        let mut all = Estimates {
            advantages: Vec::with_capacity(values.len()),
            returns: Vec::with_capacity(values.len()),
        };
        for (episode, span) in self.episodes.iter().zip(&self.spans) {
            let mut rewards = vec![0.0; span.len()];
            if let Some(last) = rewards.last_mut() {
                *last = episode.reward as f32;
            }
            let mask = vec![true; span.len()];
            let found = gae.estimate(&rewards, &values[span.clone()], &mask);
            all.advantages.extend(found.advantages);
            all.returns.extend(found.returns);
        }
        all
    }

    /// One number for each episode, on each of its tokens.
    pub(super) fn spread(&self, numbers: &[f64]) -> Vec<f32> {
        let pairs = numbers.iter().zip(&self.spans);
        pairs
            .flat_map(|(number, span)| vec![*number as f32; span.len()])
            .collect()
    }

    pub(super) fn sampled(&self) -> Vec<f32> {
        let episodes = self.episodes.iter();
        episodes
            .flat_map(|episode| &episode.tokens.sampled)
            .copied()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Finding, Tokens};

    /// An agent's episode: two replies, a tool's answer between them, and a new sequence after an elision.
    #[test]
    fn an_episode_of_several_replies_is_one_row_of_tokens_that_were_said() {
        let sequences = vec![
            TokenSequence::new(vec![1, 2, 3, 4], &[false, true, false, true]),
            TokenSequence::new(vec![5, 6, 7], &[false, false, true]),
        ];
        let batch = Batch::new(vec![TokenEpisode {
            task: "task".into(),
            tokens: Tokens {
                sequences,
                sampled: vec![-1.0; 3],
            },
            reward: 2.0,
            finding: Finding::NOTHING,
            cut: false,
        }]);
        assert_eq!((batch.said(), batch.length(0)), (3, 7));
        let values = [0.5, 0.75, 0.25];
        let estimates = |lambda| {
            let gae = Gae {
                gamma: 1.0,
                lam: lambda,
                critic_lambda: lambda,
            };
            batch.estimates(&values, &gae)
        };
        // All of it: what was paid at the last token, whatever lies between.
        assert_eq!(estimates(1.0).returns, [2.0; 3]);
        assert_eq!(estimates(1.0).advantages, [1.5, 1.25, 1.75]);
        // One token ahead: the next that was said, in whichever sequence.
        assert_eq!(estimates(0.0).advantages, [0.25, -0.5, 1.75]);
    }
}
