//! `serve` by the real binary with a small language model, and everybody who may ask it.
#![cfg(feature = "local-models")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::common::endpoint::{MODEL, an_agent_runs_there, complete, post, stream};
use crate::common::server::Server;
use crate::common::{Context, code, json};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use warpsmith_machine::{Caches, ProgressBars};
use warpsmith_model::catalogue::{Network, find, pull};
use warpsmith_model::policy::{
    ChatModel, LocalPolicy, OpenAiPolicy, Policy, PolicyRequest, RunsOn, SamplingParams,
};
use warpsmith_schema::Message;

fn question(text: &str) -> Value {
    json!({
        "model": MODEL, "messages": [{ "role": "user", "content": text }], "temperature": 0, "max_tokens": 24,
    })
}

#[test]
fn a_reply_comes_whole_or_in_pieces_with_what_was_asked_for() {
    let server = Server::with_model(&[]);
    assert_eq!(server.said["model"], MODEL);
    assert_eq!(server.said["token_required"], false);
    let health = server.get("/healthz");
    assert_eq!(
        (&health["status"], &health["requests"]),
        (&json!("ok"), &json!(0))
    );
    assert!(["cpu", "cuda"].contains(&health["target"].as_str().unwrap()));
    let models = server.get("/v1/models");
    assert_eq!(models["data"][0]["id"], MODEL);
    assert_eq!(models["data"][0]["max_model_len"], server.said["context"]);

    let mut request = question("Name three colours.");
    let plain = complete(&server.base_url, &request);
    let choice = &plain["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(!text.is_empty());
    for absent in ["logprobs", "token_ids"] {
        assert_eq!(choice.get(absent), None, "{plain:#}");
    }

    request["logprobs"] = json!(true);
    request["return_token_ids"] = json!(true);
    let whole = complete(&server.base_url, &request);
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], text);
    let completion = whole["usage"]["completion_tokens"].as_u64().unwrap();
    let ids = choice["token_ids"].as_array().unwrap();
    let logprobs = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!([ids.len(), logprobs.len()], [completion as usize; 2]);
    assert!(
        logprobs
            .iter()
            .all(|one| one["logprob"].as_f64().unwrap() <= 0.0)
    );
    let spelt: String = logprobs
        .iter()
        .map(|one| one["token"].as_str().unwrap())
        .collect();
    assert_eq!(spelt, text);
    let prompt = whole["prompt_token_ids"].as_array().unwrap();
    assert_eq!(whole["usage"]["prompt_tokens"], prompt.len());

    request["stream_options"] = json!({ "include_usage": true });
    let chunks = stream(&server.base_url, &request);
    let pieces = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str());
    assert_eq!(pieces.clone().collect::<String>(), text);
    assert!(pieces.filter(|piece| !piece.is_empty()).count() > 1);
    assert_eq!(chunks[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    let last = &chunks[chunks.len() - 2]["choices"][0];
    for same in ["finish_reason", "token_ids", "logprobs"] {
        assert_eq!(last[same], choice[same]);
    }
    let usage = &chunks[chunks.len() - 1]["usage"];
    assert_eq!(usage["completion_tokens"], completion);

    // Ends: after a number of tokens, before a text.
    request["max_tokens"] = json!(2);
    let cut = complete(&server.base_url, &request);
    assert_eq!(cut["choices"][0]["finish_reason"], "length");
    assert_eq!(cut["usage"]["completion_tokens"], 2);
    request["max_tokens"] = json!(24);
    let word = text.split_whitespace().nth(1).unwrap();
    request["stop"] = json!(word);
    let stopped = complete(&server.base_url, &request);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let expected = text.split(word).next();
    assert_eq!(
        stopped["choices"][0]["message"]["content"].as_str(),
        expected
    );

    // A seed makes chance repeatable.
    let mut request = question("Write a story.");
    request["temperature"] = json!(1.5);
    request["seed"] = json!(-7);
    let told = |request: &Value| complete(&server.base_url, request)["choices"].clone();
    assert_eq!(told(&request), told(&request));
}

#[test]
fn clients_are_served_together_and_one_that_leaves_is_forgotten() {
    let server = Server::with_model(&[]);
    let endless = endless();
    // One waits for the whole, one reads along.
    let clients: Vec<TcpStream> = [false, true]
        .map(|streamed| {
            let mut request = endless.clone();
            request["stream"] = json!(streamed);
            began(&server, &request)
        })
        .into();
    server.until_requests(2);
    // Another comes and is done while they are still served.
    let answer = complete(&server.base_url, &question("Say yes."));
    assert!(
        !answer["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .is_empty()
    );
    assert_eq!(server.get("/healthz")["requests"], 2);

    let before = Instant::now();
    drop(clients);
    server.until_requests(0);
    assert!(before.elapsed() < Duration::from_secs(5));
}

/// So hot that every token is as likely as the one that would end it.
fn endless() -> Value {
    let mut request = question("Talk.");
    request["max_tokens"] = json!(4000);
    request["temperature"] = json!(50);
    request
}

/// A client that has asked and does not read.
fn began(server: &Server, request: &Value) -> TcpStream {
    let address = server
        .base_url
        .trim_start_matches("http://")
        .trim_end_matches("/v1");
    let mut client = TcpStream::connect(address).unwrap();
    let body = request.to_string();
    write!(
        client,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    client
}

#[test]
fn what_cannot_be_answered_is_refused_in_openais_form() {
    let server = Server::with_model(&[]);
    let with = |field: &str, value: Value| {
        let mut request = question("hi");
        request[field] = value;
        request.to_string()
    };
    let long = "many words ".repeat(9000);
    let result = json!([{ "role": "tool", "tool_call_id": "x", "content": "done" }]);
    for (body, status, code, words) in [
        (
            with("model", json!("gpt-5")),
            404,
            json!("model_not_found"),
            "`smollm2-135m` is served",
        ),
        ("{".to_owned(), 400, Value::Null, "EOF"),
        (
            json!({ "model": MODEL }).to_string(),
            400,
            Value::Null,
            "missing field `messages`",
        ),
        (
            with("messages", json!([])),
            400,
            Value::Null,
            "`messages` is empty",
        ),
        (
            with("messages", json!([{ "role": "robot", "content": "" }])),
            400,
            Value::Null,
            "unknown variant `robot`",
        ),
        (with("messages", result), 400, Value::Null, "the call `x`"),
        (
            with("temperature", json!(-1)),
            400,
            Value::Null,
            "`temperature` is -1",
        ),
        (with("top_p", json!(0)), 400, Value::Null, "`top-p` is 0"),
        (
            with("seed", json!(1.5)),
            400,
            Value::Null,
            "no whole number",
        ),
        (
            with("max_tokens", json!(0)),
            400,
            Value::Null,
            "`max_tokens` is 0",
        ),
        (
            with("n", json!(2)),
            400,
            Value::Null,
            "`n`: anything but 1 is not offered",
        ),
        (
            with("top_logprobs", json!(5)),
            400,
            Value::Null,
            "`top_logprobs`",
        ),
        (
            with("tool_choice", json!("required")),
            400,
            Value::Null,
            "`tool_choice`",
        ),
        (
            with("response_format", json!({ "type": "json_object" })),
            400,
            Value::Null,
            "`response_format`",
        ),
        (
            question(&long).to_string(),
            400,
            json!("context_length_exceeded"),
            "maximum context length",
        ),
        (
            question(&"x".repeat(8 << 20)).to_string(),
            413,
            Value::Null,
            "limit",
        ),
    ] {
        let (found, text) = post(&server.base_url, &body, &[]);
        let shown: String = body.chars().take(100).collect();
        let answer: Value = serde_json::from_str(&text).unwrap();
        let error = &answer["error"];
        assert_eq!(found, status, "{shown}: {text}");
        assert_eq!(error["code"], code, "{shown}: {text}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(
            error["message"].as_str().unwrap().contains(words),
            "{shown}: {text}"
        );
    }
    // A page of another name, and what is nowhere.
    let (status, _) = post(
        &server.base_url,
        &question("hi").to_string(),
        &[("Host", "evil.example")],
    );
    assert_eq!(status, 403);
    assert_eq!(server.get("/v1/engines")["error"]["code"], "unknown_url");
    // All that did no harm.
    complete(&server.base_url, &question("hi"));
}

#[test]
fn beyond_this_machine_a_token_is_needed() {
    let context = Context::new();
    let refused = context
        .command(&[
            "serve", "--model", MODEL, "--host", "0.0.0.0", "--port", "0", "--json", "-q",
        ])
        .env("WARPSMITH_TOKEN", "")
        .output()
        .unwrap();
    assert_eq!(code(&refused), 2);
    assert_eq!(json(&refused)["failure"]["code"], "token");

    let server = Server::with_model(&["--host", "0.0.0.0", "--token", "secret"]);
    assert_eq!(server.said["token_required"], true);
    let base_url = server.base_url.replace("0.0.0.0", "127.0.0.1");
    let body = question("hi").to_string();
    for (headers, status) in [
        (vec![], 401),
        (vec![("Authorization", "Bearer wrong")], 401),
        (vec![("Authorization", "Bearer secret")], 200),
        (
            vec![
                ("Authorization", "Bearer secret"),
                ("Host", "a.name.of.this.machine"),
            ],
            200,
        ),
    ] {
        let (found, text) = post(&base_url, &body, &headers);
        assert_eq!(found, status, "{headers:?}: {text}");
    }
    let health = server.get("/healthz");
    assert_eq!(
        health["status"], "ok",
        "whether it lives may be asked without"
    );
}

#[test]
fn an_agent_of_ours_runs_on_our_own_server() {
    let server = Server::with_model(&[]);
    an_agent_runs_there(&server.base_url);
}

/// Through the server a policy gets what it would have had in its own process, token for token.
#[test]
fn an_endpoint_policy_has_the_tokens_that_a_local_one_has() {
    let server = Server::with_model(&[]);
    let messages = [Message::User {
        text: "Name three colours.".to_owned(),
    }];
    let request = PolicyRequest {
        messages: &messages,
        tools: &[],
        sampling: SamplingParams {
            temperature: 0.0,
            max_tokens: 16,
            ..SamplingParams::default()
        },
    };
    let known = find(MODEL).unwrap();
    let path = pull(
        &known,
        &Caches::locate().unwrap(),
        Network::Allowed,
        &ProgressBars::new(),
    )
    .unwrap();
    let model = ChatModel::load(MODEL, &path, Some(known.sha256), &[], RunsOn::Processor).unwrap();
    let mut here = LocalPolicy::start(model, None).unwrap();
    let mut there = OpenAiPolicy::new(MODEL, &server.base_url, None).unwrap();
    let mut seen = String::new();
    let reply = there
        .reply(&request, &mut |text| seen.push_str(text))
        .unwrap();
    assert_eq!(reply.text, seen);
    assert_eq!(reply, here.reply(&request, &mut |_| {}).unwrap());
}

#[test]
fn ctrl_c_ends_it_in_the_middle_of_a_reply() {
    let mut server = Server::with_model(&[]);
    let mut request = endless();
    request["stream"] = json!(true);
    let _client = began(&server, &request);
    server.until_requests(1);
    let pid = Pid::from_raw(i32::try_from(server.process.id()).unwrap()).unwrap();
    let before = Instant::now();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(server.process.wait().unwrap().code(), Some(130));
    assert!(
        before.elapsed() < Duration::from_secs(2),
        "{:?}",
        before.elapsed()
    );
    let mut rest = String::new();
    server
        .process
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut rest)
        .unwrap();
    assert_eq!(rest, "", "there is one object and no more");
}
