//! The client against a server of a few lines that answers as it is told: what goes over the wire, and what is made of
//! every way a server can fail.

use std::net::TcpListener;
use std::time::Duration;

use crate::replay::serve;
use serde_json::{Value, json};
use warpsmith_model::policy::{
    FinishReason, OpenAiPolicy, Policy, PolicyError, PolicyReply, PolicyRequest, SamplingParams,
};
use warpsmith_schema::{Message, ToolCall, ToolSchema};

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n{headers}\r\n{body}")
}

fn stream(chunks: &[&str]) -> String {
    let events = format!("data: {}\n\n", chunks.join("\n\ndata: "));
    answer("200 OK", "Content-Type: text/event-stream\r\n", &events)
}

const HELLO: [&str; 3] = [
    r#"{"choices": [{"delta": {"content": "Hello"}}]}"#,
    r#"{"choices": [{"delta": {}, "finish_reason": "stop"}]}"#,
    "[DONE]",
];

fn ask(url: &str, messages: &[Message], tools: &[ToolSchema]) -> Result<PolicyReply, PolicyError> {
    let mut policy = OpenAiPolicy::new("some-model", url, Some("secret".to_owned()))
        .unwrap()
        .with_first_pause(Duration::from_millis(1));
    let request = PolicyRequest {
        messages,
        tools,
        sampling: SamplingParams {
            seed: Some(7),
            ..SamplingParams::default()
        },
    };
    policy.reply(&request, &mut |_| {})
}

fn user(text: &str) -> Vec<Message> {
    vec![Message::User {
        text: text.to_owned(),
    }]
}

#[test]
fn a_conversation_goes_out_whole_and_a_reply_comes_back() {
    let (url, asked) = serve(vec![stream(&HELLO)]);
    let messages = [
        Message::System {
            text: "be brief".to_owned(),
        },
        Message::Assistant {
            text: String::new(),
            calls: vec![ToolCall {
                id: "a".to_owned(),
                name: "read".to_owned(),
                arguments: json!({ "path": "x" }),
            }],
        },
        Message::Tool {
            call: "a".to_owned(),
            name: "read".to_owned(),
            text: "nothing there".to_owned(),
            failed: true,
        },
    ];
    let tools = [ToolSchema {
        name: "read".to_owned(),
        description: "Read a file".to_owned(),
        parameters: json!({ "type": "object" }),
    }];
    let reply = ask(&url, &messages, &tools).unwrap();
    assert_eq!(
        (reply.text.as_str(), reply.finish),
        ("Hello", FinishReason::Stopped)
    );
    let body = asked.recv().unwrap();
    assert_eq!(body["model"], "some-model");
    assert_eq!(body["seed"], 7);
    assert_eq!(
        body["messages"][0],
        json!({ "role": "system", "content": "be brief" })
    );
    assert_eq!(
        body["messages"][1]["tool_calls"][0]["function"],
        json!({ "name": "read", "arguments": r#"{"path":"x"}"# })
    );
    assert_eq!(
        body["messages"][2],
        json!({ "role": "tool", "tool_call_id": "a", "content": "nothing there" })
    );
    assert_eq!(body["tools"][0]["function"]["name"], "read");
}

/// OpenAI itself refuses what it does not know.
#[test]
fn a_server_that_has_no_tokens_to_give_is_asked_without() {
    let refused =
        r#"{"error": {"message": "Unrecognized request argument supplied: return_token_ids"}}"#;
    let (url, asked) = serve(vec![answer("400 Bad Request", "", refused), stream(&HELLO)]);
    assert_eq!(ask(&url, &user("hi"), &[]).unwrap().text, "Hello");
    let asked: Vec<Value> = asked.iter().collect();
    assert_eq!(asked[0]["return_token_ids"], true);
    for field in ["return_token_ids", "logprobs", "top_logprobs"] {
        assert_eq!(asked[1].get(field), None);
    }
}

#[test]
fn a_busy_server_and_one_that_dies_are_asked_again() {
    let (url, asked) = serve(vec![
        answer("429 Too Many Requests", "Retry-After: 0\r\n", "{}"),
        stream(&HELLO[..1]),
        stream(&HELLO),
    ]);
    assert_eq!(ask(&url, &user("hi"), &[]).unwrap().text, "Hello");
    assert_eq!(asked.iter().count(), 3);
}

#[test]
fn a_server_that_always_dies_is_named() {
    let (url, asked) = serve(vec![stream(&HELLO[..1]); 5]);
    let error = ask(&url, &user("hi"), &[]).unwrap_err();
    assert!(
        matches!(error, PolicyError::BrokeOff { received: 5, .. }),
        "{error}"
    );
    assert_eq!(asked.iter().count(), 5);
}

#[test]
fn what_cannot_be_mended_is_not_tried_again() {
    for (status, body, expected) in [
        (
            "401 Unauthorized",
            r#"{"error": {"message": "bad key"}}"#,
            "status 401: bad key",
        ),
        (
            "400 Bad Request",
            r#"{"error": {"message": "maximum context length is 8192 tokens"}}"#,
            "does not fit into the context",
        ),
    ] {
        let (url, asked) = serve(vec![answer(status, "", body)]);
        let error = ask(&url, &user("hi"), &[]).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.hint().is_some());
        assert_eq!(asked.iter().count(), 1);
    }
}

#[test]
fn a_page_that_is_no_completion_is_named() {
    let (url, _asked) = serve(vec![stream(&["<html>"])]);
    let error = ask(&url, &user("hi"), &[]).unwrap_err();
    assert!(
        matches!(error, PolicyError::NotACompletion { .. }),
        "{error}"
    );
}

#[test]
fn nobody_there_is_told_with_the_next_step() {
    // Bound and dropped: nothing listens there.
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let error = ask(&format!("http://127.0.0.1:{port}/v1"), &user("hi"), &[]).unwrap_err();
    assert!(matches!(error, PolicyError::Unreachable { .. }), "{error}");
    assert!(error.hint().unwrap().contains("--base-url"));
}

/// What answers with something else altogether is told by its beginning, and not asked again.
#[test]
fn an_answer_of_another_kind_is_shown_and_a_missing_key_and_a_wrong_address_are_named() {
    for body in ["<!DOCTYPE html><title>Sign in</title>", r#"{"foo": 1}"#] {
        let (url, asked) = serve(vec![answer("200 OK", "", body)]);
        let error = ask(&url, &user("hi"), &[]).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("is not a chat completion") && message.ends_with(body),
            "{message}"
        );
        assert_eq!(asked.iter().count(), 1);
    }
    let error = ask("notaurl", &user("hi"), &[]).unwrap_err();
    assert!(
        matches!(error, PolicyError::NotAnAddress { .. }) && !error.retryable(),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("http://"));
}
