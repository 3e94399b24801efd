//! Calls in a model's own words, as Qwen and the Hermes models write them: `<tool_call>{json}</tool_call>`.

use serde_json::{Map, Value};
use warpsmith_schema::{ToolCall, ToolSchema};

use crate::generate::overlap;

pub(super) const OPEN: &str = "<tool_call>";
pub(super) const CLOSE: &str = "</tool_call>";
const FENCE: &str = "```";
const FENCED_JSON: &str = "```json";

/// The calls in a text, and where the first begins.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    pub(super) calls: Vec<ToolCall>,
    /// Where there is no call, the text's end.
    pub(super) start: usize,
}

/// Every call in a text, numbered from `first` on.
///
/// What is no valid call is one still: its arguments are then the text itself, which whoever answers can quote.
pub(super) fn read(text: &str, tools: &[ToolSchema], first: usize) -> Found {
    let mut calls = tagged(text);
    if calls.is_empty() {
        calls = untagged(text, tools);
    }
    Found {
        start: calls.first().map_or(text.len(), |(start, _)| *start),
        calls: (first..)
            .zip(calls)
            .map(|(number, (_, (name, arguments)))| ToolCall {
                id: format!("call_{number}"),
                name,
                arguments,
            })
            .collect(),
    }
}

/// The beginning of an unfinished text that is no part of a call, whatever comes.
pub(super) fn certain(text: &str) -> &str {
    if text.trim_start().starts_with('{') {
        return "";
    }
    let begins = |sign: &str| text.find(sign).unwrap_or(text.len() - overlap(text, sign));
    let end = begins(OPEN).min(begins(FENCED_JSON));
    text[..end].trim_end()
}

fn tagged(text: &str) -> Vec<(usize, (String, Value))> {
    let mut calls = Vec::new();
    let mut read = 0;
    while let Some(start) = text[read..].find(OPEN).map(|place| read + place) {
        let body = &text[start + OPEN.len()..];
        let (raw, call) = leading_call(body, &[CLOSE, OPEN]);
        calls.push((start, call));
        read = start + OPEN.len() + raw.len();
    }
    calls
}

/// Small models forget the tags. A JSON object that is the whole reply, or in a fence, is a call where it
/// names a tool and has arguments for it.
fn untagged(text: &str, tools: &[ToolSchema]) -> Vec<(usize, (String, Value))> {
    let bodies: Vec<(usize, &str)> = if text.trim_start().starts_with('{') {
        vec![(0, text)]
    } else {
        text.match_indices(FENCED_JSON)
            .map(|(start, sign)| (start, &text[start + sign.len()..]))
            .collect()
    };
    let call = |(start, body)| {
        let (raw, call) = leading_call(body, &[FENCE]);
        let meant = tools.iter().any(|tool| tool.name == call.0)
            && ["\"arguments\"", "\"parameters\""]
                .iter()
                .any(|key| raw.contains(key));
        meant.then_some((start, call))
    };
    bodies.into_iter().filter_map(call).collect()
}

/// The call that a text begins with, and the part of the text that it is.
fn leading_call<'a>(body: &'a str, ends: &[&str]) -> (&'a str, (String, Value)) {
    let (raw, value) = if let Some((length, value)) = leading_value(body, ends) {
        (&body[..length], Some(value))
    } else {
        let raw = ends.iter().fold(body, |raw, end| up_to(raw, end));
        (raw, unwrapped(raw))
    };
    let call = value.and_then(named).unwrap_or_else(|| {
        let raw = raw.trim();
        (name_in(raw), Value::String(raw.to_owned()))
    });
    (raw, call)
}

/// A JSON value that fills a call to its end, with its length: its strings may hold what ends one too.
fn leading_value(body: &str, ends: &[&str]) -> Option<(usize, Value)> {
    let mut values = serde_json::Deserializer::from_str(body).into_iter::<Value>();
    let value = values.next()?.ok()?;
    let length = values.byte_offset();
    let after = body[length..].trim_start();
    let fills = after.is_empty() || ends.iter().any(|end| after.starts_with(end));
    fills.then_some((length, value))
}

/// The template of Qwen2.5-Coder shows the form in doubled braces by mistake, and the model repeats them.
fn unwrapped(raw: &str) -> Option<Value> {
    let inner = raw.trim().strip_prefix('{')?.strip_suffix('}')?;
    serde_json::from_str(inner).ok()
}

fn up_to<'a>(text: &'a str, end: &str) -> &'a str {
    text.split(end).next().unwrap_or(text)
}

fn named(value: Value) -> Option<(String, Value)> {
    let Value::Object(mut call) = value else {
        return None;
    };
    let Some(Value::String(name)) = call.remove("name") else {
        return None;
    };
    let arguments = match call
        .remove("arguments")
        .or_else(|| call.remove("parameters"))
    {
        None => Value::Object(Map::new()),
        // Some write the object as a text again, as it travels in OpenAI's interface.
        Some(Value::String(text)) => match serde_json::from_str(&text) {
            Ok(object @ Value::Object(_)) => object,
            _ => Value::String(text),
        },
        Some(other) => other,
    };
    Some((name, arguments))
}

/// The name in a call that is no valid JSON, so that the answer can come from the tool that was meant.
fn name_in(raw: &str) -> String {
    let after = |text, sign| str::split_once(text, sign).map(|(_, after)| after);
    let value = after(raw, "\"name\"").and_then(|rest| after(rest, ":"));
    let mut values = serde_json::Deserializer::from_str(value.unwrap_or_default()).into_iter();
    match values.next() {
        Some(Ok(Value::String(name))) => name,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(text: &str, first: usize) -> Found {
        let tools = ["write", "judge"].map(|name| ToolSchema {
            name: name.into(),
            description: String::new(),
            parameters: json!({}),
        });
        super::read(text, &tools, first)
    }

    fn read(text: &str, first: usize) -> Vec<ToolCall> {
        found(text, first).calls
    }

    fn call(number: usize, name: &str, arguments: Value) -> ToolCall {
        ToolCall {
            id: format!("call_{number}"),
            name: name.into(),
            arguments,
        }
    }

    #[test]
    fn calls_are_read_between_words() {
        let text = "First this.\n<tool_call>\n{\"name\": \"write\", \"arguments\": {\"path\": \"a.cu\"}}\n</tool_call>\n<tool_call>{\"name\": \"judge\"}</tool_call> Done.";
        assert_eq!(
            read(text, 3),
            [
                call(3, "write", json!({ "path": "a.cu" })),
                call(4, "judge", json!({})),
            ]
        );
        assert!(read("no calls, only <tool> and tool_call", 0).is_empty());
    }

    #[test]
    fn arguments_may_hold_the_tags_and_be_a_text() {
        let text = r#"<tool_call>{"name": "write", "arguments": {"text": "</tool_call><tool_call>"}}</tool_call>"#;
        let expected = json!({ "text": "</tool_call><tool_call>" });
        assert_eq!(read(text, 0), [call(0, "write", expected)]);
        let text = r#"<tool_call>{"name": "read", "arguments": "{\"path\": 1}"}</tool_call>"#;
        assert_eq!(read(text, 0), [call(0, "read", json!({ "path": 1 }))]);
        let text = r#"<tool_call>{"name": "read", "parameters": {"path": 1}}</tool_call>"#;
        assert_eq!(read(text, 0), [call(0, "read", json!({ "path": 1 }))]);
        let text = r#"<tool_call>{{"name": "read", "arguments": {"path": 1}}}</tool_call>"#;
        assert_eq!(read(text, 0), [call(0, "read", json!({ "path": 1 }))]);
        let text = r#"<tool_call>{"name": "read", "arguments": [1, null]}</tool_call>"#;
        assert_eq!(read(text, 0), [call(0, "read", json!([1, null]))]);
    }

    #[test]
    fn malformed_calls_are_kept_as_they_are() {
        for (raw, name) in [
            (r#"{"name": "write", "arguments": {"path": }}"#, "write"),
            (r#"{"arguments": {'a': 1}, "name" : "judge"}"#, "judge"),
            (r#"{"name": "write", "arguments": {}}}"#, "write"),
            ("{'name': 'write'}", ""),
            (r#"{"name": 7}"#, ""),
            (r#"["write"]"#, ""),
            ("write a.cu", ""),
            ("", ""),
        ] {
            let text = format!("<tool_call>\n{raw}\n</tool_call><tool_call>{{\"name\": \"x\"}}");
            let expected = [call(0, name, json!(raw)), call(1, "x", json!({}))];
            assert_eq!(read(&text, 0), expected, "{raw}");
        }
    }

    /// A reply that was cut, or whose model forgot to close.
    #[test]
    fn unclosed_calls_are_calls() {
        let whole = r#"<tool_call>{"name": "judge", "arguments": {}}"#;
        assert_eq!(read(whole, 0), [call(0, "judge", json!({}))]);
        let cut = r#"<tool_call>{"name": "write", "arguments": {"text": "int ma"#;
        let raw = r#"{"name": "write", "arguments": {"text": "int ma"#;
        assert_eq!(read(cut, 0), [call(0, "write", json!(raw))]);
        let twice = "<tool_call>{oops <tool_call>{\"name\": \"judge\"}";
        assert_eq!(
            read(twice, 0),
            [call(0, "", json!("{oops")), call(1, "judge", json!({}))]
        );
    }

    #[test]
    fn a_fenced_object_that_names_a_tool_is_a_call() {
        let object = "{\n  \"name\": \"write\",\n  \"arguments\": {\"text\": \"```\"}\n}";
        let expected = [call(0, "write", json!({ "text": "```" }))];
        assert_eq!(read(object, 0), expected);
        assert_eq!(
            read(&format!("So:\n```json\n{object}\n```\nDone."), 0),
            expected
        );
        let broken = r#"{"name": "write", "arguments": {"text": }}"#;
        assert_eq!(
            read(&format!("```json\n{broken}\n```"), 0),
            [call(0, "write", json!(broken))]
        );
        for other in [
            r#"{"name": "Ann", "arguments": {}}"#,
            r#"{"name": "write"}"#,
            r#"{"arguments": {}}"#,
        ] {
            assert!(
                read(&format!("```json\n{other}\n```"), 0).is_empty(),
                "{other}"
            );
        }
    }

    /// However much has come, what is called certain stands before the first call.
    #[test]
    fn what_is_certain_stays_so() {
        let call = r#"{"name": "judge", "arguments": {}}"#;
        for (text, before) in [
            (format!("So.\n<tool_call>{call}</tool_call>"), "So."),
            (format!("a <b\n```json\n{call}\n```"), "a <b"),
            (
                format!("```json\n[1]\n```\n<tool_call>{call}"),
                "```json\n[1]\n```",
            ),
            (format!(" {call}"), ""),
            (
                "a <tool> and ```js\n```".to_owned(),
                "a <tool> and ```js\n```",
            ),
        ] {
            assert_eq!(text[..found(&text, 0).start].trim_end(), before);
            let mut given = "";
            for (end, _) in text.char_indices() {
                let now = certain(&text[..end]);
                assert!(
                    now.starts_with(given) && before.starts_with(now),
                    "{now:?} of {text:?}"
                );
                given = now;
            }
        }
    }
}
