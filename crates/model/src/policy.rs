//! The policy that writes kernels: a conversation goes in, a reply comes out.

#[cfg(feature = "local")]
mod local;
mod openai;
mod origin;
mod script;
mod shared;

#[cfg(feature = "local")]
pub use local::{ChatCodec, ChatModel, LocalPolicy, ParsedReply, RunsOn, TokenizedTranscript};
pub use openai::OpenAiPolicy;
pub use origin::Origin;
pub use script::ScriptPolicy;
pub use shared::SharedPolicy;

use std::time::Duration;

use warpsmith_schema::{Message, PolicyVersion, ToolCall, ToolSchema, Usage};

/// A policy that can be asked.
pub trait Policy: Send {
    fn version(&self) -> &PolicyVersion;

    /// One reply to a conversation. `on_text` sees it as it comes.
    fn reply(
        &mut self,
        request: &PolicyRequest<'_>,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<PolicyReply, PolicyError>;

    /// One reply to each of several conversations: in one batch where a policy can, else one after the other. `on_update` gets
    /// the number of a conversation with each piece of its reply, and with the whole of it.
    fn reply_many(
        &mut self,
        requests: &[PolicyRequest<'_>],
        on_update: &mut dyn FnMut(usize, ReplyUpdate<'_>),
    ) {
        for (number, request) in requests.iter().enumerate() {
            let reply = self.reply(request, &mut |piece| {
                on_update(number, ReplyUpdate::Text(piece));
            });
            on_update(number, ReplyUpdate::Done(reply));
        }
    }
}

/// News of one reply among several.
#[derive(Debug)]
pub enum ReplyUpdate<'a> {
    Text(&'a str),
    /// The last update of a reply.
    Done(Result<PolicyReply, PolicyError>),
}

/// What a policy is asked.
#[derive(Debug, Clone, Copy)]
pub struct PolicyRequest<'a> {
    pub messages: &'a [Message],
    /// Tools it may call by their schemas; none where calls are read from its text.
    pub tools: &'a [ToolSchema],
    pub sampling: SamplingParams,
}

/// How to sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    pub temperature: f32,
    pub top_p: f32,
    /// The same conversation with the same seed gets the same reply, where a policy can.
    pub seed: Option<u64>,
    pub max_tokens: u32,
}

impl Default for SamplingParams {
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
pub struct PolicyReply {
    pub text: String,
    pub calls: Vec<ToolCall>,
    pub finish: FinishReason,
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
pub enum FinishReason {
    /// The policy was done.
    Stopped,
    /// It was cut at `max_tokens`.
    Length,
    /// It wants its tools called.
    ToolCalls,
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
    #[error("`{url}` is not an address that can be asked")]
    NotAnAddress { url: String },
    #[error("`{url}` answered with status {status}: {message}; OPENAI_API_KEY is not set")]
    NoKey {
        url: String,
        status: u16,
        message: String,
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
    Gone(crate::GenerationStopped),
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
            Self::NotAnAddress { .. } | Self::NotACompletion { .. } => Some(
                "`--base-url` is an address up to `/chat/completions`, such as `http://127.0.0.1:8000/v1`",
            ),
            Self::NoKey { .. }
            | Self::Refused {
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
