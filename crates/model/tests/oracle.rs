//! Logits and greedy continuations against Hugging Face transformers, on the checkpoints that
//! `make_checkpoints.py` made.
#![cfg(feature = "local")]

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use warpsmith_model::{LogitsFor, Segment, Transformer, Weights};

#[derive(Deserialize)]
struct Expected {
    prompt: Vec<u32>,
    logits: Vec<ExpectedLogits>,
    continuation: Vec<u32>,
}

#[derive(Deserialize)]
struct ExpectedLogits {
    position: usize,
    values: Vec<f32>,
}

fn checkpoint(name: &str) -> (Transformer, Expected) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/checkpoints")
        .join(name);
    let expected = fs_err::read_to_string(folder.join("expected.json")).unwrap();
    let weights = Weights::load(&folder).unwrap();
    (
        Transformer::new(Arc::new(weights)),
        serde_json::from_str(&expected).unwrap(),
    )
}

fn greedy(logits: &[f32]) -> u32 {
    let best = logits
        .iter()
        .enumerate()
        .max_by(|a, b| a.1.total_cmp(b.1))
        .unwrap();
    u32::try_from(best.0).unwrap()
}

fn assert_close(found: &[f32], expected: &[f32], limit: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs())
        .fold(0.0, f32::max);
    assert!(worst <= limit, "{what}: off by {worst}");
}

fn agrees(name: &str) {
    let (model, expected) = checkpoint(name);
    let mut cache = model.new_cache();
    let logits = model
        .forward(&mut [Segment {
            cache: &mut cache,
            tokens: &expected.prompt,
            logits_for: LogitsFor::All,
        }])
        .unwrap()
        .remove(0);
    for one in &expected.logits {
        let what = format!("{name}, position {}", one.position);
        assert_close(logits.row(one.position), &one.values, 1e-3, &what);
    }
    let mut token = greedy(logits.row(logits.rows() - 1));
    let mut continuation = vec![token];
    while continuation.len() < expected.continuation.len() {
        let logits = model
            .forward(&mut [Segment {
                cache: &mut cache,
                tokens: &[token],
                logits_for: LogitsFor::Last,
            }])
            .unwrap();
        token = greedy(logits[0].row(0));
        continuation.push(token);
    }
    assert_eq!(continuation, expected.continuation, "{name}");
}

#[test]
fn llama_agrees_with_transformers() {
    agrees("llama");
}

#[test]
fn qwen2_agrees_with_transformers() {
    agrees("qwen2");
}

#[test]
fn qwen3_agrees_with_transformers() {
    agrees("qwen3");
}

/// Sequences of different lengths in one step, in pieces and beside each other, see nothing of each other.
#[test]
fn ragged_batches_agree_with_single_sequences() {
    for name in ["llama", "qwen2", "qwen3"] {
        let (model, expected) = checkpoint(name);
        let (first, second) = expected.prompt.split_at(11);
        let (mut whole, mut pieces) = (model.new_cache(), model.new_cache());
        model
            .forward(&mut [Segment {
                cache: &mut pieces,
                tokens: first,
                logits_for: LogitsFor::Nothing,
            }])
            .unwrap();
        let logits = model
            .forward(&mut [
                Segment {
                    cache: &mut whole,
                    tokens: &expected.prompt,
                    logits_for: LogitsFor::Last,
                },
                Segment {
                    cache: &mut model.new_cache(),
                    tokens: &[7],
                    logits_for: LogitsFor::Nothing,
                },
                Segment {
                    cache: &mut pieces,
                    tokens: second,
                    logits_for: LogitsFor::All,
                },
            ])
            .unwrap();
        let last = &expected.logits.last().unwrap().values;
        assert_eq!(
            (logits[0].rows(), logits[1].rows(), logits[2].rows()),
            (1, 0, second.len())
        );
        assert_close(logits[0].row(0), last, 1e-3, name);
        assert_close(logits[2].row(second.len() - 1), last, 1e-3, name);

        // Cut back to the shared prefix and gone on from there, nothing has changed.
        pieces.truncate(first.len());
        let again = model
            .forward(&mut [Segment {
                cache: &mut pieces,
                tokens: second,
                logits_for: LogitsFor::Last,
            }])
            .unwrap();
        assert_close(again[0].row(0), last, 1e-3, name);
    }
}

#[test]
fn impossible_requests_are_errors_and_leave_the_cache_alone() {
    let (model, expected) = checkpoint("qwen3");
    let mut cache = model.new_cache();
    let mut run = |tokens: &[u32]| {
        model
            .forward(&mut [Segment {
                cache: &mut cache,
                tokens,
                logits_for: LogitsFor::Last,
            }])
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    assert_eq!(run(&[]), Err("there are no tokens to go on from".into()));
    assert_eq!(
        run(&[160]),
        Err("token 160 is outside the vocabulary of 160".into())
    );
    assert_eq!(
        run(&[1; 257]),
        Err("the text needs 257 tokens and the model's context holds 256".into())
    );
    assert_eq!(run(&expected.prompt), Ok(()));
    assert_eq!(cache.len(), expected.prompt.len());
}
