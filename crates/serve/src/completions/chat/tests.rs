//! Replies that are put into a model's mouth, and conversations as clients send them.

use std::path::Path;

use tokio::sync::Semaphore;
use tokio::sync::mpsc::unbounded_channel;
use warpsmith_model::policy::{ChatModel, RunsOn};
use warpsmith_model::{EndReason, Sampled};

use super::*;
use warpsmith_model::GenerationThread;

/// A model of a few random numbers: what it would say is put into its mouth.
fn served() -> Arc<Served> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests");
    let place = tempfile::tempdir().unwrap();
    fs_err::copy(
        tests.join("tokens/tokenizer.json"),
        place.path().join("tokenizer.json"),
    )
    .unwrap();
    for entry in fs_err::read_dir(tests.join("checkpoints/qwen3")).unwrap() {
        let entry = entry.unwrap();
        fs_err::copy(entry.path(), place.path().join(entry.file_name())).unwrap();
    }
    fs_err::write(place.path().join("chat_template.jinja"), "{{ messages }}").unwrap();
    let model = ChatModel::load("tiny", place.path(), None, &[], RunsOn::Processor).unwrap();
    Arc::new(Served {
        name: "tiny".to_owned(),
        context: model.engine.context(),
        dialogue: model.dialogue,
        generation: GenerationThread::start(model.engine, None).unwrap(),
        places: Arc::new(Semaphore::new(2)),
    })
}

fn request(tools: &Value) -> Asked {
    let request = json!({
        "model": "tiny", "messages": [{ "role": "user", "content": "Go" }], "tools": tools, "stream": true,
    });
    let request: ChatRequest = serde_json::from_value(request).unwrap();
    request.read().unwrap()
}

/// What a client gets of a reply that comes in these pieces: text, calls, and why it ended.
fn streamed(served: &Arc<Served>, tools: &Value, pieces: &[&str]) -> (Vec<String>, Value, Value) {
    let (tell, listening) = unbounded_channel();
    let exchange = Exchange {
        served: served.clone(),
        asked: request(tools),
        head: Head::new("tiny"),
        prompt: Vec::new(),
        listening: listening.into(),
        _place: served.places.clone().try_acquire_owned().unwrap(),
    };
    let mut streaming = exchange.streaming(false);
    for piece in pieces {
        tell.send((0, GenerationUpdate::Text((*piece).to_owned())))
            .unwrap();
    }
    let reply = Completion {
        text: pieces.concat(),
        tokens: vec![Sampled {
            token: 1,
            log_probability: -0.5,
        }],
        finish: EndReason::End,
        prompt_tokens: 1,
        reused_tokens: 0,
    };
    tell.send((0, GenerationUpdate::Done(reply))).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut data = Vec::new();
    while let Some(one) = runtime.block_on(streaming.next()) {
        data.push(one);
    }
    assert_eq!(data.pop().unwrap(), "[DONE]");
    let chunks: Vec<Value> = data
        .iter()
        .map(|one| serde_json::from_str(one).unwrap())
        .collect();
    let choice = |chunk: &Value| chunk["choices"][0].clone();
    let texts = chunks.iter().skip(1).filter_map(|chunk| {
        choice(chunk)["delta"]["content"]
            .as_str()
            .map(str::to_owned)
    });
    let calls = chunks
        .iter()
        .map(|chunk| choice(chunk)["delta"]["tool_calls"].clone());
    (
        texts.collect(),
        calls
            .into_iter()
            .find(|calls| !calls.is_null())
            .unwrap_or_default(),
        choice(chunks.last().unwrap())["finish_reason"].clone(),
    )
}

#[test]
fn calls_are_streamed_apart_from_text() {
    let served = served();
    let tools = json!([{ "type": "function", "function": { "name": "look" } }]);
    let pieces = [
        "I ",
        "look.\n<tool",
        "_call>{\"name\": \"look\", ",
        "\"arguments\": {\"at\": 1}}</tool_call>",
    ];
    let (texts, calls, finish) = streamed(&served, &tools, &pieces);
    assert_eq!(texts, ["I", " look."]);
    let function = json!({ "name": "look", "arguments": "{\"at\":1}" });
    assert_eq!(
        calls,
        json!([{ "index": 0, "id": "call_0", "type": "function", "function": function }])
    );
    assert_eq!(finish, "tool_calls");

    // What looked like a call and was none is text, and so is a call of nothing.
    for pieces in [["a <tool", "box>"], ["b <tool_call>", "oops"]] {
        let (texts, calls, finish) = streamed(&served, &tools, &pieces);
        assert_eq!(
            (texts.concat(), calls, finish),
            (pieces.concat(), Value::Null, json!("stop"))
        );
    }
    // Without tools nothing is kept back.
    let (texts, calls, _) = streamed(&served, &json!([]), &pieces);
    assert_eq!(
        (texts, calls),
        (pieces.map(str::to_owned).to_vec(), Value::Null)
    );
}

#[test]
fn a_conversation_with_calls_is_read() {
    let call = json!({ "id": "a", "type": "function", "function": { "name": "look", "arguments": "{\"at\":1}" } });
    let broken = json!({ "id": "b", "type": "function", "function": { "name": "look", "arguments": "{oops" } });
    let request = json!({ "model": "tiny", "messages": [
        { "role": "developer", "content": [{ "type": "text", "text": "Be" }, { "type": "text", "text": "brief." }] },
        { "role": "assistant", "content": null, "tool_calls": [call, broken] },
        { "role": "tool", "tool_call_id": "b", "content": "no" },
    ] });
    let request: ChatRequest = serde_json::from_value(request).unwrap();
    let messages = request.read().unwrap().messages;
    assert_eq!(
        serde_json::to_value(messages).unwrap(),
        json!([
            { "role": "system", "text": "Be\nbrief." },
            { "role": "assistant", "text": "", "calls": [
                { "id": "a", "name": "look", "arguments": { "at": 1 } },
                { "id": "b", "name": "look", "arguments": "{oops" },
            ] },
            { "role": "tool", "call": "b", "name": "look", "text": "no", "failed": false },
        ])
    );
}

/// As many as may be under way are; the next is asked to come again, and let in once there is a place.
#[test]
fn who_finds_no_place_is_asked_to_come_again() {
    let served = served();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let ask = || {
        let body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "Go" }], "max_tokens": 1 });
        let request: ChatRequest = serde_json::from_value(body).unwrap();
        let answered = runtime.block_on(complete(State(served.clone()), Ok(Json(request))));
        answered.into_response()
    };
    let taken = served.places.clone().try_acquire_many_owned(2).unwrap();
    let refused = ask();
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "5");
    drop(taken);
    // Whatever such a model has to say, it was asked.
    assert_ne!(ask().status(), 503);
    assert_eq!(served.places.available_permits(), 2);
}
