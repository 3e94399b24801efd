//! A language model in this process as a policy.

mod calls;
mod conversation;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use warpsmith_schema::{Message, PolicyVersion, TokenRecord, Usage};

use self::conversation::ToolsBy;
use crate::policy::{Finish, Policy, PolicyError, Reply, Request, Said};
use crate::{
    Adapter, ChatTemplate, Engine, Event, Limits, ModelError, RequestId, Sampled, Sampling,
    Tokenizer, Transformer, Weights,
};

pub struct Local {
    engine: Engine,
    template: ChatTemplate,
    tools_by: ToolsBy,
    version: PolicyVersion,
    /// Of the chat template and of the tokenizer, for the token record.
    hashes: (String, String),
}

impl Local {
    /// Reads weights, tokenizer and chat template from a GGUF file or a folder.
    pub fn load(name: &str, path: &Path, hash: Option<String>) -> Result<Self, ModelError> {
        Self::load_adapted(name, path, hash, &[])
    }

    /// The same with adapters stacked on it, the first lowest. `hash` is of the base alone.
    pub fn load_adapted(
        name: &str,
        path: &Path,
        hash: Option<String>,
        adapters: &[PathBuf],
    ) -> Result<Self, ModelError> {
        let adapters: Vec<Adapter> = adapters
            .iter()
            .map(|folder| Adapter::load(folder))
            .collect::<Result<_, _>>()?;
        let tokenizer = Arc::new(Tokenizer::load(path)?);
        let template = ChatTemplate::load(path, &tokenizer)?;
        let mut weights = Weights::load(path)?;
        for adapter in &adapters {
            weights = weights.stacked(adapter)?;
        }
        // Both lie in the file that was hashed; where none was, its path at least tells models apart.
        let known = hash.clone().unwrap_or_else(|| path.display().to_string());
        let of = |what: &str| {
            blake3::hash(format!("{what} {known}").as_bytes()).to_hex()[..16].to_owned()
        };
        let hash = if adapters.is_empty() {
            hash
        } else {
            Some(stack_hash(&known, &adapters)?)
        };
        Ok(Self {
            engine: Engine::new(
                Transformer::new(Arc::new(weights)),
                tokenizer,
                Limits::default(),
            ),
            tools_by: ToolsBy::of(&template),
            template,
            version: PolicyVersion {
                name: format!("local:{name}"),
                hash,
                step: None,
            },
            hashes: (of("template"), of("tokenizer")),
        })
    }

    /// The conversation as the model reads it.
    fn asked(&self, request: &Request<'_>) -> Result<crate::Request, ModelError> {
        let text = self
            .tools_by
            .render(&self.template, request.messages, request.tools)?;
        let sampling = request.sampling;
        // Each turn has luck of its own: with that of the turn before, a repair is the more likely to be what failed.
        let seed = sampling.seed.map_or_else(rand::random, |seed| {
            seed.wrapping_add(request.messages.len() as u64)
        });
        Ok(crate::Request {
            prompt: self.engine.tokenizer().encode(&text)?,
            sampling: Sampling::random(sampling.temperature, sampling.top_p, seed)?,
            max_tokens: sampling.max_tokens as usize,
            stop: Vec::new(),
        })
    }

    fn replied(&self, request: &Request<'_>, prompt: &[u32], reply: crate::Reply) -> Reply {
        let calls = if request.tools.is_empty() {
            Vec::new()
        } else {
            calls::read(&reply.text, request.tools, calls_in(request.messages))
        };
        Reply {
            usage: Usage {
                prompt_tokens: prompt.len() as u64,
                completion_tokens: reply.tokens.len() as u64,
            },
            tokens: Some(record(prompt, &reply.tokens, &self.hashes)),
            finish: match reply.finish {
                crate::Finish::Length | crate::Finish::Context => Finish::Length,
                crate::Finish::End | crate::Finish::Stop(_) if calls.is_empty() => Finish::Stopped,
                crate::Finish::End | crate::Finish::Stop(_) => Finish::Calls,
            },
            calls,
            text: reply.text,
        }
    }

    fn failed(&self, error: ModelError) -> PolicyError {
        match error {
            ModelError::ContextFull { .. } => PolicyError::ContextFull {
                policy: self.version.name.clone(),
                message: error.to_string(),
            },
            other => PolicyError::Local(Arc::new(other)),
        }
    }
}

/// A conversation among several that are under way.
struct Underway {
    /// Its place among those that were asked.
    number: usize,
    id: RequestId,
    prompt: Vec<u32>,
}

impl Policy for Local {
    fn version(&self) -> &PolicyVersion {
        &self.version
    }

    fn reply(
        &mut self,
        request: &Request<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<Reply, PolicyError> {
        let asked = self.asked(request).map_err(|error| self.failed(error))?;
        let prompt = asked.prompt.clone();
        match self.engine.generate(asked, on_text) {
            Ok(reply) => Ok(self.replied(request, &prompt, reply)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// In one batch: the weights are read once for all of them.
    fn reply_many(&mut self, requests: &[Request<'_>], on_said: &mut dyn FnMut(usize, Said<'_>)) {
        let mut underway = Vec::new();
        for (number, request) in requests.iter().enumerate() {
            let submitted = self.asked(request).and_then(|asked| {
                let prompt = asked.prompt.clone();
                let id = self.engine.submit(asked)?;
                Ok(Underway { number, id, prompt })
            });
            match submitted {
                Ok(one) => underway.push(one),
                Err(error) => on_said(number, Said::Whole(Err(self.failed(error)))),
            }
        }
        while !underway.is_empty() {
            let events = match self.engine.step() {
                Ok(events) => events,
                Err(error) => {
                    let error = Arc::new(error);
                    for one in underway.drain(..) {
                        self.engine.cancel(one.id);
                        on_said(
                            one.number,
                            Said::Whole(Err(PolicyError::Local(error.clone()))),
                        );
                    }
                    return;
                }
            };
            for event in events {
                let (Event::Text { request: id, .. } | Event::Done { request: id, .. }) = &event;
                let Some(place) = underway.iter().position(|one| one.id == *id) else {
                    continue;
                };
                match event {
                    Event::Text { text, .. } => {
                        on_said(underway[place].number, Said::Piece(&text));
                    }
                    Event::Done { reply, .. } => {
                        let one = underway.remove(place);
                        let reply = self.replied(&requests[one.number], &one.prompt, reply);
                        on_said(one.number, Said::Whole(Ok(reply)));
                    }
                }
            }
        }
    }
}

/// Of the base and of each adapter's numbers, in their order.
fn stack_hash(base: &str, adapters: &[Adapter]) -> Result<String, ModelError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(base.as_bytes());
    for adapter in adapters {
        hasher.update(b"\n");
        hasher.update(adapter.hash()?.as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

/// So that a new call's number is no earlier one's.
fn calls_in(messages: &[Message]) -> usize {
    messages
        .iter()
        .map(|message| match message {
            Message::Assistant { calls, .. } => calls.len(),
            _ => 0,
        })
        .sum()
}

fn record(prompt: &[u32], sampled: &[Sampled], hashes: &(String, String)) -> TokenRecord {
    let given = prompt.iter().map(|token| (*token, None));
    let chosen = sampled
        .iter()
        .map(|one| (one.token, Some(one.log_probability)));
    let (ids, logprobs): (Vec<u32>, Vec<Option<f32>>) = given.chain(chosen).unzip();
    TokenRecord {
        loss_mask: logprobs.iter().map(Option::is_some).collect(),
        ids,
        logprobs,
        template: hashes.0.clone(),
        tokenizer: hashes.1.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sampled_tokens_are_learnt_from() {
        let sampled = [Sampled {
            token: 9,
            log_probability: -0.5,
        }];
        let record = record(&[1, 2], &sampled, &("a".to_owned(), "b".to_owned()));
        assert_eq!(record.ids, [1, 2, 9]);
        assert_eq!(record.logprobs, [None, None, Some(-0.5)]);
        assert_eq!(record.loss_mask, [false, false, true]);
    }
}
