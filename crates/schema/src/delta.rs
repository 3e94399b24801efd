//! What an episode gained between two events of its run's log.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Attempt, Elision, Message, TokenRecord, Trajectory, Usage};

/// What an episode's trajectory gained since the event before. The deltas of an episode, added up in order, are its
/// trajectory so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EpisodeDelta {
    pub messages: Vec<Message>,
    pub elisions: Vec<Elision>,
    pub attempts: Vec<Attempt>,
    /// The trajectory's present value.
    pub best: Option<u32>,
    /// The trajectory's present total.
    pub usage: Usage,
    /// The trajectory's present total.
    pub seconds: f64,
    /// Null where the policy cannot account for the tokens of every reply.
    pub tokens: Option<Vec<TokenDelta>>,
}

/// Tokens that were added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenDelta {
    /// True where they extend the last sequence, false where they start a new one.
    pub continues_sequence: bool,
    pub record: TokenRecord,
}

/// How much of a trajectory was already written to the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeltaCursor {
    messages: usize,
    elisions: usize,
    attempts: usize,
    /// Tokens and replies of each sequence.
    tokens: Vec<(usize, usize)>,
}

impl DeltaCursor {
    /// At the end of `trajectory`: all of it was written.
    pub fn at_end_of(trajectory: &Trajectory) -> Self {
        let records = trajectory.tokens.iter().flatten();
        Self {
            messages: trajectory.messages.len(),
            elisions: trajectory.elisions.len(),
            attempts: trajectory.attempts.len(),
            tokens: records
                .map(|record| (record.ids.len(), record.replies.len()))
                .collect(),
        }
    }
}

impl EpisodeDelta {
    /// What `trajectory` has beyond `cursor`.
    pub fn since(cursor: &DeltaCursor, trajectory: &Trajectory) -> Self {
        let deltas = |records: &Vec<TokenRecord>| {
            let mut deltas = Vec::new();
            for (index, record) in records.iter().enumerate() {
                match cursor.tokens.get(index) {
                    Some(&(ids, _)) if ids == record.ids.len() => {}
                    Some(&(ids, replies)) => deltas.push(TokenDelta {
                        continues_sequence: true,
                        record: TokenRecord {
                            ids: record.ids[ids..].to_vec(),
                            logprobs: record.logprobs[ids..].to_vec(),
                            loss_mask: record.loss_mask[ids..].to_vec(),
                            replies: record.replies[replies..].to_vec(),
                            template: record.template.clone(),
                            tokenizer: record.tokenizer.clone(),
                        },
                    }),
                    None => deltas.push(TokenDelta {
                        continues_sequence: false,
                        record: record.clone(),
                    }),
                }
            }
            deltas
        };
        Self {
            messages: trajectory.messages[cursor.messages..].to_vec(),
            elisions: trajectory.elisions[cursor.elisions..].to_vec(),
            attempts: trajectory.attempts[cursor.attempts..].to_vec(),
            best: trajectory.best,
            usage: trajectory.usage,
            seconds: trajectory.seconds,
            tokens: trajectory.tokens.as_ref().map(deltas),
        }
    }

    /// Adds it to what the deltas before it made.
    pub fn add_to(self, trajectory: &mut Trajectory) {
        trajectory.messages.extend(self.messages);
        trajectory.elisions.extend(self.elisions);
        trajectory.attempts.extend(self.attempts);
        trajectory.best = self.best;
        trajectory.usage = self.usage;
        trajectory.seconds = self.seconds;
        let before = trajectory.tokens.take();
        trajectory.tokens = self.tokens.map(|deltas| {
            let mut records = before.unwrap_or_default();
            for delta in deltas {
                let record = delta.record;
                match records.last_mut().filter(|_| delta.continues_sequence) {
                    Some(last) => {
                        last.ids.extend(record.ids);
                        last.logprobs.extend(record.logprobs);
                        last.loss_mask.extend(record.loss_mask);
                        last.replies.extend(record.replies);
                    }
                    None => records.push(record),
                }
            }
            records
        });
    }
}
