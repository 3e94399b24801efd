//! Keys and values of finished sequences, kept for those that begin the same.

use super::runner::{Cache, Runner};
use crate::ModelError;

/// The most recently used last.
#[derive(Debug)]
pub(crate) struct PrefixCache<C> {
    entries: Vec<Prefix<C>>,
    limit_tokens: usize,
}

#[derive(Debug)]
struct Prefix<C> {
    tokens: Vec<u32>,
    cache: C,
}

impl<C: Cache> PrefixCache<C> {
    pub(crate) fn new(limit_tokens: usize) -> Self {
        Self {
            entries: Vec::new(),
            limit_tokens,
        }
    }

    /// The longest beginning of these tokens that is known.
    pub(crate) fn longest(&self, tokens: &[u32]) -> usize {
        self.entries
            .iter()
            .map(|prefix| common_prefix(&prefix.tokens, tokens))
            .max()
            .unwrap_or_default()
    }

    /// A cache of the first `len` of these tokens, where they are known.
    pub(crate) fn copy(
        &mut self,
        model: &mut impl Runner<Cache = C>,
        tokens: &[u32],
        len: usize,
    ) -> Result<Option<C>, ModelError> {
        let known = |prefix: &Prefix<C>| common_prefix(&prefix.tokens, tokens) >= len;
        let Some(place) = self.entries.iter().position(known) else {
            return Ok(None);
        };
        let mut prefix = self.entries.remove(place);
        loop {
            if let Some(copy) = model.prefix(&prefix.cache, len)? {
                self.entries.push(prefix);
                return Ok(Some(copy));
            }
            if !self.evict_one() {
                break;
            }
        }
        // No room for two of it.
        prefix.cache.truncate(len);
        Ok(Some(prefix.cache))
    }

    /// Gives up what was not used for longest. False where nothing is kept.
    pub(crate) fn evict_one(&mut self) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        self.entries.remove(0);
        true
    }

    /// Keeps what a sequence leaves, and drops what it makes superfluous and the longest unused.
    pub(crate) fn keep(&mut self, mut tokens: Vec<u32>, cache: C) {
        // The last token was chosen but never run.
        tokens.truncate(cache.len());
        if tokens.is_empty() || tokens.len() > self.limit_tokens {
            return;
        }
        self.entries
            .retain(|prefix| common_prefix(&prefix.tokens, &tokens) < prefix.tokens.len());
        if self.longest(&tokens) == tokens.len() {
            return;
        }
        self.entries.push(Prefix { tokens, cache });
        let mut total: usize = self.entries.iter().map(|prefix| prefix.tokens.len()).sum();
        while total > self.limit_tokens {
            total -= self.entries.remove(0).tokens.len();
        }
    }
}

/// Tokens that two sequences have in common from the beginning.
pub(crate) fn common_prefix(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(a, b)| a == b).count()
}
