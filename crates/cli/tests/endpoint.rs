//! The loop against an endpoint that speaks OpenAI's chat completions: a server of a few lines that replays what such
//! servers send.

use std::sync::mpsc::Receiver;

use crate::common::scale_relu::{KERNEL, MODEL_NEW, TASK};
use crate::common::{Context, code, json, judged};
use crate::replay;
use serde_json::{Value, json};

/// The last answer for ever.
fn serve(answers: Vec<String>) -> (String, Receiver<Value>) {
    let last = answers.last().unwrap().clone();
    replay::serve(answers.into_iter().chain(std::iter::repeat(last)))
}

/// Events as they are streamed, with a tool call in pieces.
fn streamed(text: &str, calls: &[(&str, Value)]) -> String {
    let mut events =
        vec![json!({ "choices": [{ "delta": { "role": "assistant", "content": text } }] })];
    for (index, (name, arguments)) in calls.iter().enumerate() {
        let id = format!("call_{index}");
        let begun = json!({ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" } });
        events.push(json!({ "choices": [{ "delta": { "tool_calls": [begun] } }] }));
        let arguments = arguments.to_string();
        let half = arguments.chars().count() / 2;
        let first: String = arguments.chars().take(half).collect();
        let second: String = arguments.chars().skip(half).collect();
        for piece in [first, second] {
            let part = json!({ "index": index, "function": { "arguments": piece } });
            events.push(json!({ "choices": [{ "delta": { "tool_calls": [part] } }] }));
        }
    }
    let finish = if calls.is_empty() {
        "stop"
    } else {
        "tool_calls"
    };
    events.push(json!({ "choices": [{ "delta": {}, "finish_reason": finish }] }));
    events
        .push(json!({ "choices": [], "usage": { "prompt_tokens": 900, "completion_tokens": 40 } }));
    let lines: Vec<String> = events
        .iter()
        .map(|event| format!("data: {event}"))
        .collect();
    let lines = lines.join("\n\n");
    format!("{HEAD}{lines}\n\ndata: [DONE]\n\n")
}

const HEAD: &str =
    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n";

fn arguments(url: &str) -> Vec<&str> {
    let mut all = vec![
        "optimize",
        "task.py",
        "--policy",
        "openai:some-model",
        "--base-url",
        url,
    ];
    all.extend(["--target", "cpu", "--no-compile", "--profile", "rl"]);
    all.extend(["--start", "none", "--out", "run", "--json", "-q"]);
    all
}

fn context() -> Context {
    let context = Context::new();
    context.write("task.py", TASK);
    context
}

#[test]
fn a_served_model_drives_the_loop() {
    let write = |path: &str, text: &str| ("write", json!({ "path": path, "content": text }));
    let (url, asked) = serve(vec![
        streamed(
            "I look.",
            &[("bash", json!({ "command": "ls" })), ("judge", json!({}))],
        ),
        streamed(
            "",
            &[
                write("model_new.py", MODEL_NEW),
                write("kernels/scale_relu.cpp", KERNEL),
                ("verify", json!({})),
            ],
        ),
        streamed("Done.", &[("submit", json!({}))]),
    ]);
    let context = context();
    let output = judged(|| context.command(&arguments(&url)));
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(found["verdict"]["status"], "passed");
    assert_eq!(
        found["usage"],
        json!({ "prompt_tokens": 2700, "completion_tokens": 120, "cached_tokens": 0 })
    );

    let first = asked.recv().unwrap();
    let tools = first["tools"].as_array().unwrap();
    assert!(
        tools
            .iter()
            .any(|tool| tool["function"]["name"] == "submit")
    );
    let second = asked.recv().unwrap();
    let told: Vec<&str> = second["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert_eq!(told[0], "kernels\nmodel.py");
    assert!(
        told[1].contains("there is no `model_new.py` yet"),
        "{told:?}"
    );
}

/// A server whose context is smaller than anybody said: it is asked again with the oldest output left out.
#[test]
fn a_full_context_is_emptied_of_old_output() {
    let look = |from: u32| {
        let command = json!({ "command": format!("seq {from} 20000") });
        streamed("I look.", &[("bash", command)])
    };
    let full = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n{\"error\": {\"message\": \"maximum context length is 8192 tokens\"}}";
    let (url, asked) = serve(vec![look(1), look(2), full.to_owned(), look(3)]);
    let context = context();
    let mut all = arguments(&url);
    all.extend(["--turns", "3"]);
    let output = context.command(&all).output().unwrap();
    let found = json(&output);
    assert_eq!(
        found["ending"],
        json!({ "kind": "limit", "which": "turns" }),
        "{found:#}"
    );

    let tools = |body: &Value| -> Vec<Value> {
        let messages = body["messages"].as_array().unwrap();
        // Every answer still follows its call.
        for pair in messages.windows(2).filter(|pair| pair[1]["role"] == "tool") {
            assert_eq!(pair[0]["tool_calls"][0]["id"], pair[1]["tool_call_id"]);
        }
        let tools = messages.iter().filter(|message| message["role"] == "tool");
        tools.map(|message| message["content"].clone()).collect()
    };
    let bodies: Vec<Value> = (0..4).map(|_| asked.recv().unwrap()).collect();
    let (refused, taken) = (tools(&bodies[2]), tools(&bodies[3]));
    assert_eq!(refused[1], taken[1], "the newest stays");
    let line = taken[0].as_str().unwrap();
    assert!(line.starts_with("[left out to save room: "), "{line}");
    assert_eq!(bodies[2]["messages"][2], bodies[3]["messages"][2]);

    let trajectory = context.trajectories("run").remove(0);
    assert_eq!(trajectory["elisions"][0]["turn"], 3);
    assert_eq!(
        trajectory["elisions"][0]["elided"],
        json!([{ "message": 3, "replacement": line }])
    );
    assert_eq!(trajectory["messages"][3]["text"], refused[0]);
    assert_eq!(trajectory["tokens"], Value::Null);
}

fn whole(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nConnection: close\r\n\r\n{body}")
}

/// A policy that never said anything is no result: nobody tried.
#[test]
fn a_policy_that_never_answers_is_a_failure_with_its_reason() {
    let page = whole("200 OK", "<!DOCTYPE html>\n<title>Sign in</title>\n");
    let served = |answer: String| {
        let (url, asked) = serve(vec![answer]);
        // What is asked must have somewhere to go.
        std::mem::forget(asked);
        url
    };
    let broken =
        format!("{HEAD}data: {{\"choices\": [{{\"delta\": {{\"content\": \"I \"}}}}]}}\n\n");
    let refused = whole("401 Unauthorized", r#"{"error": {"message": "no key"}}"#);
    for (url, expected) in [
        (served(broken), "broke off"),
        ("http://127.0.0.1:9/v1".to_owned(), "does not answer"),
        ("notaurl".to_owned(), "is not an address"),
        (served(refused), "OPENAI_API_KEY is not set"),
        (served(page), "is not a chat completion: <!DOCTYPE html>"),
        (
            served(whole("200 OK", r#"{"foo": 1}"#)),
            r#"is not a chat completion: {"foo": 1}"#,
        ),
    ] {
        let context = context();
        let output = context
            .command(&arguments(&url))
            .env_remove("OPENAI_API_KEY")
            .output()
            .unwrap();
        let found = json(&output);
        let failure = &found["failure"];
        assert_eq!(failure["kind"], "infrastructure", "{found:#}");
        assert_eq!(failure["code"], "policy");
        let message = failure["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("the policy never answered"), "{message}");
        assert_eq!(code(&output), 3, "{message}");
        // The original is there all the same, and no episode counts as one that failed.
        assert!(context.path("run/result").is_dir());
        assert_eq!(context.trajectories("run"), Vec::<Value>::new());
    }
}

/// A server that was started again has another port, and is the same server.
#[test]
fn another_port_does_not_keep_a_run_from_going_on() {
    let context = context();
    for port in [9, 13] {
        let url = format!("http://127.0.0.1:{port}/v1");
        let output = context.command(&arguments(&url)).output().unwrap();
        assert_eq!(json(&output)["failure"]["code"], "policy");
    }
}
