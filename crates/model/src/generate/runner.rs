//! What generation asks of whatever runs a model.

use std::fmt::Debug;

use super::sampling::{Sampled, Sampler};
use crate::{KvCache, LogitsFor, ModelConfig, ModelError, Segment, Transformer};

/// A model on some device: new positions of several sequences in, the next token of each out.
pub trait Runner: Send + Debug {
    type Cache: Cache;

    fn config(&self) -> &ModelConfig;

    /// Tokens that a prompt and its reply can have together.
    fn context(&self) -> usize {
        self.config().context
    }

    /// Room for one more sequence, if there is any.
    fn new_cache(&mut self) -> Option<Self::Cache>;

    /// A copy of a sequence's first positions, if there is room for it.
    fn prefix(&mut self, of: &Self::Cache, len: usize) -> Result<Option<Self::Cache>, ModelError>;

    /// Runs everybody's tokens and chooses, for those that ask, the token that follows. After an error no cache has grown.
    fn run(
        &mut self,
        asked: &mut [SequenceStep<'_, Self::Cache>],
    ) -> Result<Vec<Option<Sampled>>, ModelError>;
}

/// Where a sequence's keys and values are.
pub trait Cache: Send + Debug {
    /// Positions that it holds.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything from that position on.
    fn truncate(&mut self, len: usize);
}

/// New positions of one sequence.
#[derive(Debug)]
pub struct SequenceStep<'a, C> {
    pub cache: &'a mut C,
    pub tokens: &'a [u32],
    /// How to choose the token that follows, and its number among those chosen so far; `None` where the prompt goes on.
    pub choice: Option<(Sampler, u64)>,
}

impl Cache for KvCache {
    fn len(&self) -> usize {
        Self::len(self)
    }

    fn truncate(&mut self, len: usize) {
        Self::truncate(self, len);
    }
}

impl Runner for Transformer {
    type Cache = KvCache;

    fn config(&self) -> &ModelConfig {
        &self.weights().config
    }

    fn new_cache(&mut self) -> Option<KvCache> {
        Some(Self::new_cache(self))
    }

    fn prefix(&mut self, of: &KvCache, len: usize) -> Result<Option<KvCache>, ModelError> {
        Ok(Some(of.prefix(len)))
    }

    fn run(
        &mut self,
        asked: &mut [SequenceStep<'_, KvCache>],
    ) -> Result<Vec<Option<Sampled>>, ModelError> {
        let mut segments: Vec<Segment<'_>> = asked
            .iter_mut()
            .map(|one| Segment {
                cache: &mut *one.cache,
                tokens: one.tokens,
                logits_for: if one.choice.is_some() {
                    LogitsFor::Last
                } else {
                    LogitsFor::Nothing
                },
            })
            .collect();
        let logits = self.forward(&mut segments)?;
        let each = asked.iter().zip(logits);
        Ok(each
            .map(|(one, logits)| {
                let (sampling, step) = one.choice?;
                Some(sampling.choose(logits.row(0), step))
            })
            .collect())
    }
}
