//! Whoever writes the kernels: a transcript goes in, a reply comes out.

#[cfg(feature = "local")]
mod local;
mod openai;
mod origin;
mod script;
mod shared;

#[cfg(feature = "local")]
pub use local::{ChatModel, Dialogue, Local, RunsOn, Spoken, Transcript};
pub use openai::OpenAi;
pub use origin::Origin;
pub use script::Script;
pub use shared::SharedPolicy;

use std::time::Duration;

use warpsmith_schema::{Message, PolicyVersion, ToolCall, ToolSchema, Usage};

/// A policy that can be asked.
pub trait Policy: Send {
    fn version(&self) -> &PolicyVersion;

    /// One reply to a conversation. `on_text` sees it as it comes.
    fn reply(
        &mut self,
        request: &Request<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<Reply, PolicyError>;

    /// One reply to each of several conversations: together where a policy can, else one after the other. `on_said` hears
    /// which of them is spoken to, and each reply as soon as it is whole.
    fn reply_many(&mut self, requests: &[Request<'_>], on_said: &mut dyn FnMut(usize, Said<'_>)) {
        for (number, request) in requests.iter().enumerate() {
            let reply = self.reply(request, &mut |piece| on_said(number, Said::Piece(piece)));
            on_said(number, Said::Whole(reply));
        }
    }
}

/// What is heard of one conversation among several.
#[derive(Debug)]
pub enum Said<'a> {
    Piece(&'a str),
    /// The last that is heard of it.
    Whole(Result<Reply, PolicyError>),
}

/// What a policy is asked.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    pub messages: &'a [Message],
    /// Tools it may call by their schemas; none where calls are read from its text.
    pub tools: &'a [ToolSchema],
    pub sampling: Sampling,
}

/// How to sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    pub temperature: f32,
    pub top_p: f32,
    /// The same conversation with the same seed gets the same reply, where a policy can.
    pub seed: Option<u64>,
    pub max_tokens: u32,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.7,
            top_p: 0.95,
            seed: None,
            max_tokens: 4096,
        }
    }
}

/// What a policy said.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    pub text: String,
    pub calls: Vec<ToolCall>,
    pub finish: Finish,
    pub usage: Usage,
    /// Where the policy can account for them.
    pub tokens: Option<ReplyTokens>,
}

/// The tokens behind a reply: what was read and what was sampled, never what its text is tokenised to afterwards.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplyTokens {
    /// The whole conversation before the reply. It begins with the tokens of the reply before where it went on from them.
    pub prompt: Vec<u32>,
    /// The token that ends the turn included, where one was sampled.
    pub sampled: Vec<SampledToken>,
    /// Hash of the chat template, where it can be known.
    pub template: Option<String>,
    /// Hash of the tokenizer, where it can be known.
    pub tokenizer: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SampledToken {
    pub id: u32,
    pub logprob: f32,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The policy was done.
    Stopped,
    /// It was cut at `max_tokens`.
    Length,
    /// It wants its tools called.
    Calls,
}

/// Why there is no reply.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("`{url}` does not answer")]
    Unreachable {
        url: String,
        #[source]
        source: Box<ureq::Error>,
    },
    #[error("`{url}` answered with status {status}: {message}")]
    Refused {
        url: String,
        status: u16,
        message: String,
        /// As the server asked.
        retry_after: Option<Duration>,
    },
    #[error("the reply of `{url}` broke off after {received} characters")]
    BrokeOff { url: String, received: usize },
    #[error("`{url}` sent something that is not a chat completion: {message}")]
    NotACompletion { url: String, message: String },
    #[error("the conversation does not fit into the context of `{policy}`: {message}")]
    ContextFull { policy: String, message: String },
    #[error("`{policy}` does not cover this task: {message}")]
    NotCovered { policy: String, message: String },
    #[cfg(feature = "local")]
    #[error("the model failed")]
    Local(#[source] std::sync::Arc<crate::ModelError>),
    #[cfg(feature = "local")]
    #[error(transparent)]
    Gone(crate::Gone),
    #[error("the script `{path}` has no reply number {number}")]
    ScriptEnded { path: String, number: usize },
    #[error("failed to read the script `{path}`")]
    Script {
        path: String,
        #[source]
        source: std::io::Error,
    },
    #[error("line {line} of the script `{path}` is not a reply")]
    ScriptLine {
        path: String,
        line: usize,
        #[source]
        source: serde_json::Error,
    },
}

impl PolicyError {
    /// Whether asking again may help.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::BrokeOff { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 409 | 425 | 429 | 500..=599),
            _ => false,
        }
    }

    /// What a person can do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unreachable { .. } => Some("check `--base-url`, and that the server is running"),
            Self::Refused {
                status: 401 | 403, ..
            } => Some("set OPENAI_API_KEY to a key that this server takes"),
            Self::Refused { status: 404, .. } => Some(
                "check the model's name, and that `--base-url` ends before `/chat/completions`",
            ),
            Self::ContextFull { .. } => {
                Some("use a policy with a larger context, or fewer repairs")
            }
            Self::ScriptEnded { .. } => Some("a script needs one line for each reply"),
            _ => None,
        }
    }
}
