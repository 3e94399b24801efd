//! Our nouns in OpenAI's JSON.

use serde_json::{Value, json};
use warpsmith_schema::Message;

use crate::policy::PolicyRequest;

/// Whether a server is asked for the tokens it samples: not all know the words for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tokens {
    Asked,
    NotAsked,
}

pub(super) fn request(model: &str, request: &PolicyRequest<'_>, tokens: Tokens) -> Value {
    let sampling = &request.sampling;
    let mut body = json!({
        "model": model,
        "messages": request.messages.iter().map(message).collect::<Vec<_>>(),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if tokens == Tokens::Asked {
        // Of the sampled tokens alone: alternatives cost some servers a sort of their vocabulary.
        body["logprobs"] = json!(true);
        body["top_logprobs"] = json!(0);
        // As vLLM and `warpsmith serve` have it.
        body["return_token_ids"] = json!(true);
    }
    if let Some(seed) = sampling.seed {
        body["seed"] = json!(seed);
    }
    if !request.tools.is_empty() {
        body["tools"] = request
            .tools
            .iter()
            .map(|tool| {
                json!({ "type": "function", "function": {
                    "name": tool.name, "description": tool.description, "parameters": tool.parameters,
                } })
            })
            .collect();
    }
    body
}

fn message(message: &Message) -> Value {
    match message {
        Message::System { text } => json!({ "role": "system", "content": text }),
        Message::User { text } => json!({ "role": "user", "content": text }),
        Message::Assistant { text, calls } if calls.is_empty() => {
            json!({ "role": "assistant", "content": text })
        }
        Message::Assistant { text, calls } => {
            let calls: Vec<Value> = calls
                .iter()
                .map(|call| {
                    // Arguments travel as text; those that were never valid JSON go back as they came.
                    let arguments = match &call.arguments {
                        Value::String(text) => text.clone(),
                        other => other.to_string(),
                    };
                    json!({ "id": call.id, "type": "function", "function": { "name": call.name, "arguments": arguments } })
                })
                .collect();
            json!({ "role": "assistant", "content": text, "tool_calls": calls })
        }
        Message::Tool { call, text, .. } => {
            json!({ "role": "tool", "tool_call_id": call, "content": text })
        }
    }
}

/// The sentence in an error answer, whatever the server wraps it in.
pub(super) fn error_message(body: &str) -> String {
    let value: Value = serde_json::from_str(body).unwrap_or_default();
    let found = [
        &value["error"]["message"],
        &value["message"],
        &value["error"],
        &value["detail"],
    ]
    .into_iter()
    .find_map(Value::as_str);
    let text = found.unwrap_or(body).trim();
    text.chars().take(1000).collect()
}

/// Servers name this differently; all name the context.
pub(super) fn speaks_of_context(message: &str) -> bool {
    let lower = message.to_lowercase();
    lower.contains("context")
        && ["length", "window", "size", "maximum", "exceed"]
            .iter()
            .any(|word| lower.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_found_in_every_wrapping() {
        for (body, expected) in [
            (
                r#"{"error": {"message": "no such model"}}"#,
                "no such model",
            ),
            (r#"{"error": "no such model"}"#, "no such model"),
            (
                r#"{"object": "error", "message": "no such model"}"#,
                "no such model",
            ),
            (r#"{"detail": "no such model"}"#, "no such model"),
            ("<html>bad gateway</html>", "<html>bad gateway</html>"),
        ] {
            assert_eq!(error_message(body), expected);
        }
    }

    #[test]
    fn a_full_context_is_told_from_other_mistakes() {
        assert!(speaks_of_context(
            "This model's maximum context length is 8192 tokens"
        ));
        assert!(speaks_of_context(
            "the request exceeds the available context size"
        ));
        assert!(!speaks_of_context("temperature must be at most 2"));
    }
}
