//! Token ids and log-probabilities, from servers that tell them: vLLM and `warpsmith serve` do, asked with `return_token_ids`.

use serde::Deserialize;
use warpsmith_schema::Usage;

use crate::policy::{Origin, ReplyTokens, SampledToken};

#[derive(Deserialize)]
pub(super) struct LogProbabilities {
    content: Option<Vec<LogProbability>>,
}

#[derive(Deserialize)]
struct LogProbability {
    logprob: f32,
}

/// What has arrived so far.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    prompt: Option<Vec<u32>>,
    sampled: Vec<u32>,
    logprobs: Vec<f32>,
    /// Only our own server tells.
    origin: Option<Origin>,
}

impl Tokens {
    pub(super) fn read(&mut self, prompt: Option<Vec<u32>>, origin: Option<Origin>) {
        self.prompt = prompt.or(self.prompt.take());
        self.origin = origin.or(self.origin.take());
    }

    pub(super) fn sampled(&mut self, ids: Option<Vec<u32>>, logprobs: Option<LogProbabilities>) {
        self.sampled.extend(ids.unwrap_or_default());
        let content = logprobs.and_then(|all| all.content).unwrap_or_default();
        self.logprobs.extend(content.iter().map(|one| one.logprob));
    }

    /// All or nothing: servers have been seen to leave out tokens that their tool parser swallowed, so what arrived must be
    /// as much as was paid for.
    pub(super) fn finish(self, usage: &Usage) -> Option<ReplyTokens> {
        let prompt = self.prompt?;
        let complete = prompt.len() as u64 == usage.prompt_tokens
            && self.sampled.len() as u64 == usage.completion_tokens
            && self.sampled.len() == self.logprobs.len()
            && !self.sampled.is_empty();
        let pairs = self.sampled.into_iter().zip(self.logprobs);
        let (template, tokenizer) = self
            .origin
            .map(|origin| (origin.template, origin.tokenizer))
            .unzip();
        complete.then(|| ReplyTokens {
            prompt,
            sampled: pairs
                .map(|(id, logprob)| SampledToken { id, logprob })
                .collect(),
            template,
            tokenizer,
        })
    }
}
