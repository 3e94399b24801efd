//! A language model in this process as a policy.

mod calls;
mod chat_model;
mod conversation;
mod dialogue;
mod past;

pub use chat_model::ChatModel;
pub use dialogue::{Dialogue, Said};

use warpsmith_schema::{Message, PolicyVersion, Usage};

use self::past::Pasts;
use crate::chat::Until;
use crate::policy::{Finish, Policy, PolicyError, Reply, ReplyTokens, Request, SampledToken};
use crate::{ModelError, Sampled, Sampling};

pub struct Local {
    model: ChatModel,
    pasts: Pasts,
    replies: u64,
}

impl Local {
    pub fn new(model: ChatModel) -> Self {
        Self {
            model,
            pasts: Pasts::default(),
            replies: 0,
        }
    }

    fn ask(
        &mut self,
        request: &Request<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<Reply, ModelError> {
        let Request {
            messages,
            tools,
            sampling,
        } = *request;
        let ChatModel {
            engine, dialogue, ..
        } = &mut self.model;
        let form = |messages: &[Message], until: Until| dialogue.form(messages, tools, until);
        let prompt = self
            .pasts
            .prompt(messages, tools, dialogue.tokenizer(), &form)?;
        // Without a seed of the caller's, replies still differ from one another.
        let seed = sampling.seed.unwrap_or(0).wrapping_add(self.replies);
        self.replies += 1;
        let asked = crate::Request {
            prompt: prompt.tokens.clone(),
            sampling: Sampling::random(sampling.temperature, sampling.top_p, seed)?,
            max_tokens: sampling.max_tokens as usize,
            stop: Vec::new(),
        };
        let reply = engine.generate(asked, on_text)?;
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
        Ok(Reply {
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
        })
    }
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
        self.ask(request, on_text).map_err(|error| match error {
            ModelError::ContextFull { .. } => PolicyError::ContextFull {
                policy: self.model.version.name.clone(),
                message: error.to_string(),
            },
            other => PolicyError::Local(Box::new(other)),
        })
    }
}
