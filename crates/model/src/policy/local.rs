//! A language model in this process as a policy.

mod calls;
mod conversation;
mod past;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use warpsmith_schema::{Message, PolicyVersion, Usage};

use self::conversation::ToolsBy;
use self::past::Pasts;
use crate::chat::Until;
use crate::policy::{Finish, Policy, PolicyError, Reply, ReplyTokens, Request, SampledToken};
use crate::{
    Adapter, ChatTemplate, Engine, Limits, ModelError, Sampling, Tokenizer, Transformer, Weights,
};

pub struct Local {
    engine: Engine,
    template: ChatTemplate,
    tools_by: ToolsBy,
    version: PolicyVersion,
    /// Of the chat template and of the tokenizer, for the token record.
    hashes: (String, String),
    pasts: Pasts,
    replies: u64,
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
            pasts: Pasts::default(),
            replies: 0,
        })
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
        let form = |messages: &[Message], until: Until| {
            self.tools_by.render(&self.template, messages, tools, until)
        };
        let tokenizer = self.engine.tokenizer();
        let prompt = self.pasts.prompt(messages, tools, tokenizer, &form)?;
        // Without a seed of the caller's, replies still differ from one another.
        let seed = sampling.seed.unwrap_or(0).wrapping_add(self.replies);
        self.replies += 1;
        let asked = crate::Request {
            prompt: prompt.tokens.clone(),
            sampling: Sampling::random(sampling.temperature, sampling.top_p, seed)?,
            max_tokens: sampling.max_tokens as usize,
            stop: Vec::new(),
        };
        let reply = self.engine.generate(asked, on_text)?;
        let calls = if tools.is_empty() {
            Vec::new()
        } else {
            calls::read(&reply.text, tools, calls_in(messages))
        };
        let sampled = |one: &crate::Sampled| SampledToken {
            id: one.token,
            logprob: one.log_probability,
        };
        let tokens = ReplyTokens {
            prompt: prompt.tokens.clone(),
            sampled: reply.tokens.iter().map(sampled).collect(),
            template: Some(self.hashes.0.clone()),
            tokenizer: Some(self.hashes.1.clone()),
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
            text: reply.text,
        })
    }
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
        self.ask(request, on_text).map_err(|error| match error {
            ModelError::ContextFull { .. } => PolicyError::ContextFull {
                policy: self.version.name.clone(),
                message: error.to_string(),
            },
            other => PolicyError::Local(Box::new(other)),
        })
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
