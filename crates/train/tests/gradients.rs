//! The network on the processor: its scores are those of the model that samples, and its gradients those of transformers and
//! PEFT (`make_gradients.py`) and of plain differences.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use serde::Deserialize;
use warpsmith_kernels::training::{AdamW, AdamWStep};
use warpsmith_model::{
    Adapter, AdapterSettings, HostTensor, LogitsFor, Projection, Scaling, Segment, Transformer,
    Weights,
};
use warpsmith_train::network::{
    Actor, Critic, FineTuning, PolicyNetwork, Published, TokenScores, TokenSequence, Trainable,
    TrainingModel, ValueNetwork,
};

const GOLDEN: &str = include_str!("gradients.json");
const FAMILIES: [&str; 3] = ["llama", "qwen2", "qwen3"];

#[derive(Deserialize)]
struct Golden {
    sequences: Vec<Given>,
    cases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
struct Given {
    tokens: Vec<u32>,
    mask: Vec<bool>,
}

#[derive(Deserialize)]
struct Case {
    logprobs: Vec<f64>,
    entropies: Vec<f64>,
    values: Vec<f64>,
    gradients: BTreeMap<String, Summary>,
    value_gradients: BTreeMap<String, Summary>,
}

#[derive(Deserialize)]
struct Summary {
    norm: f64,
    wave: f64,
    first: Vec<f64>,
}

fn model_tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests")
}

fn weights(family: &str) -> Weights {
    Weights::load(&model_tests().join("checkpoints").join(family)).unwrap()
}

fn fine_tuning(case: &str) -> FineTuning {
    match case.strip_suffix("+adapter") {
        None => FineTuning::Full,
        Some(family) => {
            let folder = model_tests().join("adapters").join(family);
            FineTuning::Lora(Adapter::load(&folder).unwrap())
        }
    }
}

fn cpu_actor(weights: &Weights, fine_tuning: &FineTuning, seed: u64) -> PolicyNetwork {
    let model = TrainingModel::on_cpu(weights, fine_tuning, seed).unwrap();
    model.actor().unwrap()
}

fn actor(case: &str) -> PolicyNetwork {
    let family = case.trim_end_matches("+adapter");
    cpu_actor(&weights(family), &fine_tuning(case), 1)
}

fn critic(case: &str) -> ValueNetwork {
    let family = case.trim_end_matches("+adapter");
    let model = TrainingModel::on_cpu(&weights(family), &fine_tuning(case), 1).unwrap();
    let mut critic = model.critic(0.5).unwrap();
    let mut state = critic.state().unwrap();
    let head = state.get_mut("value_head.weight").unwrap();
    let numbers: Vec<f32> = wave(head.data().len(), 0.9)
        .map(|one| (0.2 * one) as f32)
        .collect();
    head.data_mut().copy_from_slice(&numbers);
    critic.restore(&state).unwrap();
    critic
}

fn wave(count: usize, step: f64) -> impl Iterator<Item = f64> {
    (1..=count).map(move |place| (step * place as f64).sin())
}

/// The loss of `make_gradients.py`, as slopes.
fn grads(scores: &TokenScores) -> TokenScores {
    let count = scores.logprobs.len();
    let of = |size: f64, step| wave(count, step).map(|one| (size * one) as f32).collect();
    TokenScores {
        logprobs: of(0.1, 1.3),
        entropies: of(0.05, 2.1),
    }
}

fn numbers(tensor: &HostTensor) -> Vec<f64> {
    tensor.data().iter().copied().map(f64::from).collect()
}

fn close(found: f64, expected: f64, size: f64, what: &str) {
    let limit = 2e-4 * (size.abs() + 1e-2);
    assert!(
        (found - expected).abs() <= limit,
        "{what}: {found}, expected {expected}"
    );
}

fn all_close(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        close(f64::from(*found), *expected, 1.0 + expected.abs(), what);
    }
}

fn gradients_agree(
    found: &BTreeMap<String, HostTensor>,
    expected: &BTreeMap<String, Summary>,
    what: &str,
) {
    for (name, expected) in expected {
        let found = numbers(&found[name]);
        let norm = found.iter().map(|one| one * one).sum::<f64>().sqrt();
        let with_wave: f64 = wave(found.len(), 0.7).zip(&found).map(|(w, g)| w * g).sum();
        let what = format!("{what}, {name}");
        close(norm, expected.norm, expected.norm, &what);
        close(with_wave, expected.wave, expected.norm, &what);
        for (found, expected_one) in found.iter().zip(&expected.first) {
            close(*found, *expected_one, expected.norm, &what);
        }
    }
}

fn agree(golden: &Golden) {
    let sequences: Vec<TokenSequence> = golden
        .sequences
        .iter()
        .map(|one| TokenSequence::new(one.tokens.clone(), &one.mask))
        .collect();
    let batch: Vec<&TokenSequence> = sequences.iter().collect();
    assert_eq!(golden.cases.len(), 2 * FAMILIES.len());
    for (name, case) in &golden.cases {
        let mut actor = actor(name);
        let scores = actor.score(&batch).unwrap();
        all_close(&scores.logprobs, &case.logprobs, name);
        all_close(&scores.entropies, &case.entropies, name);
        // In two parts: gradients add up.
        let first = sequences[0].loss_positions().len();
        let all = grads(&scores);
        let part = |from: usize, to: usize| TokenScores {
            logprobs: all.logprobs[from..to].to_vec(),
            entropies: all.entropies[from..to].to_vec(),
        };
        let count = all.logprobs.len();
        actor
            .backward(&batch[..1], &mut |_| Ok(part(0, first)))
            .unwrap();
        actor
            .backward(&batch[1..], &mut |_| Ok(part(first, count)))
            .unwrap();
        let found = actor.gradients().unwrap();
        let names: Vec<&String> = found.keys().collect();
        let expected: Vec<&String> = case.gradients.keys().collect();
        assert_eq!(names, expected, "{name}");
        gradients_agree(&found, &case.gradients, name);

        let mut critic = critic(name);
        all_close(&critic.values(&batch).unwrap(), &case.values, name);
        critic
            .backward(&batch, &mut |values| {
                Ok(wave(values.len(), 1.7)
                    .map(|one| (0.3 * one) as f32)
                    .collect())
            })
            .unwrap();
        let found = critic.gradients().unwrap();
        gradients_agree(&found, &case.value_gradients, &format!("{name}, critic"));
        let of_bias: f64 = wave(count, 1.7).map(|one| 0.3 * one).sum();
        close(
            numbers(&found["value_head.bias"])[0],
            of_bias,
            1.0,
            "the head's bias",
        );
    }
}

#[test]
fn gradients_agree_with_transformers_and_peft() {
    agree(&serde_json::from_str(GOLDEN).unwrap());
}

#[test]
#[ignore = "needs a Python with torch, transformers and peft, named by WARPSMITH_TRANSFORMERS"]
fn gradients_agree_with_transformers_and_peft_on_fresh_tokens() {
    let python = std::env::var_os("WARPSMITH_TRANSFORMERS").unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/make_gradients.py");
    for seed in ["1", "2"] {
        let output = Command::new(&python)
            .arg(&script)
            .arg(seed)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        agree(&serde_json::from_slice(&output.stdout).unwrap());
    }
}

fn sequence() -> TokenSequence {
    let tokens: Vec<u32> = (0..24).map(|place| place * 37 % 160).collect();
    let mask: Vec<bool> = (0..24).map(|place| place % 3 != 0).collect();
    TokenSequence::new(tokens, &mask)
}

/// What learns and what samples say the same of the same tokens.
#[test]
fn scores_are_those_of_the_model_that_samples() {
    let sequence = sequence();
    for family in FAMILIES {
        for case in [family.to_owned(), format!("{family}+adapter")] {
            let actor = actor(&case);
            let model = Transformer::new(Arc::new(
                actor.publish().unwrap().on(&weights(family)).unwrap(),
            ));
            let logits = model
                .forward(&mut [Segment {
                    cache: &mut model.new_cache(),
                    tokens: sequence.tokens(),
                    logits_for: LogitsFor::All,
                }])
                .unwrap()
                .remove(0);
            let expected: Vec<f64> = sequence
                .loss_positions()
                .iter()
                .map(|&place| {
                    let row = logits.row(place - 1);
                    let sum: f64 = row.iter().map(|one| f64::from(*one).exp()).sum();
                    f64::from(row[sequence.tokens()[place] as usize]) - sum.ln()
                })
                .collect();
            let scores = actor.score(&[&sequence]).unwrap();
            assert_eq!(scores.logprobs.len(), expected.len());
            for (found, expected) in scores.logprobs.iter().zip(&expected) {
                let off = (f64::from(*found) - expected).abs();
                assert!(off < 1e-4, "{case}: off by {off}");
            }
        }
    }
}

/// A small step along the gradient changes the loss by its length times the step.
#[test]
fn gradients_are_plain_differences() {
    let sequence = sequence();
    for case in ["llama", "qwen2+adapter", "qwen3"] {
        let mut actor = actor(case);
        let grads = grads(&actor.score(&[&sequence]).unwrap());
        let loss = |actor: &PolicyNetwork| {
            let scores = actor.score(&[&sequence]).unwrap();
            let dot = |left: &[f32], right: &[f32]| -> f64 {
                let pairs = left.iter().zip(right);
                pairs
                    .map(|(left, right)| f64::from(*left) * f64::from(*right))
                    .sum()
            };
            dot(&scores.logprobs, &grads.logprobs) + dot(&scores.entropies, &grads.entropies)
        };
        actor
            .backward(&[&sequence], &mut |_| Ok(grads.clone()))
            .unwrap();
        let gradients = actor.gradients().unwrap();
        let state = actor.state().unwrap();
        for (name, gradient) in &gradients {
            let length = numbers(gradient)
                .iter()
                .map(|one| one * one)
                .sum::<f64>()
                .sqrt();
            let step = 2e-3 / length.max(0.1);
            let mut moved = |by: f64| {
                let mut state = state.clone();
                let pairs = state[name].data().iter().zip(gradient.data());
                let changed = pairs.map(|(number, grad)| number + by as f32 * grad);
                let tensor = HostTensor::new(gradient.shape(), changed.collect());
                state.insert(name.clone(), tensor);
                actor.restore(&state).unwrap();
                loss(&actor)
            };
            let grad = (moved(step) - moved(-step)) / (2.0 * step);
            let expected = length * length;
            let off = (grad - expected).abs() / (expected + 1e-3);
            assert!(off < 0.03, "{case}, {name}: {grad}, expected {expected}");
        }
    }
}

/// No sequence sees another, whatever is beside it.
#[test]
fn sequences_side_by_side_are_alone() {
    let (long, short) = (sequence(), TokenSequence::new(vec![5, 6, 7], &[true; 3]));
    let actor = actor("qwen3");
    let together = actor.score(&[&short, &long]).unwrap();
    let alone = [&short, &long].map(|one| actor.score(&[one]).unwrap().logprobs);
    for (found, expected) in together.logprobs.iter().zip(alone.concat()) {
        assert!((found - expected).abs() < 1e-5);
    }
    // The first token follows from nothing.
    assert_eq!(short.loss_positions(), [1, 2]);
}

fn new_adapter() -> FineTuning {
    FineTuning::NewLora {
        settings: AdapterSettings {
            rank: 4,
            alpha: 8.0,
            scaling: Scaling::Rank,
            base: None,
        },
        targets: vec![Projection::Query, Projection::Down],
    }
}

/// A new adapter changes nothing at first; what it learns is what is published, and what is published stays as it was.
#[test]
fn a_new_adapter_begins_as_nothing_and_learns() {
    let before = weights("llama");
    let mut learner = cpu_actor(&before, &new_adapter(), 3);
    let sequence = sequence();
    let start = learner.score(&[&sequence]).unwrap();
    let plain = actor("llama").score(&[&sequence]).unwrap();
    for (one, other) in start.logprobs.iter().zip(&plain.logprobs) {
        assert!((one - other).abs() < 1e-5);
    }
    let adapter = |learner: &PolicyNetwork| match learner.publish().unwrap() {
        Published::Adapter(adapter) => adapter,
        Published::Weights(_) => panic!("only the adapter learns"),
    };
    let first = adapter(&learner);
    assert_eq!(first.factors().len(), 2 * 2);
    let mean = |scores: &TokenScores| -> f32 {
        scores.logprobs.iter().sum::<f32>() / scores.logprobs.len() as f32
    };
    let count = start.logprobs.len();
    for step in 1..=10 {
        learner
            .backward(&[&sequence], &mut |scores| {
                Ok(TokenScores {
                    logprobs: vec![-1.0 / count as f32; scores.logprobs.len()],
                    entropies: vec![0.0; scores.logprobs.len()],
                })
            })
            .unwrap();
        let update = AdamWStep {
            adamw: AdamW::default(),
            learning_rate: 0.02,
            step,
        };
        assert!(learner.step(&update).unwrap() > 0.0);
    }
    let after = learner.score(&[&sequence]).unwrap();
    assert!(mean(&after) > mean(&start) + 1.0, "{}", mean(&after));
    let last = adapter(&learner);
    assert_ne!(first.hash(), last.hash());
    let fresh = cpu_actor(&before, &FineTuning::Lora(last), 0);
    assert_eq!(fresh.score(&[&sequence]).unwrap(), after);
    let untouched = cpu_actor(&before, &FineTuning::Lora(first), 0);
    assert_eq!(untouched.score(&[&sequence]).unwrap(), start);
}

/// A batch that is not finite changes nothing and spoils nothing.
#[test]
fn a_gradient_that_is_not_finite_is_refused() {
    let mut actor = actor("llama");
    let sequence = sequence();
    let update = AdamWStep {
        adamw: AdamW::default(),
        learning_rate: 0.1,
        step: 1,
    };
    let learn = |actor: &mut PolicyNetwork, grad: f32| {
        actor
            .backward(&[&sequence], &mut |scores| {
                let count = scores.logprobs.len();
                Ok(TokenScores {
                    logprobs: vec![grad; count],
                    entropies: vec![0.0; count],
                })
            })
            .unwrap();
    };
    let before = actor.score(&[&sequence]).unwrap();
    learn(&mut actor, f32::NAN);
    let error = actor.step(&update).unwrap_err();
    assert_eq!(error.to_string(), "the gradient is not finite");
    assert_eq!(actor.score(&[&sequence]).unwrap(), before);
    learn(&mut actor, 0.01);
    assert!(actor.step(&update).unwrap().is_finite());
    assert_ne!(actor.score(&[&sequence]).unwrap(), before);
}
