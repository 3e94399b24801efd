//! The shipped models themselves, as `warpsmith models pull` leaves them in the cache folder. The large one by
//! `cargo test --release -p warpsmith-model --features local --test all shipped -- --ignored`
#![cfg(feature = "local")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use warpsmith_machine::{Caches, ProgressBars};
use warpsmith_model::catalogue::{Network, find, pull};
use warpsmith_model::{
    BatchLimits, ChatTemplate, Engine, GenerationRequest, LogitsFor, ModelConfig, Role, Sampler,
    Segment, TemplateMessage, Tokenizer, Transformer, Weights,
};

fn read<T: DeserializeOwned>(name: &str) -> T {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/tokens")
        .join(name);
    serde_json::from_str(&fs_err::read_to_string(path).unwrap()).unwrap()
}

fn pulled(name: &str) -> PathBuf {
    let caches = Caches::locate().unwrap();
    pull(
        &find(name).unwrap(),
        &caches,
        Network::Allowed,
        &ProgressBars::new(),
    )
    .unwrap()
}

#[derive(Deserialize)]
struct Tokens {
    ids: Vec<u32>,
}

/// Against the tokenizers that transformers has in plain Python.
fn tokens_agree(name: &str) {
    let tokenizer = Tokenizer::load(&pulled(name)).unwrap();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokens/corpus.txt");
    let text = fs_err::read_to_string(corpus).unwrap();
    let expected: Tokens = read(&format!("{name}.json"));
    let found = tokenizer.encode(&text).unwrap();
    let equal = found
        .iter()
        .zip(&expected.ids)
        .take_while(|(a, b)| a == b)
        .count();
    assert!(
        found == expected.ids,
        "token {equal} of {}: {:?} instead of {:?}",
        expected.ids.len(),
        tokenizer.decode(&found[equal..found.len().min(equal + 5)]),
        tokenizer.decode(&expected.ids[equal..expected.ids.len().min(equal + 5)]),
    );
}

/// What is said of a model before it is fetched is what its file says.
fn shape_agrees(name: &str) {
    let said = find(name).unwrap().config;
    assert_eq!(said, ModelConfig::read(&pulled(name)).unwrap());
}

#[test]
fn smollm2_has_the_shape_it_is_said_to_have() {
    shape_agrees("smollm2-135m");
}

#[test]
#[ignore = "fetches 1.12 GB"]
fn qwen_has_the_shape_it_is_said_to_have() {
    shape_agrees("qwen2.5-coder-1.5b");
}

#[test]
fn smollm2_tokens_agree_with_transformers() {
    tokens_agree("smollm2-135m");
}

#[test]
#[ignore = "fetches 1.12 GB"]
fn qwen_tokens_agree_with_transformers() {
    tokens_agree("qwen2.5-coder-1.5b");
}

#[derive(Deserialize)]
struct Expected {
    text: String,
    prompt: Vec<u32>,
    reply: Vec<u32>,
    log_probabilities: Vec<f32>,
    leads: Vec<f32>,
}

/// transformers computes the same weights in float32; we round activations to eight bits.
#[test]
fn smollm2_replies_as_in_transformers() {
    let path = pulled("smollm2-135m");
    let expected: Expected = read("smollm2-135m-reply.json");
    let tokenizer = Tokenizer::load(&path).unwrap();
    assert_eq!(tokenizer.encode(&expected.text).unwrap(), expected.prompt);
    let question = "What is the capital of France, and what is it known for?";
    let template = ChatTemplate::load(&path, &tokenizer).unwrap();
    let rendered = template
        .render(&[TemplateMessage::new(Role::User, question)], &[])
        .unwrap();
    assert_eq!(rendered, expected.text);

    let model = Transformer::new(Arc::new(Weights::load(&path).unwrap()));
    let all: Vec<u32> = expected
        .prompt
        .iter()
        .chain(&expected.reply)
        .copied()
        .collect();
    let mut segments = [Segment {
        cache: &mut model.new_cache(),
        tokens: &all,
        logits_for: LogitsFor::All,
    }];
    let logits = model.forward(&mut segments).unwrap().remove(0);
    let mut total = 0.0;
    for (place, &token) in expected.reply.iter().enumerate() {
        let chosen = Sampler::GREEDY.choose(logits.row(expected.prompt.len() - 1 + place), 0);
        if expected.leads[place] > 0.3 {
            assert_eq!(chosen.token, token, "token {place}");
        }
        if chosen.token == token {
            total += (chosen.log_probability - expected.log_probabilities[place]).abs();
        }
    }
    let mean = total / expected.reply.len() as f32;
    println!("log-probabilities differ by {mean} on average");
    assert!(mean < 0.05, "log-probabilities differ by {mean} on average");
}

#[test]
#[ignore = "fetches 1.12 GB"]
fn qwen_answers_a_question() {
    let path = pulled("qwen2.5-coder-1.5b");
    let tokenizer = Arc::new(Tokenizer::load(&path).unwrap());
    let template = ChatTemplate::load(&path, &tokenizer).unwrap();
    let question = "What is the capital of France? Answer with one word.";
    let text = template
        .render(&[TemplateMessage::new(Role::User, question)], &[])
        .unwrap();
    let model = Transformer::new(Arc::new(Weights::load(&path).unwrap()));
    let request = GenerationRequest {
        prompt: tokenizer.encode(&text).unwrap(),
        sampling: Sampler::GREEDY,
        max_tokens: 16,
        stop: Vec::new(),
    };
    let mut engine = Engine::new(model, tokenizer, BatchLimits::default());
    let reply = engine.generate(request, |_| {}).unwrap();
    assert!(reply.text.trim().starts_with("Paris"), "{}", reply.text);
}
