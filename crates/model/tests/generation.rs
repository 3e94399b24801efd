//! Generation on the small checkpoints: alone, in batches, from kept prefixes, to every kind of end.
#![cfg(feature = "local")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use warpsmith_model::{
    BatchLimits, Completion, EndReason, Engine, EngineEvent, GenerationRequest, LogitsFor,
    RequestId, Sampler, Segment, Tokenizer, Transformer, Weights,
};

#[derive(Deserialize)]
struct Expected {
    prompt: Vec<u32>,
    continuation: Vec<u32>,
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn expected(name: &str) -> Expected {
    let path = tests().join("checkpoints").join(name).join("expected.json");
    serde_json::from_str(&fs_err::read_to_string(path).unwrap()).unwrap()
}

fn model(name: &str) -> Transformer {
    let weights = Weights::load(&tests().join("checkpoints").join(name)).unwrap();
    Transformer::new(Arc::new(weights))
}

/// The small tokenizer, with an end token of our choice: its own are outside the checkpoints' vocabulary.
fn tokenizer(end: Option<u32>) -> Arc<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let file = "tokenizer.json";
    fs_err::copy(tests().join("tokens").join(file), folder.path().join(file)).unwrap();
    let config = serde_json::json!({ "eos_token_id": end });
    fs_err::write(folder.path().join("config.json"), config.to_string()).unwrap();
    Arc::new(Tokenizer::load(folder.path()).unwrap())
}

fn engine(name: &str, limits: BatchLimits) -> Engine {
    Engine::new(model(name), tokenizer(None), limits)
}

fn greedy(prompt: &[u32], max_tokens: usize) -> GenerationRequest {
    GenerationRequest {
        prompt: prompt.to_vec(),
        sampling: Sampler::GREEDY,
        max_tokens,
        stop: Vec::new(),
    }
}

fn ids(reply: &Completion) -> Vec<u32> {
    reply.tokens.iter().map(|sampled| sampled.token).collect()
}

/// Steps until nothing is left; every request's text as it came, and its reply.
fn finish(engine: &mut Engine) -> BTreeMap<RequestId, (String, Completion)> {
    let mut texts: BTreeMap<RequestId, String> = BTreeMap::new();
    let mut replies = BTreeMap::new();
    while !engine.is_idle() {
        for event in engine.step().unwrap() {
            match event {
                EngineEvent::Text { request, text } => *texts.entry(request).or_default() += &text,
                EngineEvent::Done { request, reply } => {
                    let text = texts.remove(&request).unwrap_or_default();
                    replies.insert(request, (text, reply));
                }
            }
        }
    }
    replies
}

#[test]
fn greedy_replies_equal_transformers() {
    for name in ["llama", "qwen2", "qwen3"] {
        let expected = expected(name);
        // Prompts in pieces too: the limit is no multiple of anything.
        for prompt_tokens_per_step in [7, 256] {
            let limits = BatchLimits {
                prompt_tokens_per_step,
                ..BatchLimits::default()
            };
            let mut engine = engine(name, limits);
            let request = greedy(&expected.prompt, expected.continuation.len());
            let mut text = String::new();
            let reply = engine.generate(request, |piece| text += piece).unwrap();
            assert_eq!(ids(&reply), expected.continuation, "{name}");
            assert_eq!(reply.finish, EndReason::Length);
            assert_eq!(reply.text, text);
            assert_eq!(text, engine.tokenizer().decode(&ids(&reply)).unwrap());
        }
    }
}

/// What a learner computes from prompt and reply in one pass.
#[test]
fn log_probabilities_are_those_of_one_pass_over_the_reply() {
    let expected = expected("qwen3");
    let model = model("qwen3");
    let mut engine = Engine::new(model.clone(), tokenizer(None), BatchLimits::default());
    let request = GenerationRequest {
        sampling: Sampler::random(0.8, 0.9, 11).unwrap(),
        ..greedy(&expected.prompt, 30)
    };
    let reply = engine.generate(request, |_| {}).unwrap();
    let all: Vec<u32> = expected.prompt.iter().copied().chain(ids(&reply)).collect();
    let mut segments = [Segment {
        cache: &mut model.new_cache(),
        tokens: &all,
        logits_for: LogitsFor::All,
    }];
    let logits = model.forward(&mut segments).unwrap().remove(0);
    for (place, sampled) in reply.tokens.iter().enumerate() {
        let row = logits.row(expected.prompt.len() - 1 + place);
        let sum: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        let log_probability = f64::from(row[sampled.token as usize]) - sum.ln();
        let difference = (log_probability - f64::from(sampled.log_probability)).abs();
        assert!(difference < 1e-4, "token {place}: off by {difference}");
    }
}

/// Requests of all lengths that come while others are under way get what they would get alone.
#[test]
fn batches_with_continuous_admission_equal_single_requests() {
    let prompt = expected("llama").prompt;
    let requests: Vec<GenerationRequest> = (0..12)
        .map(|index| GenerationRequest {
            prompt: prompt[index..=index * 3 + 5].to_vec(),
            sampling: if index % 3 == 0 {
                Sampler::GREEDY
            } else {
                Sampler::random(1.0, 0.95, index as u64).unwrap()
            },
            max_tokens: 3 + (index * 7) % 20,
            stop: Vec::new(),
        })
        .collect();
    let alone: Vec<Completion> = requests
        .iter()
        .map(|request| {
            engine("llama", BatchLimits::default())
                .generate(request.clone(), |_| {})
                .unwrap()
        })
        .collect();
    let limits = BatchLimits {
        sequences: 4,
        prompt_tokens_per_step: 10,
        kept_tokens: 0,
    };
    let mut engine = engine("llama", limits);
    let mut order = Vec::new();
    let mut events = Vec::new();
    for request in &requests {
        order.push(engine.submit(request.clone()).unwrap());
        events.extend(engine.step().unwrap());
    }
    let mut replies = finish(&mut engine);
    for event in events {
        if let EngineEvent::Done { request, reply } = event {
            replies.insert(request, (reply.text.clone(), reply));
        }
    }
    for (id, alone) in order.iter().zip(&alone) {
        assert_eq!(ids(&replies[id].1), ids(alone), "{id:?}");
        assert_eq!(replies[id].1.text, alone.text);
    }
}

#[test]
fn prefixes_are_read_once() {
    let expected = expected("qwen2");
    let mut engine = engine("qwen2", BatchLimits::default());
    let length = expected.prompt.len();
    let first = engine
        .generate(greedy(&expected.prompt, 9), |_| {})
        .unwrap();
    assert_eq!(first.reused_tokens, 0);

    // The same again: everything but the last token, whose logits are needed.
    let again = engine
        .generate(greedy(&expected.prompt, 40), |_| {})
        .unwrap();
    assert_eq!(again.reused_tokens, length - 1);
    assert_eq!(ids(&again), expected.continuation);

    // A conversation that goes on: the reply's keys and values are there too.
    let mut longer = expected.prompt.clone();
    longer.extend(ids(&again));
    longer.extend([1, 2, 3]);
    let next = engine.generate(greedy(&longer, 4), |_| {}).unwrap();
    assert_eq!(next.reused_tokens, length + expected.continuation.len() - 1);
    let fresh = self::engine("qwen2", BatchLimits::default())
        .generate(greedy(&longer, 4), |_| {})
        .unwrap();
    assert_eq!(ids(&next), ids(&fresh));

    // Another beginning shares nothing.
    let other: Vec<u32> = expected.prompt.iter().rev().copied().collect();
    let other = engine.generate(greedy(&other, 2), |_| {}).unwrap();
    assert_eq!(other.reused_tokens, 0);
}

/// Samples of one prompt, all submitted at once: the prompt is read by the first alone.
#[test]
fn samples_of_one_prompt_share_its_reading() {
    let prompt = expected("qwen3").prompt;
    let limits = BatchLimits {
        prompt_tokens_per_step: 20,
        kept_tokens: 0,
        ..BatchLimits::default()
    };
    let mut engine = engine("qwen3", limits);
    for seed in 0..6 {
        let request = GenerationRequest {
            sampling: Sampler::random(1.0, 1.0, seed).unwrap(),
            ..greedy(&prompt, 12)
        };
        engine.submit(request).unwrap();
    }
    let replies = finish(&mut engine);
    let reused: Vec<usize> = replies
        .values()
        .map(|(_, reply)| reply.reused_tokens)
        .collect();
    assert_eq!(reused[0], 0);
    assert!(
        reused[1..].iter().all(|one| *one == prompt.len() - 1),
        "{reused:?}"
    );
    let different: std::collections::BTreeSet<_> =
        replies.values().map(|(_, reply)| ids(reply)).collect();
    assert_eq!(different.len(), 6);
    for (text, reply) in replies.values() {
        assert_eq!(*text, reply.text);
    }
}

#[test]
fn replies_end_where_they_should() {
    let expected = expected("qwen2");
    // A token that comes in the middle for the first time there.
    let place = (5..30)
        .find(|&place| !expected.continuation[..place].contains(&expected.continuation[place]))
        .unwrap();
    let end = expected.continuation[place];
    let mut ending = Engine::new(model("qwen2"), tokenizer(Some(end)), BatchLimits::default());
    let reply = ending
        .generate(greedy(&expected.prompt, 40), |_| {})
        .unwrap();
    assert_eq!(reply.finish, EndReason::End);
    assert_eq!(ids(&reply), expected.continuation[..=place]);
    let before = tokenizer(None)
        .decode(&expected.continuation[..place])
        .unwrap();
    assert_eq!(reply.text, before);

    let mut engine = engine("qwen2", BatchLimits::default());
    let whole = engine
        .generate(greedy(&expected.prompt, 40), |_| {})
        .unwrap()
        .text;
    let characters: Vec<char> = whole.chars().collect();
    let stop: String = characters[10..13].iter().collect();
    let request = GenerationRequest {
        stop: vec!["never comes".into(), stop.clone()],
        ..greedy(&expected.prompt, 40)
    };
    let mut streamed = String::new();
    let reply = engine.generate(request, |text| streamed += text).unwrap();
    assert_eq!(reply.finish, EndReason::Stop(stop.clone()));
    assert_eq!(reply.text, whole[..whole.find(&stop).unwrap()]);
    assert_eq!(streamed, reply.text);

    let long: Vec<u32> = expected.prompt.iter().cycle().copied().take(250).collect();
    let reply = engine.generate(greedy(&long, 1000), |_| {}).unwrap();
    assert_eq!((reply.finish, reply.tokens.len()), (EndReason::Context, 6));
    let error = engine.submit(greedy(&[1; 256], 1)).unwrap_err();
    assert!(error.hint().unwrap().contains("shorten"), "{error}");
    assert!(engine.submit(greedy(&[], 1)).is_err());
    assert!(engine.submit(greedy(&[160], 1)).is_err());
}

#[test]
fn waiting_for_one_reply_loses_no_other() {
    let expected = expected("llama");
    let mut engine = engine("llama", BatchLimits::default());
    let short = engine.submit(greedy(&expected.prompt, 5)).unwrap();
    let long = engine.submit(greedy(&expected.prompt, 40)).unwrap();
    let between = engine
        .generate(greedy(&expected.prompt[1..], 20), |_| {})
        .unwrap();
    assert_eq!(between.tokens.len(), 20);
    let replies = finish(&mut engine);
    assert_eq!(replies.keys().copied().collect::<Vec<_>>(), [short, long]);
    for (id, count) in [(short, 5), (long, 40)] {
        let (text, reply) = &replies[&id];
        assert_eq!(ids(reply), expected.continuation[..count]);
        assert_eq!(*text, reply.text);
    }
}

#[test]
fn a_cancelled_request_leaves_the_others_alone() {
    let expected = expected("llama");
    let mut engine = engine("llama", BatchLimits::default());
    let kept = engine.submit(greedy(&expected.prompt, 40)).unwrap();
    let under_way = engine.submit(greedy(&expected.prompt[3..], 40)).unwrap();
    for _ in 0..4 {
        engine.step().unwrap();
    }
    let waiting = engine.submit(greedy(&expected.prompt[5..], 40)).unwrap();
    engine.cancel(under_way);
    engine.cancel(waiting);
    let replies = finish(&mut engine);
    assert_eq!(replies.keys().copied().collect::<Vec<_>>(), [kept]);
    assert_eq!(ids(&replies[&kept].1), expected.continuation);
}
