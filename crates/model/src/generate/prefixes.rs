//! Keys and values of finished sequences, kept for those that begin the same.

use crate::KvCache;

/// The most recently used last.
#[derive(Debug)]
pub(crate) struct Prefixes {
    kept: Vec<Prefix>,
    limit_tokens: usize,
}

#[derive(Debug)]
struct Prefix {
    tokens: Vec<u32>,
    cache: KvCache,
}

impl Prefixes {
    pub(crate) fn new(limit_tokens: usize) -> Self {
        Self {
            kept: Vec::new(),
            limit_tokens,
        }
    }

    /// The longest beginning of these tokens that is known.
    pub(crate) fn longest(&self, tokens: &[u32]) -> usize {
        self.kept
            .iter()
            .map(|prefix| shared(&prefix.tokens, tokens))
            .max()
            .unwrap_or_default()
    }

    /// A cache of the first `len` of these tokens, where they are known.
    pub(crate) fn copy(&mut self, tokens: &[u32], len: usize) -> Option<KvCache> {
        let place = self
            .kept
            .iter()
            .position(|prefix| shared(&prefix.tokens, tokens) >= len)?;
        let prefix = self.kept.remove(place);
        let copy = prefix.cache.prefix(len);
        self.kept.push(prefix);
        Some(copy)
    }

    /// Keeps what a sequence leaves, and drops what it makes superfluous and the longest unused.
    pub(crate) fn keep(&mut self, mut tokens: Vec<u32>, cache: KvCache) {
        // The last token was chosen but never run.
        tokens.truncate(cache.len());
        if tokens.is_empty() || tokens.len() > self.limit_tokens {
            return;
        }
        self.kept
            .retain(|prefix| shared(&prefix.tokens, &tokens) < prefix.tokens.len());
        if self.longest(&tokens) == tokens.len() {
            return;
        }
        self.kept.push(Prefix { tokens, cache });
        let mut total: usize = self.kept.iter().map(|prefix| prefix.tokens.len()).sum();
        while total > self.limit_tokens {
            total -= self.kept.remove(0).tokens.len();
        }
    }
}

/// Tokens that two sequences have in common from the beginning.
pub(crate) fn shared(left: &[u32], right: &[u32]) -> usize {
    left.iter().zip(right).take_while(|(a, b)| a == b).count()
}
