//! Server-sent events, put together to one reply.

use serde::Deserialize;
use serde_json::Value;
use warpsmith_schema::{ToolCall, Usage};

use super::tokens::{LogProbabilities, Tokens};
use crate::policy::{FinishReason, Origin, PolicyReply};

/// What has arrived so far.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    text: String,
    calls: Vec<Part>,
    finish: Option<FinishReason>,
    usage: Usage,
    tokens: Tokens,
    /// The end was announced.
    done: bool,
    /// Something of a completion arrived.
    begun: bool,
    /// What is no event of a stream, as far as it is kept: an answer in one piece, or something else altogether.
    other: String,
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoReply {
    /// Its end never came.
    BrokeOff,
    /// It was something else, which begins like this.
    NotACompletion(String),
}

/// An answer in one piece may be as long as this.
const ONE_PIECE_BYTES: usize = 16 << 20;

#[derive(Debug, Default)]
struct Part {
    id: String,
    name: String,
    arguments: String,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    usage: Option<ChunkUsage>,
    error: Option<Value>,
    prompt_token_ids: Option<Vec<u32>>,
    token_origin: Option<Origin>,
}

#[derive(Deserialize)]
struct Choice {
    /// `message` where a server answers in one piece although a stream was asked for.
    #[serde(alias = "message")]
    delta: Option<Delta>,
    finish_reason: Option<String>,
    token_ids: Option<Vec<u32>>,
    logprobs: Option<LogProbabilities>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionDelta>,
}

#[derive(Deserialize)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Deserialize)]
struct ChunkUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
    prompt_tokens_details: Option<PaidDetails>,
}

#[derive(Deserialize)]
struct PaidDetails {
    cached_tokens: Option<u64>,
}

impl Assembly {
    /// One line of the stream; whether more is to come.
    pub(super) fn take(
        &mut self,
        line: &str,
        on_text: &mut dyn FnMut(&str),
    ) -> Result<bool, String> {
        let line = line.trim();
        let Some(data) = line.strip_prefix("data:") else {
            let fields = [":", "event:", "id:", "retry:"];
            // Comments, event names and the empty lines between events say nothing.
            let says_nothing =
                line.is_empty() || fields.iter().any(|field| line.starts_with(field));
            if !says_nothing && self.other.len() < ONE_PIECE_BYTES {
                self.other.push_str(line);
                self.other.push('\n');
            }
            return Ok(true);
        };
        let data = data.trim();
        if data == "[DONE]" {
            self.done = true;
            return Ok(false);
        }
        let chunk: Chunk =
            serde_json::from_str(data).map_err(|error| format!("{error}: {}", clip(data)))?;
        self.read(chunk, on_text)?;
        Ok(true)
    }

    fn read(&mut self, chunk: Chunk, on_text: &mut dyn FnMut(&str)) -> Result<(), String> {
        if let Some(error) = chunk.error {
            return Err(clip(&error.to_string()).to_owned());
        }
        if let Some(usage) = chunk.usage {
            self.usage = Usage {
                prompt_tokens: usage.prompt_tokens,
                completion_tokens: usage.completion_tokens,
                cached_tokens: usage
                    .prompt_tokens_details
                    .and_then(|details| details.cached_tokens)
                    .unwrap_or_default(),
            };
        }
        self.tokens.read(chunk.prompt_token_ids, chunk.token_origin);
        for choice in chunk.choices.into_iter().flatten() {
            self.begun = true;
            self.add(choice, on_text);
        }
        Ok(())
    }

    fn add(&mut self, choice: Choice, on_text: &mut dyn FnMut(&str)) {
        self.tokens.sampled(choice.token_ids, choice.logprobs);
        if let Some(delta) = choice.delta {
            if let Some(text) = delta.content.filter(|text| !text.is_empty()) {
                on_text(&text);
                self.text.push_str(&text);
            }
            for (place, call) in delta.tool_calls.unwrap_or_default().into_iter().enumerate() {
                self.add_call(place, call);
            }
        }
        if let Some(reason) = choice.finish_reason {
            self.finish = Some(match reason.as_str() {
                "length" => FinishReason::Length,
                "tool_calls" | "function_call" => FinishReason::ToolCalls,
                _ => FinishReason::Stopped,
            });
        }
    }

    fn add_call(&mut self, place: usize, call: CallDelta) {
        // No server makes this many calls at once; one that says so must not fill the memory.
        let index = call.index.unwrap_or(place).min(63);
        if self.calls.len() <= index {
            self.calls.resize_with(index + 1, Part::default);
        }
        let part = &mut self.calls[index];
        if let Some(id) = call.id {
            part.id = id;
        }
        if let Some(function) = call.function {
            part.name.push_str(&function.name.unwrap_or_default());
            part.arguments
                .push_str(&function.arguments.unwrap_or_default());
        }
    }

    pub(super) fn characters(&self) -> usize {
        self.text.chars().count()
            + self
                .calls
                .iter()
                .map(|part| part.arguments.len())
                .sum::<usize>()
    }

    /// The reply. One that a server sent in one piece, although a stream was asked for, is read here.
    pub(super) fn finish(mut self, on_text: &mut dyn FnMut(&str)) -> Result<PolicyReply, NoReply> {
        let other = std::mem::take(&mut self.other);
        if !self.begun && !other.is_empty() {
            let begins = || NoReply::NotACompletion(clip(other.trim()).to_owned());
            let chunk: Chunk = serde_json::from_str(&other).map_err(|_| begins())?;
            self.read(chunk, on_text).map_err(NoReply::NotACompletion)?;
            if !self.begun {
                return Err(begins());
            }
        }
        let announced = (self.done && self.begun).then_some(FinishReason::Stopped);
        let finish = self.finish.or(announced).ok_or(NoReply::BrokeOff)?;
        let calls = self
            .calls
            .into_iter()
            .enumerate()
            .filter(|(_, part)| !part.name.is_empty())
            .map(|(number, part)| ToolCall {
                id: if part.id.is_empty() {
                    format!("call_{number}")
                } else {
                    part.id
                },
                name: part.name,
                // Kept as text where it is no JSON: whoever answers the call says what is wrong with it.
                arguments: serde_json::from_str(&part.arguments)
                    .unwrap_or(Value::String(part.arguments)),
            })
            .collect();
        Ok(PolicyReply {
            text: self.text,
            calls,
            finish,
            usage: self.usage,
            tokens: self.tokens.finish(&self.usage),
        })
    }
}

fn clip(text: &str) -> &str {
    let end = text
        .char_indices()
        .nth(300)
        .map_or(text.len(), |(place, _)| place);
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> (Option<PolicyReply>, String) {
        let (mut assembly, mut shown) = (Assembly::default(), String::new());
        for line in lines {
            if !assembly
                .take(line, &mut |text| shown.push_str(text))
                .unwrap()
            {
                break;
            }
        }
        let reply = assembly.finish(&mut |text| shown.push_str(text));
        (reply.ok(), shown)
    }

    fn refused(lines: &[&str]) -> NoReply {
        let mut assembly = Assembly::default();
        for line in lines {
            assembly.take(line, &mut |_| {}).unwrap();
        }
        assembly.finish(&mut |_| {}).unwrap_err()
    }

    #[test]
    fn pieces_become_one_reply() {
        let (reply, shown) = read(&[
            ": ping",
            r#"data: {"choices": [{"delta": {"role": "assistant", "content": "Hel"}}]}"#,
            "",
            r#"data: {"choices": [{"delta": {"content": "lo"}, "finish_reason": null}]}"#,
            r#"data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}"#,
            r#"data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}"#,
            "data: [DONE]",
        ]);
        let reply = reply.unwrap();
        assert_eq!((reply.text.as_str(), shown.as_str()), ("Hello", "Hello"));
        assert_eq!(reply.finish, FinishReason::Stopped);
        assert_eq!(reply.usage.prompt_tokens, 7);
    }

    #[test]
    fn calls_come_in_pieces_too_and_broken_arguments_are_kept() {
        let (reply, _) = read(&[
            r#"data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read", "arguments": "{\"path\""}}]}}]}"#,
            r#"data: {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": ": \"x\"}"}}, {"index": 1, "function": {"name": "bash", "arguments": "{oops"}}]}}]}"#,
            r#"data: {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}"#,
        ]);
        let reply = reply.unwrap();
        assert_eq!(reply.calls[0].arguments, serde_json::json!({ "path": "x" }));
        assert_eq!(reply.calls[1].arguments, Value::String("{oops".to_owned()));
        assert_eq!(reply.calls[1].id, "call_1");
        assert_eq!(reply.finish, FinishReason::ToolCalls);
    }

    #[test]
    fn an_end_that_never_came_is_no_reply() {
        let (reply, _) = read(&[r#"data: {"choices": [{"delta": {"content": "Hel"}}]}"#]);
        assert_eq!(reply, None);
    }

    #[test]
    fn an_answer_in_one_piece_is_taken() {
        let (reply, _) = read(&[
            r#"{"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}"#,
        ]);
        assert_eq!(reply.unwrap().text, "Hello");
        let (reply, _) = read(&[
            "{",
            r#""choices": [{"message": {"content": "Hello"},"#,
            r#""finish_reason": "stop"}]"#,
            "}",
        ]);
        assert_eq!(reply.unwrap().text, "Hello", "over several lines");
    }

    #[test]
    fn what_is_no_completion_is_told_with_its_beginning() {
        let page = ["<!DOCTYPE html>", "<title>Sign in</title>"];
        let found = refused(&page);
        assert_eq!(
            found,
            NoReply::NotACompletion("<!DOCTYPE html>\n<title>Sign in</title>".to_owned())
        );
        for body in [r#"{"foo": 1}"#, "[1]", "OK"] {
            assert_eq!(refused(&[body]), NoReply::NotACompletion(body.to_owned()));
        }
        assert_eq!(refused(&[r#"data: {"foo": 1}"#]), NoReply::BrokeOff);
        assert_eq!(refused(&[]), NoReply::BrokeOff);
    }

    const WITH_TOKENS: [&str; 4] = [
        r#"data: {"prompt_token_ids": [5, 6, 7], "choices": [{"delta": {"role": "assistant", "content": ""}}]}"#,
        r#"data: {"choices": [{"delta": {"content": "Hello"}, "token_ids": [8, 9], "logprobs": {"content": [{"token": "Hel", "logprob": -0.5}, {"token": "lo", "logprob": -0.25}]}}]}"#,
        r#"data: {"choices": [{"delta": {}, "finish_reason": "stop", "token_ids": [2], "logprobs": {"content": [{"token": "", "logprob": 0}]}}]}"#,
        r#"data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}}"#,
    ];

    #[test]
    fn tokens_are_kept_where_the_server_tells_all_of_them() {
        let reply = read(&WITH_TOKENS).0.unwrap();
        assert_eq!(reply.usage.cached_tokens, 2);
        let tokens = reply.tokens.unwrap();
        assert_eq!(tokens.prompt, [5, 6, 7]);
        let sampled: Vec<(u32, f32)> = tokens
            .sampled
            .iter()
            .map(|one| (one.id, one.logprob))
            .collect();
        assert_eq!(sampled, [(8, -0.5), (9, -0.25), (2, 0.0)]);
        for gone in 0..WITH_TOKENS.len() {
            let mut lines = WITH_TOKENS.to_vec();
            lines[gone] = r#"data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}"#;
            assert_eq!(read(&lines).0.unwrap().tokens, None, "line {gone}");
        }
    }

    #[test]
    fn an_error_in_the_stream_is_told() {
        let mut assembly = Assembly::default();
        let error = assembly
            .take(r#"data: {"error": {"message": "overloaded"}}"#, &mut |_| {})
            .unwrap_err();
        assert!(error.contains("overloaded"));
    }
}
