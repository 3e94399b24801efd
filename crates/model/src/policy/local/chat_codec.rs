//! Between conversations and tokens.

use std::path::Path;
use std::sync::Arc;

use warpsmith_schema::{Message, ToolCall, ToolSchema};

use super::calls;
use super::conversation::ToolsBy;
use crate::chat::Until;
use crate::policy::Origin;
use crate::{ChatTemplate, ModelError, Tokenizer};

/// How to talk to one model: its template, its tokenizer, and the calls in what it says.
#[derive(Debug)]
pub struct ChatCodec {
    template: ChatTemplate,
    tools_by: ToolsBy,
    tokenizer: Arc<Tokenizer>,
    origin: Origin,
}

/// A reply of a model that has tools.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedReply<'a> {
    /// What stands before the first call.
    pub text: &'a str,
    pub calls: Vec<ToolCall>,
}

impl ChatCodec {
    /// Template and tokenizer from a GGUF file or a folder. `hash` is of the file, where it is known; else its path tells
    /// models apart.
    pub fn open(path: &Path, hash: Option<&str>) -> Result<Self, ModelError> {
        let origin = hash.map_or_else(|| Origin::of(&path.display().to_string()), Origin::of);
        let tokenizer = Arc::new(Tokenizer::load(path)?);
        let template = ChatTemplate::load(path, &tokenizer)?;
        Ok(Self {
            tools_by: ToolsBy::of(&template),
            template,
            tokenizer,
            origin,
        })
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// A conversation up to where the model's next reply begins.
    pub fn prompt(
        &self,
        messages: &[Message],
        tools: &[ToolSchema],
    ) -> Result<Vec<u32>, ModelError> {
        let text = self.render(messages, tools, Until::NextReply)?;
        self.tokenizer.encode(&text)
    }

    /// How the template has a conversation.
    pub(super) fn render(
        &self,
        messages: &[Message],
        tools: &[ToolSchema],
        until: Until,
    ) -> Result<String, ModelError> {
        self.tools_by.render(&self.template, messages, tools, until)
    }

    /// What a reply to these messages says, and the calls it makes.
    pub fn parse_reply<'a>(
        &self,
        reply: &'a str,
        messages: &[Message],
        tools: &[ToolSchema],
    ) -> ParsedReply<'a> {
        if tools.is_empty() {
            return ParsedReply {
                text: reply,
                calls: Vec::new(),
            };
        }
        let found = calls::read(reply, tools, calls_in(messages));
        let text = &reply[..found.start];
        ParsedReply {
            // A template puts calls on lines of their own.
            text: if found.calls.is_empty() {
                text
            } else {
                text.trim_end()
            },
            calls: found.calls,
        }
    }

    /// The beginning of an unfinished reply that will be part of [`Spoken::text`], whatever comes.
    pub fn settled_text<'a>(&self, unfinished: &'a str, tools: &[ToolSchema]) -> &'a str {
        if tools.is_empty() {
            unfinished
        } else {
            calls::certain(unfinished)
        }
    }
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
