//! Conversations that were answered before, so that each goes on from the very tokens that were read and sampled.
//!
//! Text does not lead back to tokens: a model may spell a word in other pieces than the tokenizer would, and templates trim
//! and rewrite. So only what was added is rendered and tokenised. Where the template would now show something of the past
//! differently, that does not hold, and the whole conversation is rendered anew.

use warpsmith_schema::{Message, ToolSchema};

use crate::chat::Until;
use crate::{ModelError, Tokenizer};

/// As many as are likely to be asked in turn.
const KEPT: usize = 32;

/// The most recently answered last.
#[derive(Debug, Default)]
pub(super) struct Pasts(Vec<Past>);

#[derive(Debug)]
struct Past {
    /// With the reply as the last.
    messages: Vec<Message>,
    tools: Vec<ToolSchema>,
    /// What the template made of all before the reply.
    rendered: String,
    /// All that was read and sampled.
    tokens: Vec<u32>,
}

/// What a model is to read.
#[derive(Debug)]
pub(super) struct Prompt {
    /// As the template has the whole of it.
    rendered: String,
    pub(super) tokens: Vec<u32>,
}

/// How the model's template has a conversation.
pub(super) type Form<'a> = dyn Fn(&[Message], Until) -> Result<String, ModelError> + 'a;

impl Pasts {
    /// The tokens of a conversation: those of an earlier one and what was added, where it goes on from one.
    pub(super) fn prompt(
        &mut self,
        messages: &[Message],
        tools: &[ToolSchema],
        tokenizer: &Tokenizer,
        form: &Form<'_>,
    ) -> Result<Prompt, ModelError> {
        let rendered = form(messages, Until::NextReply)?;
        let longest = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, past)| past.tools == tools && messages.starts_with(&past.messages))
            .max_by_key(|(_, past)| past.messages.len());
        if let Some((place, past)) = longest
            && let Some(added) = past.added(&rendered, tokenizer, form)?
        {
            // It comes back with the reply to this.
            let mut tokens = self.0.remove(place).tokens;
            tokens.extend(added);
            return Ok(Prompt { rendered, tokens });
        }
        let tokens = tokenizer.encode(&rendered)?;
        Ok(Prompt { rendered, tokens })
    }

    /// Remembers what was read and how it was answered.
    pub(super) fn keep(
        &mut self,
        messages: &[Message],
        tools: &[ToolSchema],
        prompt: Prompt,
        reply: Message,
        sampled: impl Iterator<Item = u32>,
    ) {
        let Prompt {
            rendered,
            mut tokens,
        } = prompt;
        tokens.extend(sampled);
        let mut messages = messages.to_vec();
        messages.push(reply);
        self.0.push(Past {
            messages,
            tools: tools.to_vec(),
            rendered,
            tokens,
        });
        if self.0.len() > KEPT {
            self.0.remove(0);
        }
    }
}

impl Past {
    /// The tokens between the reply and the next, or `None` if the template does not simply go on from it.
    fn added(
        &self,
        whole: &str,
        tokenizer: &Tokenizer,
        form: &Form<'_>,
    ) -> Result<Option<Vec<u32>>, ModelError> {
        let (Some(reply), Some(&last)) = (self.messages.last(), self.tokens.last()) else {
            return Ok(None);
        };
        let closed = form(&self.messages, Until::LastMessage)?;
        let Some(next) = whole.strip_prefix(&closed).map(str::len) else {
            return Ok(None);
        };
        let Some(end) = end_of_turn(&closed, &self.rendered, reply.text()) else {
            return Ok(None);
        };
        let mut added = tokenizer.encode(&whole[whole.len() - next - end.len()..])?;
        if tokenizer.is_end(last) {
            // The model ended its turn itself; with another token than the template's, this is no way to go on.
            if added.first() != Some(&last) {
                return Ok(None);
            }
            added.remove(0);
        }
        Ok(Some(added))
    }
}

/// What the template puts behind a reply. Some trim the reply itself.
fn end_of_turn<'a>(closed: &'a str, before: &str, reply: &str) -> Option<&'a str> {
    let turn = closed.strip_prefix(before)?;
    [reply, reply.trim()]
        .into_iter()
        .find_map(|reply| turn.strip_prefix(reply))
}
