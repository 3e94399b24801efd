//! A language model in this process as a policy.

mod answered;
mod calls;
mod chat_codec;
mod chat_model;
mod conversation;
mod transcript;

pub use chat_codec::{ChatCodec, ParsedReply};
pub use chat_model::{ChatModel, RunsOn};
pub use transcript::TokenizedTranscript;

use std::io;
use std::sync::Arc;

use warpsmith_machine::SharedDevice;
use warpsmith_schema::{EpisodeId, Message, PolicyVersion, Usage};

use self::answered::{AnsweredConversations, Prompt};
use crate::chat::Until;
use crate::policy::{
    FinishReason, Policy, PolicyError, PolicyReply, PolicyRequest, ReplyTokens, ReplyUpdate,
    SampledToken, SharedPolicy,
};
use crate::{
    GenerationStopped, GenerationStream, GenerationThread, GenerationUpdate, ModelError, Sampled,
    Sampler,
};

pub struct LocalPolicy {
    generation: GenerationThread,
    dialogue: Arc<ChatCodec>,
    version: PolicyVersion,
    pasts: AnsweredConversations,
    rests: bool,
}

impl LocalPolicy {
    /// The model gets a thread of its own. As a guest it rests while somebody has the device for himself.
    pub fn start(model: ChatModel, guest: Option<SharedDevice>) -> io::Result<Self> {
        Ok(Self {
            rests: guest.is_some(),
            generation: GenerationThread::start(model.engine, guest)?,
            dialogue: Arc::new(model.dialogue),
            version: model.version,
            pasts: AnsweredConversations::default(),
        })
    }

    /// Returns once the model is gone and its memory free. Nobody may be waiting for a reply.
    pub fn end(self) {
        self.generation.end();
    }

    /// The conversation as the model reads it.
    fn asked(
        &mut self,
        request: &PolicyRequest<'_>,
    ) -> Result<(Prompt, crate::GenerationRequest), ModelError> {
        let PolicyRequest {
            messages,
            tools,
            sampling,
        } = *request;
        let dialogue = &self.dialogue;
        let form = |messages: &[Message], until: Until| dialogue.render(messages, tools, until);
        let prompt = self
            .pasts
            .prompt(messages, tools, dialogue.tokenizer(), &form)?;
        // Each turn has luck of its own: with that of the turn before, a repair is the more likely to be what failed.
        let seed = sampling.seed.map_or_else(rand::random, |seed| {
            seed.wrapping_add(messages.len() as u64)
        });
        let asked = crate::GenerationRequest {
            prompt: prompt.tokens.clone(),
            sampling: Sampler::random(sampling.temperature, sampling.top_p, seed)?,
            max_tokens: sampling.max_tokens as usize,
            stop: Vec::new(),
        };
        Ok((prompt, asked))
    }

    fn replied(
        &mut self,
        request: &PolicyRequest<'_>,
        prompt: Prompt,
        reply: crate::Completion,
    ) -> PolicyReply {
        let PolicyRequest {
            messages, tools, ..
        } = *request;
        let dialogue = &self.dialogue;
        let calls = dialogue.parse_reply(&reply.text, messages, tools).calls;
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
        PolicyReply {
            usage: Usage {
                prompt_tokens: reply.prompt_tokens as u64,
                completion_tokens: reply.tokens.len() as u64,
                cached_tokens: reply.reused_tokens as u64,
            },
            tokens: Some(tokens),
            finish: match reply.finish {
                crate::EndReason::Length | crate::EndReason::Context => FinishReason::Length,
                crate::EndReason::End | crate::EndReason::Stop(_) if calls.is_empty() => {
                    FinishReason::Stopped
                }
                crate::EndReason::End | crate::EndReason::Stop(_) => FinishReason::ToolCalls,
            },
            calls,
            // Word for word, calls and all: it goes back to the model as it was said.
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

impl Policy for LocalPolicy {
    fn version(&self) -> &PolicyVersion {
        &self.version
    }

    fn reply(
        &mut self,
        request: &PolicyRequest<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<PolicyReply, PolicyError> {
        let mut reply = Err(PolicyError::Gone(GenerationStopped));
        self.reply_many(&[*request], &mut |_, said| match said {
            ReplyUpdate::Text(piece) => on_text(piece),
            ReplyUpdate::Done(whole) => reply = whole,
        });
        reply
    }

    /// In one batch, with what others ask meanwhile: the weights are read once for all of them.
    fn reply_many(
        &mut self,
        requests: &[PolicyRequest<'_>],
        on_update: &mut dyn FnMut(usize, ReplyUpdate<'_>),
    ) {
        // The place of each among those that were asked, and how the model reads it.
        let mut underway = Vec::new();
        let mut asked = Vec::new();
        for (number, request) in requests.iter().enumerate() {
            match self.asked(request) {
                Ok((prompt, one)) => {
                    underway.push((number, Some(prompt)));
                    asked.push(one);
                }
                Err(error) => on_update(number, ReplyUpdate::Done(Err(self.failed(error)))),
            }
        }
        let mut listening = self.generation.submit(asked).ok();
        while let Some((place, told)) = listening.as_mut().and_then(GenerationStream::wait) {
            let (number, prompt) = &mut underway[place];
            let whole = match told {
                GenerationUpdate::Accepted => continue,
                GenerationUpdate::Text(text) => {
                    on_update(*number, ReplyUpdate::Text(&text));
                    continue;
                }
                GenerationUpdate::Done(reply) => prompt
                    .take()
                    .map(|prompt| Ok(self.replied(&requests[*number], prompt, reply))),
                GenerationUpdate::Refused(error) => prompt.take().map(|_| Err(self.failed(error))),
                GenerationUpdate::Failed(error) => {
                    prompt.take().map(|_| Err(PolicyError::Local(error)))
                }
            };
            if let Some(whole) = whole {
                on_update(*number, ReplyUpdate::Done(whole));
            }
        }
        for (number, prompt) in underway {
            if prompt.is_some() {
                on_update(
                    number,
                    ReplyUpdate::Done(Err(PolicyError::Gone(GenerationStopped))),
                );
            }
        }
    }
}

/// Every episode has a past of its own; the model is the same.
impl SharedPolicy for LocalPolicy {
    fn version(&self) -> &PolicyVersion {
        &self.version
    }

    fn for_episode(&self, _: &EpisodeId, _: usize) -> Box<dyn Policy> {
        Box::new(Self {
            generation: self.generation.clone(),
            dialogue: self.dialogue.clone(),
            version: self.version.clone(),
            pasts: AnsweredConversations::default(),
            rests: self.rests,
        })
    }

    fn rests(&self) -> bool {
        self.rests
    }
}
