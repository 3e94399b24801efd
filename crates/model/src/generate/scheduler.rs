//! Many sequences at once: each step runs one token of every reply under way and fills up with pieces
//! of prompts, so that a new request is admitted at any step and nobody waits for the longest.

use std::collections::VecDeque;
use std::sync::Arc;

use super::prefixes::{PrefixCache, common_prefix};
use super::runner::{Cache, Runner, SequenceStep};
use super::sequence::{Completion, EndReason, GenerationRequest, Sequence};
use crate::{ModelError, Tokenizer};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchLimits {
    /// Replies under way at once.
    pub sequences: usize,
    /// Tokens of prompts in one step, which is as long as replies under way must wait for them.
    pub prompt_tokens_per_step: usize,
    /// Tokens whose keys and values are kept of finished sequences.
    pub kept_tokens: usize,
}

impl Default for BatchLimits {
    fn default() -> Self {
        Self {
            sequences: 32,
            prompt_tokens_per_step: 256,
            kept_tokens: 16_384,
        }
    }
}

/// A request's number, in the order of submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(u64);

#[derive(Debug, Clone, PartialEq)]
pub enum EngineEvent {
    /// More of a reply's text.
    Text { request: RequestId, text: String },
    Done {
        request: RequestId,
        reply: Completion,
    },
}

/// A prompt shared with a sequence still reading it is worth waiting for from this length on.
const WORTH_WAITING: usize = 8;

#[derive(Debug)]
pub(super) struct Scheduler<R: Runner> {
    model: R,
    tokenizer: Arc<Tokenizer>,
    limits: BatchLimits,
    waiting: VecDeque<(RequestId, GenerationRequest)>,
    active: Vec<(RequestId, Sequence<R::Cache>)>,
    prefixes: PrefixCache<R::Cache>,
    submitted: u64,
}

impl<R: Runner> Scheduler<R> {
    pub(super) fn new(model: R, tokenizer: Arc<Tokenizer>, limits: BatchLimits) -> Self {
        Self {
            prefixes: PrefixCache::new(limits.kept_tokens),
            model,
            tokenizer,
            limits,
            waiting: VecDeque::new(),
            active: Vec::new(),
            submitted: 0,
        }
    }

    pub(super) fn context(&self) -> usize {
        self.model.context()
    }

    /// Takes a request in; what cannot work is said here and not in the middle of others' steps.
    pub(super) fn submit(&mut self, request: GenerationRequest) -> Result<RequestId, ModelError> {
        let context = self.context();
        if request.prompt.is_empty() || request.max_tokens == 0 {
            return Err(ModelError::NoTokens);
        }
        if request.prompt.len() >= context {
            return Err(ModelError::ContextFull {
                needed: request.prompt.len() + 1,
                context,
            });
        }
        let vocabulary = self.model.config().vocabulary;
        let outside = |token: &&u32| **token as usize >= vocabulary;
        if let Some(&token) = request.prompt.iter().find(outside) {
            return Err(ModelError::Token { token, vocabulary });
        }
        let id = RequestId(self.submitted);
        self.submitted += 1;
        self.waiting.push_back((id, request));
        Ok(id)
    }

    /// Forgets a request, waiting or under way. What it has read stays useful to others.
    pub(super) fn cancel(&mut self, request: RequestId) {
        self.waiting.retain(|(id, _)| *id != request);
        if let Some(place) = self.active.iter().position(|(id, _)| *id == request) {
            let (_, sequence) = self.active.remove(place);
            self.prefixes.keep(sequence.tokens, sequence.cache);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.active.is_empty()
    }

    /// One pass of the model over everything under way.
    pub(super) fn advance(&mut self) -> Result<Vec<EngineEvent>, ModelError> {
        self.admit()?;
        if self.active.is_empty() {
            return Ok(Vec::new());
        }
        let mut prompt_budget = self.limits.prompt_tokens_per_step.max(1);
        let mut running = Vec::new();
        let mut asked = Vec::new();
        for (index, (_, sequence)) in self.active.iter_mut().enumerate() {
            let pending = sequence.pending();
            let count = if sequence.in_prompt() {
                let count = pending.min(prompt_budget);
                prompt_budget -= count;
                count
            } else {
                pending
            };
            if count == 0 {
                continue;
            }
            let start = sequence.cache.len();
            running.push(index);
            let choice = (count == pending).then(|| sequence.choice());
            asked.push(SequenceStep {
                tokens: &sequence.tokens[start..start + count],
                cache: &mut sequence.cache,
                choice,
            });
        }
        let chosen = self.model.run(&mut asked)?;
        let context = self.context();
        let mut events = Vec::new();
        let mut finished = Vec::new();
        for (index, sampled) in running.into_iter().zip(chosen) {
            let Some(sampled) = sampled else {
                continue;
            };
            let (request, sequence) = &mut self.active[index];
            let (text, finish) = sequence.advance(sampled, &self.tokenizer, context)?;
            if !text.is_empty() {
                events.push(EngineEvent::Text {
                    request: *request,
                    text,
                });
            }
            if let Some(finish) = finish {
                finished.push((index, finish));
            }
        }
        // From the back, so that the places before stay what they were.
        for (index, finish) in finished.into_iter().rev() {
            events.push(self.finish(index, finish));
        }
        Ok(events)
    }

    fn finish(&mut self, index: usize, finish: EndReason) -> EngineEvent {
        let (request, sequence) = self.active.remove(index);
        let (reply, tokens, cache) = sequence.finish(finish);
        self.prefixes.keep(tokens, cache);
        EngineEvent::Done { request, reply }
    }

    /// Starts waiting requests, each from the longest beginning that some sequence has already read.
    fn admit(&mut self) -> Result<(), ModelError> {
        let mut held_back = VecDeque::new();
        while self.active.len() < self.limits.sequences.max(1) {
            let Some((id, request)) = self.waiting.pop_front() else {
                break;
            };
            let prompt = &request.prompt;
            let read = |sequence: &Sequence<R::Cache>| {
                common_prefix(&sequence.tokens[..sequence.cache.len()], prompt)
            };
            let kept = self.prefixes.longest(prompt);
            let live = self.active.iter().max_by_key(|(_, one)| read(one));
            let best = live.map_or(0, |(_, one)| read(one)).max(kept);
            let coming = self
                .active
                .iter()
                .filter(|(_, one)| one.in_prompt())
                .map(|(_, one)| common_prefix(one.prompt(), prompt))
                .max()
                .unwrap_or_default();
            if coming >= best + WORTH_WAITING {
                held_back.push_back((id, request));
                continue;
            }
            // The last token is always run: its logits are the beginning of the reply.
            let len = best.min(prompt.len() - 1);
            let cache = if len == 0 {
                None
            } else if kept >= len {
                self.prefixes.copy(&mut self.model, prompt, len)?
            } else if let Some((_, one)) = live {
                let mut copy = self.model.prefix(&one.cache, len)?;
                while copy.is_none() && self.prefixes.evict_one() {
                    copy = self.model.prefix(&one.cache, len)?;
                }
                copy
            } else {
                None
            };
            let Some(cache) = cache.or_else(|| self.new_cache_or_evict()) else {
                held_back.push_back((id, request));
                break;
            };
            self.active.push((id, Sequence::new(request, cache)));
        }
        // They keep their place at the front of the queue.
        while let Some(one) = held_back.pop_back() {
            self.waiting.push_front(one);
        }
        Ok(())
    }

    /// An empty cache, in the place of what was kept longest if there is no other.
    fn new_cache_or_evict(&mut self) -> Option<R::Cache> {
        loop {
            let cache = self.model.new_cache();
            if cache.is_some() || !self.prefixes.evict_one() {
                return cache;
            }
        }
    }
}
