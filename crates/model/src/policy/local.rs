//! A language model in this process as a policy.

mod calls;
mod chat_model;
mod conversation;
mod dialogue;

pub use chat_model::ChatModel;
pub use dialogue::{Dialogue, Said};

use warpsmith_schema::{PolicyVersion, Usage};

use crate::policy::{Finish, Policy, PolicyError, Reply, Request};
use crate::{ModelError, Sampling};

pub struct Local {
    model: ChatModel,
    replies: u64,
}

impl Local {
    pub fn new(model: ChatModel) -> Self {
        Self { model, replies: 0 }
    }

    fn ask(
        &mut self,
        request: &Request<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<Reply, ModelError> {
        let ChatModel {
            engine, dialogue, ..
        } = &mut self.model;
        let prompt = dialogue.prompt(request.messages, request.tools)?;
        let sampling = request.sampling;
        // Without a seed of the caller's, replies still differ from one another.
        let seed = sampling.seed.unwrap_or(0).wrapping_add(self.replies);
        self.replies += 1;
        let asked = crate::Request {
            prompt: prompt.clone(),
            sampling: Sampling::random(sampling.temperature, sampling.top_p, seed)?,
            max_tokens: sampling.max_tokens as usize,
            stop: Vec::new(),
        };
        let reply = engine.generate(asked, on_text)?;
        let said = dialogue.said(&reply.text, request.messages, request.tools);
        let calls = said.calls;
        Ok(Reply {
            usage: Usage {
                prompt_tokens: prompt.len() as u64,
                completion_tokens: reply.tokens.len() as u64,
            },
            tokens: Some(dialogue.record(&prompt, &reply.tokens)),
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
