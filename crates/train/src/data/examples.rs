//! What is imitated: every reply of a trajectory.

use std::panic::resume_unwind;
use std::thread;

use serde::{Deserialize, Serialize};
use warpsmith_model::policy::ChatCodec;
use warpsmith_schema::{EpisodeId, ToolSchema, Trajectory};

use crate::TrainError;
use crate::network::TokenSequence;

/// A trajectory to imitate.
#[derive(Debug, Clone, PartialEq)]
pub struct Example {
    pub episode: EpisodeId,
    pub sequences: Vec<TokenSequence>,
}

impl Example {
    /// Tokens that are learnt.
    pub fn said(&self) -> usize {
        self.sequences
            .iter()
            .map(|one| one.loss_positions().len())
            .sum()
    }
}

/// What becomes of a sequence that is longer than allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TooLong {
    /// It is left out.
    Drop,
    /// Its end is.
    Cut,
}

/// Tokens, and which of them were said.
type Masked = (Vec<u32>, Vec<bool>);

/// Makes examples for one model.
#[derive(Debug)]
pub struct Examples<'a> {
    pub codec: &'a ChatCodec,
    /// Tools that were told to the policy by their schemas, in trajectories without a record of tokens.
    pub tools: &'a [ToolSchema],
    pub max_tokens: usize,
    pub too_long: TooLong,
}

impl Examples<'_> {
    /// Of many, in their order and on all cores: thousands of conversations take a single one half a minute to read.
    pub fn of_all(&self, trajectories: &[&Trajectory]) -> Result<Vec<Example>, TrainError> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let share = trajectories.len().div_ceil(cores).max(1);
        let read = |some: &[&Trajectory]| -> Result<Vec<Example>, TrainError> {
            let mut found = Vec::new();
            for trajectory in some {
                found.extend(self.of(trajectory)?);
            }
            Ok(found)
        };
        thread::scope(|scope| {
            let readers: Vec<_> = trajectories
                .chunks(share)
                .map(|some| scope.spawn(move || read(some)))
                .collect();
            let mut all = Vec::new();
            for reader in readers {
                all.extend(reader.join().unwrap_or_else(|panic| resume_unwind(panic))?);
            }
            Ok(all)
        })
    }

    /// From the tokens that were sampled where the trajectory has them and they are this model's, else from its text, by the
    /// model's template. `None` where nothing is left to learn.
    pub fn of(&self, trajectory: &Trajectory) -> Result<Option<Example>, TrainError> {
        let sequences = match self.recorded(trajectory)? {
            Some(sequences) => sequences,
            None => self.rendered(trajectory)?,
        };
        let sequences: Vec<TokenSequence> = sequences
            .into_iter()
            .filter_map(|(tokens, mask)| self.fitting(tokens, &mask))
            .filter(|sequence| !sequence.loss_positions().is_empty())
            .collect();
        Ok((!sequences.is_empty()).then(|| Example {
            episode: EpisodeId::of(trajectory),
            sequences,
        }))
    }

    fn recorded(&self, trajectory: &Trajectory) -> Result<Option<Vec<Masked>>, TrainError> {
        let Some(records) = trajectory.tokens.as_ref() else {
            return Ok(None);
        };
        let origin = self.codec.origin();
        let own = |record: &warpsmith_schema::TokenRecord| {
            record.tokenizer.as_ref() == Some(&origin.tokenizer)
                && record.template.as_ref() == Some(&origin.template)
        };
        if !records.iter().all(own) {
            return Ok(None);
        }
        let pair = |record: &warpsmith_schema::TokenRecord| {
            if record.ids.len() == record.loss_mask.len() {
                return Ok((record.ids.clone(), record.loss_mask.clone()));
            }
            let episode = EpisodeId::of(trajectory).to_string();
            Err(TrainError::BrokenTokens { episode })
        };
        records.iter().map(pair).collect::<Result<_, _>>().map(Some)
    }

    fn rendered(&self, trajectory: &Trajectory) -> Result<Vec<Masked>, TrainError> {
        // Where the calls stand in the text the tools did too.
        let by_schema = trajectory.messages.iter().any(|message| {
            matches!(message, warpsmith_schema::Message::Assistant { calls, .. } if !calls.is_empty())
        });
        let tools = if by_schema { self.tools } else { &[] };
        let transcripts = self.codec.transcripts(&trajectory.messages, tools)?;
        let pairs = transcripts.into_iter();
        Ok(pairs.map(|one| (one.tokens, one.loss_mask)).collect())
    }

    fn fitting(&self, mut tokens: Vec<u32>, mask: &[bool]) -> Option<TokenSequence> {
        if tokens.len() > self.max_tokens {
            if self.too_long == TooLong::Drop {
                return None;
            }
            tokens.truncate(self.max_tokens);
        }
        let mask = &mask[..tokens.len()];
        Some(TokenSequence::new(tokens, mask))
    }
}
