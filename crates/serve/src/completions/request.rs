//! A chat completion as it is asked for.
//!
//! Fields that would change the reply are done or refused; those that would not, such as `user` or `store`, are ignored.

use std::hash::{BuildHasher, RandomState};

use serde::Deserialize;
use serde_json::{Map, Number, Value};
use warpsmith_model::Sampler;
use warpsmith_schema::{Message, ToolCall, ToolSchema};

use crate::refusal::Refusal;

#[derive(Debug, Deserialize)]
pub(crate) struct ChatRequest {
    pub(crate) model: String,
    messages: Vec<Turn>,
    tools: Option<Vec<Tool>>,
    tool_choice: Option<Value>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    seed: Option<Number>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    stop: Option<Stop>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    return_token_ids: Option<bool>,
    n: Option<u32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<Map<String, Value>>,
    response_format: Option<ResponseFormat>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Turn {
    #[serde(alias = "developer")]
    System {
        content: Content,
    },
    User {
        content: Content,
    },
    Assistant {
        content: Option<Content>,
        tool_calls: Option<Vec<Call>>,
    },
    Tool {
        content: Content,
        tool_call_id: String,
    },
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text, or a list of parts of type `text`")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part {
    Text { text: String },
}

impl Content {
    fn text(self) -> String {
        match self {
            Self::Text(text) => text,
            Self::Parts(parts) => {
                let texts = parts.into_iter().map(|Part::Text { text }| text);
                texts.collect::<Vec<_>>().join("\n")
            }
        }
    }
}

#[derive(Debug, Deserialize)]
struct Call {
    id: String,
    function: Called,
}

#[derive(Debug, Deserialize)]
struct Called {
    name: String,
    arguments: String,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", content = "function", rename_all = "snake_case")]
enum Tool {
    Function(Function),
}

#[derive(Debug, Deserialize)]
struct Function {
    name: String,
    description: Option<String>,
    parameters: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
enum Stop {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct ResponseFormat {
    r#type: String,
}

/// A request that can be answered.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Vec<ToolSchema>,
    pub(crate) sampling: Sampler,
    pub(crate) max_tokens: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) delivery: Delivery,
    pub(crate) extras: Extras,
}

/// How the reply is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    Whole,
    Streamed { usage: bool },
}

/// What is wanted beside the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extras {
    pub(crate) log_probabilities: bool,
    pub(crate) token_ids: bool,
}

impl ChatRequest {
    pub(crate) fn read(self) -> Result<Asked, Refusal> {
        self.refuse_what_is_not_done()?;
        if self.messages.is_empty() {
            return Err(Refusal::field("messages", "`messages` is empty"));
        }
        let max_tokens = self.max_completion_tokens.or(self.max_tokens);
        if max_tokens == Some(0) {
            let message = "`max_tokens` is 0, and a reply has one token at least";
            return Err(Refusal::field("max_tokens", message));
        }
        let streamed = self.stream.unwrap_or(false);
        Ok(Asked {
            sampling: Sampler::random(
                self.temperature.unwrap_or(1.0),
                self.top_p.unwrap_or(1.0),
                seed(self.seed.as_ref())?,
            )?,
            // Else the context ends it.
            max_tokens: max_tokens.unwrap_or(usize::MAX),
            stop: match self.stop {
                None => Vec::new(),
                Some(Stop::One(text)) => vec![text],
                Some(Stop::Many(texts)) => texts,
            },
            delivery: if streamed {
                Delivery::Streamed {
                    usage: self
                        .stream_options
                        .is_some_and(|options| options.include_usage.unwrap_or(false)),
                }
            } else {
                Delivery::Whole
            },
            extras: Extras {
                log_probabilities: self.logprobs.unwrap_or(false),
                token_ids: self.return_token_ids.unwrap_or(false),
            },
            tools: tools(self.tools, self.tool_choice.as_ref())?,
            messages: messages(self.messages)?,
        })
    }

    fn refuse_what_is_not_done(&self) -> Result<(), Refusal> {
        let is = |value: Option<f32>| value.is_some_and(|value| value != 0.0);
        let other_format = |format: &ResponseFormat| format.r#type != "text";
        let refused = [
            ("n", self.n.is_some_and(|n| n != 1), "anything but 1"),
            (
                "top_logprobs",
                self.top_logprobs.is_some_and(|k| k > 0),
                "alternatives to the sampled tokens",
            ),
            ("presence_penalty", is(self.presence_penalty), "a penalty"),
            ("frequency_penalty", is(self.frequency_penalty), "a penalty"),
            (
                "logit_bias",
                self.logit_bias
                    .as_ref()
                    .is_some_and(|bias| !bias.is_empty()),
                "a bias",
            ),
            (
                "response_format",
                self.response_format.as_ref().is_some_and(other_format),
                "anything but `text`",
            ),
        ];
        match refused.into_iter().find(|(_, wanted, _)| *wanted) {
            None => Ok(()),
            Some((field, _, what)) => {
                let message = format!("`{field}`: {what} is not offered");
                Err(Refusal::field(field, message))
            }
        }
    }
}

/// A request without a seed gets one of its own.
fn seed(given: Option<&Number>) -> Result<u64, Refusal> {
    match given {
        None => Ok(RandomState::new().hash_one(())),
        // OpenAI's are signed, ours are not: any whole number will do.
        Some(number) => number
            .as_u64()
            .or(number.as_i64().map(i64::cast_unsigned))
            .ok_or_else(|| Refusal::field("seed", format!("`seed` is {number}, no whole number"))),
    }
}

fn tools(given: Option<Vec<Tool>>, choice: Option<&Value>) -> Result<Vec<ToolSchema>, Refusal> {
    match choice {
        None | Some(Value::Null) => {}
        Some(Value::String(word)) if word == "auto" => {}
        Some(Value::String(word)) if word == "none" => return Ok(Vec::new()),
        Some(other) => {
            let message = format!("`tool_choice`: {other} is not offered, only `auto` and `none`");
            return Err(Refusal::field("tool_choice", message));
        }
    }
    let schema = |Tool::Function(function)| ToolSchema {
        name: function.name,
        description: function.description.unwrap_or_default(),
        parameters: function
            .parameters
            .unwrap_or_else(|| serde_json::json!({ "type": "object", "properties": {} })),
    };
    Ok(given.unwrap_or_default().into_iter().map(schema).collect())
}

fn messages(turns: Vec<Turn>) -> Result<Vec<Message>, Refusal> {
    let mut messages = Vec::new();
    for turn in turns {
        let message = match turn {
            Turn::System { content } => Message::System {
                text: content.text(),
            },
            Turn::User { content } => Message::User {
                text: content.text(),
            },
            Turn::Assistant {
                content,
                tool_calls,
            } => Message::Assistant {
                text: content.map(Content::text).unwrap_or_default(),
                calls: tool_calls
                    .unwrap_or_default()
                    .into_iter()
                    .map(call)
                    .collect(),
            },
            Turn::Tool {
                content,
                tool_call_id,
            } => Message::Tool {
                name: name_of(&messages, &tool_call_id)?,
                call: tool_call_id,
                text: content.text(),
                failed: false,
            },
        };
        messages.push(message);
    }
    Ok(messages)
}

/// Arguments travel as text; those that were never valid JSON stay one.
fn call(call: Call) -> ToolCall {
    let Called { name, arguments } = call.function;
    ToolCall {
        id: call.id,
        name,
        arguments: serde_json::from_str(&arguments).unwrap_or(Value::String(arguments)),
    }
}

/// The tool whose result this is: the interface names only the call.
fn name_of(before: &[Message], id: &str) -> Result<String, Refusal> {
    let calls = before.iter().rev().filter_map(|message| match message {
        Message::Assistant { calls, .. } => Some(calls),
        _ => None,
    });
    let call = calls.flatten().find(|call| call.id == id);
    call.map(|call| call.name.clone()).ok_or_else(|| {
        let message =
            format!("a tool's result answers the call `{id}`, which no message before it makes");
        Refusal::field("messages", message)
    })
}
