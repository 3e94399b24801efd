//! One request on its way to a reply.

use super::runner::Cache;
use super::sampling::{Sampled, Sampler};
use super::stop::{Passed, Stops};
use crate::{ModelError, TextStream, Tokenizer};

/// What is asked of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationRequest {
    pub prompt: Vec<u32>,
    pub sampling: Sampler,
    /// Tokens the reply may have.
    pub max_tokens: usize,
    /// Texts that end the reply and do not belong to it.
    pub stop: Vec<String>,
}

/// Why a reply ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndReason {
    /// The model said so.
    End,
    /// This text came.
    Stop(String),
    /// The request's `max_tokens`.
    Length,
    /// The model's context is full.
    Context,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    pub text: String,
    /// Every token that was sampled, the ending one included, with its log-probability.
    pub tokens: Vec<Sampled>,
    pub finish: EndReason,
    pub prompt_tokens: usize,
    /// Prompt tokens whose keys and values were already there.
    pub reused_tokens: usize,
}

/// A request that was admitted.
#[derive(Debug)]
pub(super) struct Sequence<C> {
    request: GenerationRequest,
    /// Prompt and reply so far; the cache holds a beginning of it.
    pub(super) tokens: Vec<u32>,
    pub(super) cache: C,
    sampled: Vec<Sampled>,
    stream: TextStream,
    stops: Stops,
    text: String,
    reused: usize,
}

impl<C: Cache> Sequence<C> {
    pub(super) fn new(request: GenerationRequest, cache: C) -> Self {
        Self {
            tokens: request.prompt.clone(),
            reused: cache.len(),
            cache,
            sampled: Vec::new(),
            stream: TextStream::default(),
            stops: Stops::new(&request.stop),
            text: String::new(),
            request,
        }
    }

    /// Tokens the model has not seen yet: the rest of the prompt, or the one chosen last.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.cache.len()
    }

    pub(super) fn prompt(&self) -> &[u32] {
        &self.request.prompt
    }

    pub(super) fn in_prompt(&self) -> bool {
        self.sampled.is_empty()
    }

    /// How the next token is chosen, and its number.
    pub(super) fn choice(&self) -> (Sampler, u64) {
        (self.request.sampling, self.sampled.len() as u64)
    }

    /// Takes the next token. Gives the text that is now certain, and the reason if this was the last.
    pub(super) fn advance(
        &mut self,
        sampled: Sampled,
        tokenizer: &Tokenizer,
        context: usize,
    ) -> Result<(String, Option<EndReason>), ModelError> {
        self.sampled.push(sampled);
        self.tokens.push(sampled.token);
        let (mut text, mut finish) = (String::new(), None);
        if tokenizer.is_end(sampled.token) {
            finish = Some(EndReason::End);
        } else {
            let piece = self.stream.push(tokenizer, sampled.token)?;
            match self.stops.push(&piece) {
                Passed::Text(passed) => text = passed,
                Passed::Stopped { text: passed, stop } => {
                    text = passed;
                    finish = Some(EndReason::Stop(stop));
                }
            }
        }
        if finish.is_none() {
            if self.sampled.len() >= self.request.max_tokens {
                finish = Some(EndReason::Length);
            } else if self.tokens.len() >= context {
                finish = Some(EndReason::Context);
            }
        }
        if matches!(
            finish,
            Some(EndReason::End | EndReason::Length | EndReason::Context)
        ) {
            match self.stops.push(&self.stream.finish(tokenizer)?) {
                Passed::Text(passed) => text += &(passed + &self.stops.finish()),
                Passed::Stopped { text: passed, .. } => text += &passed,
            }
        }
        self.text += &text;
        Ok((text, finish))
    }

    /// The reply, and what may serve a later request: the tokens and their cache.
    pub(super) fn finish(self, finish: EndReason) -> (Completion, Vec<u32>, C) {
        let reply = Completion {
            text: self.text,
            tokens: self.sampled,
            finish,
            prompt_tokens: self.request.prompt.len(),
            reused_tokens: self.reused,
        };
        (reply, self.tokens, self.cache)
    }
}
