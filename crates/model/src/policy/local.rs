//! A language model in this process as a policy.

mod calls;
mod chat_model;
mod conversation;
mod dialogue;
mod past;

pub use chat_model::{ChatModel, RunsOn};
pub use dialogue::{Dialogue, Spoken};

use std::sync::Arc;

use warpsmith_schema::{Message, PolicyVersion, Usage};

use self::past::{Pasts, Prompt};
use crate::chat::Until;
use crate::policy::{Finish, Policy, PolicyError, Reply, ReplyTokens, Request, Said, SampledToken};
use crate::{Event, ModelError, RequestId, Sampled, Sampling};

pub struct Local {
    model: ChatModel,
    pasts: Pasts,
}

impl Local {
    pub fn new(model: ChatModel) -> Self {
        Self {
            model,
            pasts: Pasts::default(),
        }
    }

    /// The conversation as the model reads it.
    fn asked(&mut self, request: &Request<'_>) -> Result<(Prompt, crate::Request), ModelError> {
        let Request {
            messages,
            tools,
            sampling,
        } = *request;
        let dialogue = &self.model.dialogue;
        let form = |messages: &[Message], until: Until| dialogue.form(messages, tools, until);
        let prompt = self
            .pasts
            .prompt(messages, tools, dialogue.tokenizer(), &form)?;
        // Each turn has luck of its own: with that of the turn before, a repair is the more likely to be what failed.
        let seed = sampling.seed.map_or_else(rand::random, |seed| {
            seed.wrapping_add(messages.len() as u64)
        });
        let asked = crate::Request {
            prompt: prompt.tokens.clone(),
            sampling: Sampling::random(sampling.temperature, sampling.top_p, seed)?,
            max_tokens: sampling.max_tokens as usize,
            stop: Vec::new(),
        };
        Ok((prompt, asked))
    }

    fn replied(&mut self, request: &Request<'_>, prompt: Prompt, reply: crate::Reply) -> Reply {
        let Request {
            messages, tools, ..
        } = *request;
        let dialogue = &self.model.dialogue;
        let calls = dialogue.said(&reply.text, messages, tools).calls;
        let sampled = |one: &Sampled| SampledToken {
            id: one.token,
            logprob: one.log_probability,
        };
        let origin = dialogue.origin();
        let tokens = ReplyTokens {
            prompt: prompt.tokens.clone(),
            sampled: reply.tokens.iter().map(sampled).collect(),
            template: Some(origin.template.clone()),
            tokenizer: Some(origin.tokenizer.clone()),
        };
        let said = Message::Assistant {
            text: reply.text.clone(),
            calls: calls.clone(),
        };
        let ids = reply.tokens.iter().map(|one| one.token);
        self.pasts.keep(messages, tools, prompt, said, ids);
        Reply {
            usage: Usage {
                prompt_tokens: reply.prompt_tokens as u64,
                completion_tokens: reply.tokens.len() as u64,
                reused_tokens: reply.reused_tokens as u64,
            },
            tokens: Some(tokens),
            finish: match reply.finish {
                crate::Finish::Length | crate::Finish::Context => Finish::Length,
                crate::Finish::End | crate::Finish::Stop(_) if calls.is_empty() => Finish::Stopped,
                crate::Finish::End | crate::Finish::Stop(_) => Finish::Calls,
            },
            calls,
            // Word for word, calls and all: it goes back to the model as it was said.
            text: reply.text,
        }
    }

    fn failed(&self, error: ModelError) -> PolicyError {
        match error {
            ModelError::ContextFull { .. } => PolicyError::ContextFull {
                policy: self.model.version.name.clone(),
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
    prompt: Prompt,
}

impl Policy for Local {
    fn version(&self) -> &PolicyVersion {
        &self.model.version
    }

    fn reply(
        &mut self,
        request: &Request<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<Reply, PolicyError> {
        let (prompt, asked) = self.asked(request).map_err(|error| self.failed(error))?;
        match self.model.engine.generate(asked, on_text) {
            Ok(reply) => Ok(self.replied(request, prompt, reply)),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// In one batch: the weights are read once for all of them.
    fn reply_many(&mut self, requests: &[Request<'_>], on_said: &mut dyn FnMut(usize, Said<'_>)) {
        let mut underway = Vec::new();
        for (number, request) in requests.iter().enumerate() {
            let submitted = self.asked(request).and_then(|(prompt, asked)| {
                let id = self.model.engine.submit(asked)?;
                Ok(Underway { number, id, prompt })
            });
            match submitted {
                Ok(one) => underway.push(one),
                Err(error) => on_said(number, Said::Whole(Err(self.failed(error)))),
            }
        }
        while !underway.is_empty() {
            let events = match self.model.engine.step() {
                Ok(events) => events,
                Err(error) => {
                    let error = Arc::new(error);
                    for one in underway.drain(..) {
                        self.model.engine.cancel(one.id);
                        let failed = PolicyError::Local(error.clone());
                        on_said(one.number, Said::Whole(Err(failed)));
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
                        let reply = self.replied(&requests[one.number], one.prompt, reply);
                        on_said(one.number, Said::Whole(Ok(reply)));
                    }
                }
            }
        }
    }
}
