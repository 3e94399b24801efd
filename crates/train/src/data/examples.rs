//! What is imitated: every reply of a trajectory, or those that led to its solution.

use std::panic::resume_unwind;
use std::thread;

use serde::{Deserialize, Serialize};
use warpsmith_model::policy::{ChatCodec, TokenizedTranscript};
use warpsmith_schema::{Attempt, CountedAttempt, EpisodeId, Message, ToolSchema, Trajectory};

use super::finding::counted;
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

/// Which replies of a trajectory are learnt. The others are read, as what was given is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainedReplies {
    /// But those that failed and were corrected: they are what the correction answers to.
    All,
    /// The attempt that counts, and what led to it: nothing that came after, and no attempt that failed.
    Solution(CountedAttempt),
}

impl TrainedReplies {
    /// Whether the reply with this message's number is learnt.
    fn learns(self, trajectory: &Trajectory, message: u32) -> bool {
        let failed = |attempt: &Attempt| attempt.message == message && !attempt.verdict.passed();
        let failed = trajectory.attempts.iter().any(failed);
        let solution = match self {
            Self::All => return !(failed && goes_on(trajectory, message)),
            Self::Solution(counts) => counted(trajectory, counts),
        };
        solution.is_none_or(|solution| {
            message == solution.message || message < solution.message && !failed
        })
    }
}

/// Whether another reply came after this one.
fn goes_on(trajectory: &Trajectory, message: u32) -> bool {
    let later = trajectory.messages.iter().skip(message as usize + 1);
    later
        .into_iter()
        .any(|message| matches!(message, Message::Assistant { .. }))
}

/// Tokens, which of them were said, and the messages these are: one for each contiguous run.
struct Masked {
    tokens: Vec<u32>,
    mask: Vec<bool>,
    replies: Vec<u32>,
}

impl Masked {
    /// Masks replies that are not learnt, and leaves out what follows the last that is. `None` where the messages are not
    /// those that were said.
    fn only(mut self, learns: impl Fn(u32) -> bool) -> Option<Self> {
        let mut place = 0;
        let mut replies = self.replies.iter();
        for run in self.mask.chunk_by_mut(|one, other| one == other) {
            if run[0] && !learns(*replies.next()?) {
                run.fill(false);
            }
            place += run.len();
        }
        if replies.next().is_some() || place != self.tokens.len() {
            return None;
        }
        let last = self.mask.iter().rposition(|said| *said);
        let length = last.map_or(0, |last| last + 1);
        self.tokens.truncate(length);
        self.mask.truncate(length);
        Some(self)
    }
}

/// Makes examples for one model.
#[derive(Debug)]
pub struct Examples<'a> {
    pub codec: &'a ChatCodec,
    /// Tools that were told to the policy by their schemas, in trajectories without a record of tokens.
    pub tools: &'a [ToolSchema],
    pub replies: TrainedReplies,
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
        let learns = |message| self.replies.learns(trajectory, message);
        let messages = 0..trajectory.messages.len() as u32;
        let whole = self.replies == TrainedReplies::All && messages.into_iter().all(learns);
        let masked = sequences
            .into_iter()
            .map(|one| if whole { Some(one) } else { one.only(learns) });
        let masked: Option<Vec<Masked>> = masked.collect();
        let masked = masked.ok_or_else(|| TrainError::BrokenTokens {
            episode: EpisodeId::of(trajectory).to_string(),
        })?;
        let sequences: Vec<TokenSequence> = masked
            .into_iter()
            .filter_map(|one| self.fitting(one.tokens, &one.mask))
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
                return Ok(Masked {
                    tokens: record.ids.clone(),
                    mask: record.loss_mask.clone(),
                    replies: record.replies.clone(),
                });
            }
            let episode = EpisodeId::of(trajectory).to_string();
            Err(TrainError::BrokenTokens { episode })
        };
        records.iter().map(pair).collect::<Result<_, _>>().map(Some)
    }

    fn rendered(&self, trajectory: &Trajectory) -> Result<Vec<Masked>, TrainError> {
        // Where the calls stand in the text the tools did too.
        let by_schema = trajectory.messages.iter().any(
            |message| matches!(message, Message::Assistant { calls, .. } if !calls.is_empty()),
        );
        let tools = if by_schema { self.tools } else { &[] };
        let transcripts = self.codec.transcripts(&trajectory.messages, tools)?;
        let messages = trajectory.messages.iter().enumerate();
        let mut replies = messages
            .filter(|(_, message)| matches!(message, Message::Assistant { .. }))
            .map(|(number, _)| number as u32);
        let sequence = |one: TokenizedTranscript| {
            let runs = one.loss_mask.chunk_by(|one, other| one == other);
            let said = runs.filter(|run| run[0]).count();
            Masked {
                tokens: one.tokens,
                mask: one.loss_mask,
                replies: replies.by_ref().take(said).collect(),
            }
        };
        Ok(transcripts.into_iter().map(sequence).collect())
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
