//! Networks on a GPU against those on the processor. They need a GPU and are run by `scripts/gpu/kernels`.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

#[path = "../../model/tests/random_weights/mod.rs"]
mod random_weights;
mod until;

use std::collections::BTreeMap;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use random_weights::{random_weights, small};
use until::Until;
use warpsmith_kernels::training::{AdamW, AdamWStep};
use warpsmith_model::{
    Adapter, AdapterSettings, HostTensor, LoraPair, LoraTarget, ModelFamily, Projection, Scaling,
    Weights,
};
use warpsmith_schema::EpisodeId;
use warpsmith_train::TrainError;
use warpsmith_train::algorithms::Aggregation;
use warpsmith_train::data::Example;
use warpsmith_train::lr_schedule::LrSchedulerType;
use warpsmith_train::network::{
    Actor, Critic, FineTuning, PolicyNetwork, Published, TokenScores, TokenSequence, Trainable,
    TrainingModel,
};
use warpsmith_train::recipes::{self, Keeping, OptimizerSettings, SftSettings};

const FAMILIES: [(ModelFamily, usize); 3] = [
    (ModelFamily::Llama, 64),
    (ModelFamily::Qwen2, 128),
    (ModelFamily::Qwen3, 64),
];

/// Bfloat16, weights and all, against `f32`: a gradient may be off by this share of its length. Slopes of queries and keys, which
/// are small differences, come to 0.08; whatever is in the wrong place or not scaled comes to far more.
const OFF: f64 = 0.12;
/// And a value by this; they are about one.
const VALUE_OFF: f32 = 0.15;

fn on_cpu(weights: &Weights, fine_tuning: &FineTuning) -> TrainingModel {
    TrainingModel::on_cpu(weights, fine_tuning, 1).unwrap()
}

fn on_gpu(weights: &Weights, fine_tuning: &FineTuning) -> TrainingModel {
    TrainingModel::on_gpu(0, weights, fine_tuning, 1).unwrap()
}

fn random_tensor(random: &mut StdRng, dims: &[usize], size: f32) -> HostTensor {
    let count = dims.iter().product();
    let numbers: Vec<f32> = (0..count)
        .map(|_| random.random_range(-size..size))
        .collect();
    HostTensor::new(dims, numbers)
}

fn settings(rank: usize) -> AdapterSettings {
    AdapterSettings {
        rank,
        alpha: 8.0,
        scaling: Scaling::Rank,
        base: None,
    }
}

/// An adapter in the middle of its life, beside some projections, not in all layers.
fn adapter(weights: &Weights, targets: &[Projection]) -> FineTuning {
    let (rank, mut random) = (5, StdRng::seed_from_u64(3));
    let mut factors = BTreeMap::new();
    for (layer, parts) in weights.layers.iter().enumerate() {
        for &projection in targets {
            if layer == 1 && projection == targets[0] {
                continue;
            }
            let matrix = &parts.projection(projection).weight;
            let pair = LoraPair {
                a: random_tensor(&mut random, &[rank, matrix.columns()], 0.1),
                b: random_tensor(&mut random, &[matrix.rows(), rank], 0.1),
            };
            factors.insert(LoraTarget { layer, projection }, pair);
        }
    }
    FineTuning::Lora(Adapter::new(settings(rank), factors).unwrap())
}

fn cases(weights: &Weights) -> [(&'static str, FineTuning); 3] {
    let some = [Projection::Value, Projection::Query, Projection::Up];
    [
        ("everything", FineTuning::Full),
        ("adapter", adapter(weights, &Projection::ALL)),
        ("adapter beside some", adapter(weights, &some)),
    ]
}

fn sequences(lengths: &[usize], vocabulary: usize) -> Vec<TokenSequence> {
    let mut random = StdRng::seed_from_u64(lengths.iter().sum::<usize>() as u64);
    let each = lengths.iter().map(|length| {
        let tokens = (0..*length)
            .map(|_| random.random_range(0..vocabulary as u32))
            .collect();
        let mask: Vec<bool> = (0..*length).map(|place| place % 3 != 0).collect();
        TokenSequence::new(tokens, &mask)
    });
    each.collect()
}

fn wave(count: usize, size: f32, step: f32) -> Vec<f32> {
    (1..=count)
        .map(|place| size * (step * place as f32).sin())
        .collect()
}

fn grads(scores: &TokenScores) -> TokenScores {
    let count = scores.logprobs.len();
    TokenScores {
        logprobs: wave(count, 0.02, 1.3),
        entropies: wave(count, 0.01, 2.1),
    }
}

fn numbers(tensor: &HostTensor) -> Vec<f32> {
    tensor.data().to_vec()
}

fn length(of: impl Iterator<Item = f64>) -> f64 {
    of.map(|one| one * one).sum::<f64>().sqrt()
}

/// Notes all that is wrong, not the first alone.
fn compare(
    what: &str,
    found: &BTreeMap<String, HostTensor>,
    expected: &BTreeMap<String, HostTensor>,
    off: &mut Vec<String>,
) {
    let names = |of: &BTreeMap<String, HostTensor>| of.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{what}");
    for (name, expected) in expected {
        let found = &found[name];
        assert_eq!(found.shape(), expected.shape(), "{what}, {name}");
        let (found, expected) = (numbers(found), numbers(expected));
        let pairs = found.iter().zip(&expected);
        let apart = length(pairs.map(|(one, two)| f64::from(*one) - f64::from(*two)));
        let whole = length(expected.iter().copied().map(f64::from));
        let share = apart / whole.max(1e-9);
        if share.is_nan() || share > OFF {
            let some = |of: &[f32]| format!("{:?}", &of[..of.len().min(4)]);
            off.push(format!(
                "{what}, {name}: off by {share:.4} of {whole:.3e}; {} for {}",
                some(&found),
                some(&expected)
            ));
        }
    }
}

fn furthest(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let pairs = found.iter().zip(expected);
    pairs.fold(0.0, |most, (one, two)| {
        if one.is_finite() {
            f32::max(most, (one - two).abs())
        } else {
            f32::INFINITY
        }
    })
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn actors_have_the_gradients_of_the_processor() {
    let mut off = Vec::new();
    for (family, head_dim) in FAMILIES {
        let weights = random_weights(small(family, head_dim), 7);
        let sequences = sequences(&[50, 2, 90, 31], weights.config.vocabulary);
        let batch: Vec<&TokenSequence> = sequences.iter().collect();
        for (case, fine_tuning) in cases(&weights) {
            let what = format!("{family:?}, {case}");
            let mut expected = on_cpu(&weights, &fine_tuning).actor().unwrap();
            let mut found = on_gpu(&weights, &fine_tuning).actor().unwrap();
            let (one, two) = (
                found.score(&batch).unwrap(),
                expected.score(&batch).unwrap(),
            );
            let logprobs = furthest(&one.logprobs, &two.logprobs);
            let entropies = furthest(&one.entropies, &two.entropies);
            if logprobs > 0.1 || entropies > 0.05 {
                off.push(format!("{what}: scores by {logprobs}, {entropies}"));
            }
            // Twice, so that gradients add up.
            for _ in 0..2 {
                found
                    .backward(&batch, &mut |scores| Ok(grads(scores)))
                    .unwrap();
                expected
                    .backward(&batch, &mut |scores| Ok(grads(scores)))
                    .unwrap();
            }
            compare(
                &what,
                &found.gradients().unwrap(),
                &expected.gradients().unwrap(),
                &mut off,
            );
        }
    }
    assert!(off.is_empty(), "\n{}", off.join("\n"));
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn critics_have_the_gradients_of_the_processor() {
    let mut off = Vec::new();
    for (family, head_dim) in FAMILIES {
        let weights = random_weights(small(family, head_dim), 8);
        let sequences = sequences(&[50, 2, 90, 31], weights.config.vocabulary);
        let batch: Vec<&TokenSequence> = sequences.iter().collect();
        for (case, fine_tuning) in cases(&weights) {
            let what = format!("{family:?}, {case}");
            let mut expected = on_cpu(&weights, &fine_tuning).critic(0.25).unwrap();
            let model = on_gpu(&weights, &fine_tuning);
            let mut found = model.critic(0.25).unwrap();
            // At first all it expects is what it was told.
            for value in found.values(&batch).unwrap() {
                assert!((value - 0.25).abs() < 1e-6, "{what}: {value}");
            }
            let mut state = expected.state().unwrap();
            let head = state.get_mut("value_head.weight").unwrap();
            *head = random_tensor(&mut StdRng::seed_from_u64(4), head.shape(), 0.2);
            expected.restore(&state).unwrap();
            found.restore(&state).unwrap();
            let (one, two) = (
                found.values(&batch).unwrap(),
                expected.values(&batch).unwrap(),
            );
            let values = furthest(&one, &two);
            if values.is_nan() || values > VALUE_OFF {
                off.push(format!("{what}: values by {values}"));
            }
            for _ in 0..2 {
                found
                    .backward(&batch, &mut |values| Ok(wave(values.len(), 0.02, 1.7)))
                    .unwrap();
                expected
                    .backward(&batch, &mut |values| Ok(wave(values.len(), 0.02, 1.7)))
                    .unwrap();
            }
            compare(
                &what,
                &found.gradients().unwrap(),
                &expected.gradients().unwrap(),
                &mut off,
            );
        }
    }
    assert!(off.is_empty(), "\n{}", off.join("\n"));
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn grads_that_are_known_beforehand_lead_to_the_same_gradients() {
    for (family, head_dim) in FAMILIES {
        let weights = random_weights(small(family, head_dim), 7);
        let sequences = sequences(&[50, 2, 90, 31], weights.config.vocabulary);
        let batch: Vec<&TokenSequence> = sequences.iter().collect();
        let said = sequences.iter().map(|one| one.loss_positions().len()).sum();
        let grads = wave(said, 0.02, 1.3);
        for (case, fine_tuning) in cases(&weights) {
            let what = format!("{family:?}, {case}");
            let model = on_gpu(&weights, &fine_tuning);
            let (mut one, mut two) = (model.actor().unwrap(), model.actor().unwrap());
            // Often enough for the pass to be recorded.
            for _ in 0..3 {
                let mut heard = Vec::new();
                one.backward(&batch, &mut |scores| {
                    heard.clone_from(&scores.logprobs);
                    Ok(TokenScores {
                        logprobs: grads.clone(),
                        entropies: vec![0.0; said],
                    })
                })
                .unwrap();
                assert_eq!(two.backward_known(&batch, &grads).unwrap(), heard, "{what}");
            }
            let (one, two) = (one.gradients().unwrap(), two.gradients().unwrap());
            same(&one, &two, &what);
        }
    }
}

fn same(one: &BTreeMap<String, HostTensor>, two: &BTreeMap<String, HostTensor>, what: &str) {
    assert!(one.keys().eq(two.keys()), "{what}");
    for (name, tensor) in one {
        let bits = |of: &HostTensor| {
            numbers(of)
                .iter()
                .map(|one| one.to_bits())
                .collect::<Vec<_>>()
        };
        assert_eq!(tensor.shape(), two[name].shape(), "{what}, {name}");
        assert!(bits(tensor) == bits(&two[name]), "{what}, {name}");
    }
}

fn update(step: u64) -> AdamWStep {
    AdamWStep {
        adamw: AdamW::default(),
        learning_rate: 1e-3,
        step,
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn learning_hears_what_scoring_said() {
    let weights = random_weights(small(ModelFamily::Qwen2, 128), 9);
    let vocabulary = weights.config.vocabulary;
    for (case, fine_tuning) in cases(&weights) {
        let model = on_gpu(&weights, &fine_tuning);
        let (mut actor, mut critic) = (model.actor().unwrap(), model.critic(0.0).unwrap());
        // The second needs more room than there is.
        for (round, lengths) in [vec![30, 60], vec![800, 500, 3], vec![30, 60]]
            .into_iter()
            .enumerate()
        {
            let sequences = sequences(&lengths, vocabulary);
            let batch: Vec<&TokenSequence> = sequences.iter().collect();
            let said = actor.score(&batch).unwrap();
            let expected = critic.values(&batch).unwrap();
            assert_eq!(actor.score(&batch).unwrap(), said, "{case}");
            let mut heard = TokenScores::default();
            actor
                .backward(&batch, &mut |scores| {
                    heard = scores.clone();
                    Ok(grads(scores))
                })
                .unwrap();
            assert_eq!(heard, said, "{case}, round {round}");
            let mut seen = Vec::new();
            critic
                .backward(&batch, &mut |values| {
                    seen = values.to_vec();
                    Ok(wave(values.len(), 0.1, 0.3))
                })
                .unwrap();
            assert_eq!(seen, expected, "{case}, round {round}");
            assert!(actor.step(&update(round as u64 + 1)).unwrap() > 0.0);
            assert!(critic.step(&update(round as u64 + 1)).unwrap() > 0.0);
            assert_ne!(
                actor.score(&batch).unwrap(),
                said,
                "{case}: nothing changed"
            );
            assert_ne!(critic.values(&batch).unwrap(), expected, "{case}");
        }
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn states_go_round_and_are_the_processors() {
    for (family, head_dim) in FAMILIES {
        let weights = random_weights(small(family, head_dim), 10);
        let sequences = sequences(&[40, 25], weights.config.vocabulary);
        let batch: Vec<&TokenSequence> = sequences.iter().collect();
        for (case, fine_tuning) in cases(&weights) {
            let what = format!("{family:?}, {case}");
            let model = on_gpu(&weights, &fine_tuning);
            let step = |network: &mut PolicyNetwork, number| {
                network
                    .backward(&batch, &mut |scores| Ok(grads(scores)))
                    .unwrap();
                network.step(&update(number)).unwrap()
            };
            let mut one = model.actor().unwrap();
            let beginning = on_cpu(&weights, &fine_tuning).actor().unwrap();
            same(&one.state().unwrap(), &beginning.state().unwrap(), &what);
            step(&mut one, 1);
            let kept = one.state().unwrap();
            let mut two = model.actor().unwrap();
            two.restore(&kept).unwrap();
            same(&two.state().unwrap(), &kept, &what);
            let lengths = [step(&mut one, 2), step(&mut two, 2)];
            assert_eq!(lengths[0].to_bits(), lengths[1].to_bits(), "{what}");
            same(&one.state().unwrap(), &two.state().unwrap(), &what);
            // A state that goes from one kind of device to the other says the same there.
            let mut processor = beginning;
            processor.restore(&kept).unwrap();
            two.restore(&processor.state().unwrap()).unwrap();
            same(&two.state().unwrap(), &kept, &what);
            // What is published is what the processor would publish.
            let said = published(&weights, &two.publish().unwrap(), &fine_tuning, &batch);
            let expected = processor.score(&batch).unwrap();
            let off = furthest(&said.logprobs, &expected.logprobs);
            assert!(off < 1e-3, "{what}: {off}");
            // An incomplete one changes nothing.
            let mut less = kept.clone();
            less.pop_last();
            assert!(matches!(two.restore(&less), Err(TrainError::Model(_))));
            same(&two.state().unwrap(), &kept, &what);

            let mut critic = model.critic(0.5).unwrap();
            let beginning = on_cpu(&weights, &fine_tuning).critic(0.5).unwrap();
            same(&critic.state().unwrap(), &beginning.state().unwrap(), &what);
            critic
                .backward(&batch, &mut |values| Ok(wave(values.len(), 0.1, 0.3)))
                .unwrap();
            critic.step(&update(1)).unwrap();
            let kept = critic.state().unwrap();
            let mut other = model.critic(0.0).unwrap();
            other.restore(&kept).unwrap();
            same(&other.state().unwrap(), &kept, &what);
        }
    }
}

/// What the processor thinks with what was published.
fn published(
    weights: &Weights,
    published: &Published,
    fine_tuning: &FineTuning,
    batch: &[&TokenSequence],
) -> TokenScores {
    match published {
        Published::Adapter(adapter) => {
            assert!(!matches!(fine_tuning, FineTuning::Full));
            let fine_tuning = FineTuning::Lora(adapter.clone());
            on_cpu(weights, &fine_tuning).actor().unwrap().score(batch)
        }
        Published::Weights(weights) => {
            assert!(matches!(fine_tuning, FineTuning::Full));
            on_cpu(weights, fine_tuning).actor().unwrap().score(batch)
        }
    }
    .unwrap()
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn an_update_without_a_gradient_only_decays() {
    let weights = random_weights(small(ModelFamily::Llama, 64), 12);
    let fine_tuning = adapter(&weights, &Projection::ALL);
    let model = on_gpu(&weights, &fine_tuning);
    let sequences = sequences(&[40], weights.config.vocabulary);
    let mut actor = model.actor().unwrap();
    actor
        .backward(&[&sequences[0]], &mut |scores| Ok(grads(scores)))
        .unwrap();
    // A gradient that is not finite is said and forgotten.
    let before = actor.state().unwrap();
    actor
        .backward(&[&sequences[0]], &mut |scores| {
            let mut grads = grads(scores);
            grads.logprobs[0] = f32::NAN;
            Ok(grads)
        })
        .unwrap();
    let told = actor.step(&update(1));
    assert!(
        matches!(told, Err(TrainError::NotFinite { .. })),
        "{told:?}"
    );
    same(&actor.state().unwrap(), &before, "not finite");
    let length = actor.step(&update(1)).unwrap();
    assert!(length.abs() < 1e-12, "{length}");
}

fn example(number: usize, vocabulary: usize) -> Example {
    Example {
        episode: EpisodeId {
            task: format!("task {number}"),
            sample: 1,
        },
        sequences: sequences(&[20 + number, 12], vocabulary),
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn a_run_learns_and_goes_on_bit_for_bit() {
    let weights = random_weights(small(ModelFamily::Qwen2, 64), 11);
    let vocabulary = weights.config.vocabulary;
    let examples: Vec<Example> = (0..6).map(|number| example(number, vocabulary)).collect();
    let fine_tuning = FineTuning::NewLora {
        settings: settings(8),
        targets: Projection::ALL.to_vec(),
    };
    let recipe = SftSettings {
        epochs: 4,
        batch: 3,
        optimizer: OptimizerSettings {
            learning_rate: 2e-2,
            warmup_steps: 1,
            lr_scheduler_type: LrSchedulerType::Constant,
            adamw: AdamW::default(),
        },
        aggregation: Aggregation::Token,
        tokens_per_microbatch: 64,
        seed: 5,
        evaluate_every: 4,
    };
    let run = |folder: &Path, mut until: Until| {
        let model = TrainingModel::on_gpu(0, &weights, &fine_tuning, 2).unwrap();
        let mut actor = model.actor().unwrap();
        let keeping = Keeping {
            folder: folder.to_path_buf(),
            origin: folder.to_path_buf(),
            every: 2,
            checkpoints: 2,
        };
        let held_out = &examples[..1];
        recipes::sft(
            &mut actor, &examples, held_out, &recipe, &keeping, &mut until,
        )
        .unwrap();
        let losses = warpsmith_train::metrics::read(folder).unwrap();
        let losses: Vec<f64> = losses.iter().map(|(_, numbers)| numbers["loss"]).collect();
        (actor.state().unwrap(), losses)
    };
    let (whole, parts) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (expected, losses) = run(whole.path(), Until(u64::MAX));
    assert_eq!(losses.len(), 8);
    assert!(losses[7] < losses[0] - 0.2, "{losses:?}");
    for stop in [1, 2, 100] {
        let (state, again) = run(parts.path(), Until(stop));
        let bits = |of: &[f64]| of.iter().map(|one| one.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&again), bits(&losses[..again.len()]));
        if stop == 100 {
            same(&state, &expected, "the end");
        }
    }
}
