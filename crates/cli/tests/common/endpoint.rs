//! Somebody who serves a small model, and an agent of ours that is sent there.

use std::time::Duration;

use serde_json::{Value, json};
use warpsmith_machine::http_agent;

use super::scale_relu::TASK;
use super::{Context, code, json};

pub(crate) const MODEL: &str = "smollm2-135m";

/// Enough to see that it speaks.
const REPLY_TOKENS: u64 = 16;

/// Status and body.
pub(crate) fn post(base_url: &str, body: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let agent = http_agent(Duration::from_mins(2)).unwrap();
    let mut call = agent
        .post(format!("{base_url}/chat/completions"))
        .header("Content-Type", "application/json");
    for (name, value) in headers {
        call = call.header(*name, *value);
    }
    let mut response = call.send(body).unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    (response.status().as_u16(), text)
}

/// A whole answer.
pub(crate) fn complete(base_url: &str, request: &Value) -> Value {
    let (status, text) = post(base_url, &request.to_string(), &[]);
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

/// Every chunk of a streamed answer but the word that ends it.
pub(crate) fn stream(base_url: &str, request: &Value) -> Vec<Value> {
    let mut request = request.clone();
    request["stream"] = json!(true);
    let (status, text) = post(base_url, &request.to_string(), &[]);
    assert_eq!(status, 200, "{text}");
    let mut events: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert_eq!(events.pop(), Some("[DONE]"), "{text}");
    let events = events.into_iter();
    events
        .map(|one| serde_json::from_str(one).unwrap())
        .collect()
}

/// The agent's loop, a few turns, with the small model at that address: too small to get anywhere, but what it says is
/// understood, answered and recorded. Both ways of calling tools, from nothing and from the compiler's solution.
pub(crate) fn an_agent_runs_there(base_url: &str) {
    let context = Context::new();
    context.write("task.py", TASK);
    for (wire, start) in [("fenced", "none"), ("json", "compiler")] {
        let policy = format!("openai:{MODEL}");
        let arguments = format!(
            "optimize task.py --mode agent --policy {policy} --base-url {base_url} --wire {wire} --start {start} --turns 2 --max-tokens {REPLY_TOKENS} \
             --temperature 0 --target cpu --no-compile --profile rl --out {wire} --json -q"
        );
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let output = context.command(&arguments).output().unwrap();
        let found = json(&output);
        assert_eq!(code(&output), 0, "{found:#}");
        let ending = json!({ "kind": "limit", "which": "turns" });
        assert_eq!(found["ending"], ending, "{wire}: {found:#}");
        assert!(
            found["usage"]["prompt_tokens"].as_u64() > Some(500),
            "{found:#}"
        );
        let written = found["usage"]["completion_tokens"].as_u64().unwrap();
        assert!((2..=2 * REPLY_TOKENS).contains(&written), "{found:#}");

        let trajectory = context.trajectories(wire).remove(0);
        assert_eq!(trajectory["policy"]["name"], policy);
        let messages = trajectory["messages"].as_array().unwrap();
        let said = messages.iter().filter(|one| one["role"] == "assistant");
        assert_eq!(said.count(), 2, "{messages:#?}");
        assert_eq!(messages[2]["role"], "assistant");
        if wire == "fenced" {
            what_was_said_is_what_is_recorded(base_url, messages);
        }
    }
}

/// With the likeliest tokens the same question has the same answer.
fn what_was_said_is_what_is_recorded(base_url: &str, messages: &[Value]) {
    let asked: Vec<Value> = messages[..2]
        .iter()
        .map(|one| json!({ "role": one["role"], "content": one["text"] }))
        .collect();
    let request = json!({
        "model": MODEL, "messages": asked, "temperature": 0, "top_p": 0.95, "max_tokens": REPLY_TOKENS,
        // llama.cpp: what it has kept of the same must not change what is said, be it in the last bits.
        "cache_prompt": false,
    });
    let answer = complete(base_url, &request);
    assert_eq!(
        answer["choices"][0]["message"]["content"],
        messages[2]["text"]
    );
}
