//! A chat completion as it is given, whole or in chunks.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use warpsmith_model::policy::ChatCodec;
use warpsmith_model::{Completion, EndReason, Sampled};
use warpsmith_schema::{Message, ToolCall, ToolSchema};

use crate::completions::request::Extras;

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// What all parts of one answer share.
#[derive(Debug)]
pub(crate) struct Head {
    id: String,
    created: u64,
    model: String,
}

impl Head {
    pub(crate) fn new(model: &str) -> Self {
        Self {
            id: format!("chatcmpl-{:016x}", RandomState::new().hash_one(())),
            created: now(),
            model: model.to_owned(),
        }
    }

    fn with(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices,
        })
    }

    pub(crate) fn chunk(&self, delta: &Value) -> Value {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": null });
        self.with("chat.completion.chunk", &json!([choice]))
    }

    /// The last chunk with a choice. Tokens come here all at once: a piece of text need not end where a token does.
    pub(crate) fn last_chunk(&self, ending: &Ending) -> Value {
        let mut choice = json!({ "index": 0, "delta": {}, "finish_reason": ending.finish });
        ending.tokens.add_to(&mut choice);
        self.with("chat.completion.chunk", &json!([choice]))
    }

    pub(crate) fn usage_chunk(&self, ending: &Ending) -> Value {
        let mut chunk = self.with("chat.completion.chunk", &json!([]));
        chunk["usage"] = ending.usage.clone();
        chunk
    }

    pub(crate) fn whole(&self, ending: &Ending) -> Value {
        let mut message = json!({ "role": "assistant", "content": ending.text });
        if !ending.calls.is_empty() {
            message["tool_calls"] = ending.calls.iter().map(call).collect();
        }
        let mut choice = json!({ "index": 0, "message": message, "finish_reason": ending.finish });
        ending.tokens.add_to(&mut choice);
        let mut whole = self.with("chat.completion", &json!([choice]));
        whole["usage"] = ending.usage.clone();
        whole
    }
}

/// A reply that is complete.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) text: String,
    pub(crate) calls: Vec<ToolCall>,
    finish: &'static str,
    usage: Value,
    tokens: Tokens,
}

/// Of the sampled tokens, what was asked for.
#[derive(Debug)]
struct Tokens {
    ids: Option<Vec<u32>>,
    log_probabilities: Option<Value>,
}

impl Tokens {
    fn of(sampled: &[Sampled], extras: Extras, dialogue: &ChatCodec) -> Self {
        let one = |one: &Sampled| {
            let text = dialogue
                .tokenizer()
                .decode(&[one.token])
                .unwrap_or_default();
            // A token may be a part of a character, which is no text.
            let whole = !text.contains(char::REPLACEMENT_CHARACTER);
            json!({
                "token": text, "bytes": whole.then_some(text.as_bytes()), "logprob": one.log_probability, "top_logprobs": [],
            })
        };
        Self {
            ids: extras
                .token_ids
                .then(|| sampled.iter().map(|one| one.token).collect()),
            log_probabilities: extras
                .log_probabilities
                .then(|| sampled.iter().map(one).collect()),
        }
    }

    fn add_to(&self, choice: &mut Value) {
        if let Some(content) = &self.log_probabilities {
            choice["logprobs"] = json!({ "content": content });
        }
        if let Some(ids) = &self.ids {
            choice["token_ids"] = json!(ids);
        }
    }
}

impl Ending {
    pub(crate) fn of(
        reply: &Completion,
        messages: &[Message],
        tools: &[ToolSchema],
        extras: Extras,
        dialogue: &ChatCodec,
    ) -> Self {
        let said = dialogue.parse_reply(&reply.text, messages, tools);
        let mut calls = said.calls;
        // A call of nothing is no call in this interface; as text, the client can say what is wrong with it.
        calls.retain(|call| !call.name.is_empty());
        let text = if calls.is_empty() {
            &reply.text
        } else {
            said.text
        };
        let (prompt, completion) = (reply.prompt_tokens, reply.tokens.len());
        Self {
            text: text.to_owned(),
            finish: match reply.finish {
                EndReason::Length | EndReason::Context => "length",
                EndReason::End | EndReason::Stop(_) if calls.is_empty() => "stop",
                EndReason::End | EndReason::Stop(_) => "tool_calls",
            },
            calls,
            usage: json!({
                "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
                "prompt_tokens_details": { "cached_tokens": reply.reused_tokens },
            }),
            tokens: Tokens::of(&reply.tokens, extras, dialogue),
        }
    }
}

pub(crate) fn call(call: &ToolCall) -> Value {
    // Arguments travel as text; those that were never valid JSON go as they came.
    let arguments = match &call.arguments {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
}
