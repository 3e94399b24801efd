//! The transformer on a GPU against the one on the processor. They need a GPU and are run by `scripts/gpu/kernels`.
#![cfg(feature = "local")]
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod random_weights;

use std::sync::Arc;

use random_weights::{random_weights, small};
use warpsmith_kernels::{Gpu, RowSampling};
use warpsmith_model::gpu::{DeviceSegment, DeviceTransformer, KvCapacity};
use warpsmith_model::{
    BatchLimits, Engine, EngineEvent, GenerationRequest, HostTensor, LogitsFor, ModelFamily,
    Sampler, Segment, Tokenizer, Transformer,
};

const ROOM: KvCapacity = KvCapacity {
    sequences: 8,
    slots: 10,
    positions: 300,
    rows: 100,
};

/// Bfloat16 rounds every product's inputs to eight bits; over a few layers that comes to a few hundredths of the largest logit.
const ROUNDED: f32 = 0.04;

fn both(family: ModelFamily, head_dim: usize) -> (Transformer, DeviceTransformer) {
    let weights = Arc::new(random_weights(small(family, head_dim), 7));
    let device = DeviceTransformer::new(Gpu::open(0).unwrap(), &weights, ROOM).unwrap();
    (Transformer::new(weights), device)
}

fn on_processor(model: &Transformer, tokens: &[u32]) -> HostTensor {
    let mut cache = model.new_cache();
    let mut segments = [Segment {
        cache: &mut cache,
        tokens,
        logits_for: LogitsFor::All,
    }];
    model.forward(&mut segments).unwrap().remove(0)
}

fn off(seen: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(seen.len(), wanted.len());
    let size = wanted.iter().fold(0.0f32, |most, one| most.max(one.abs()));
    let pairs = seen.iter().zip(wanted);
    let worst = pairs.fold(0.0f32, |worst, (one, two)| {
        assert!(one.is_finite());
        worst.max((one - two).abs())
    });
    worst / size
}

fn tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    (0..count)
        .map(|one| ((one * 7919 + 13) % vocabulary) as u32)
        .collect()
}

const FAMILIES: [(ModelFamily, usize); 4] = [
    (ModelFamily::Llama, 64),
    (ModelFamily::Qwen2, 128),
    (ModelFamily::Qwen3, 128),
    (ModelFamily::Qwen2, 64),
];

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn logits_are_those_of_the_processor() {
    for (family, head_dim) in FAMILIES {
        let (model, mut device) = both(family, head_dim);
        let tokens = tokens(150, 1000);
        let wanted = on_processor(&model, &tokens);
        let mut cache = device.new_cache().unwrap();
        // In two parts: the second continues what the first left.
        let first = device.logits(&mut cache, &tokens[..70]).unwrap();
        let second = device.logits(&mut cache, &tokens[70..]).unwrap();
        let seen = [first.data(), second.data()].concat();
        let worst = off(&seen, wanted.data());
        assert!(worst < ROUNDED, "{family:?} {head_dim}: {worst}");
        assert_eq!(cache.len(), 150);
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn a_reply_is_the_same_however_it_is_made() {
    for (family, head_dim) in FAMILIES {
        let (_, mut device) = both(family, head_dim);
        let prompts: Vec<Vec<u32>> = [3, 64, 65, 120, 1].map(|count| tokens(count, 900)).to_vec();
        // Alone, each from its whole text again and again: prompts only.
        let alone: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| {
                let mut text = prompt.clone();
                for step in 0..12 {
                    let mut cache = device.new_cache().unwrap();
                    let mut segments = [DeviceSegment {
                        cache: &mut cache,
                        tokens: &text,
                        choice: Some((RowSampling::GREEDY, step)),
                    }];
                    let chosen = device.step(&mut segments).unwrap()[0].unwrap();
                    text.push(chosen.token);
                }
                text.split_off(prompt.len())
            })
            .collect();
        // Together, each step one token: graphs, and a batch that is filled up.
        let mut caches: Vec<_> = prompts
            .iter()
            .map(|_| device.new_cache().unwrap())
            .collect();
        let mut replies = vec![Vec::new(); prompts.len()];
        for step in 0..12u64 {
            let mut segments: Vec<DeviceSegment<'_>> = caches
                .iter_mut()
                .zip(&prompts)
                .zip(&replies)
                .map(|((cache, prompt), reply): (_, &Vec<u32>)| DeviceSegment {
                    cache,
                    tokens: reply.last().map_or(&prompt[..], std::slice::from_ref),
                    choice: Some((RowSampling::GREEDY, step)),
                })
                .collect();
            let chosen = device.step(&mut segments).unwrap();
            for (reply, chosen) in replies.iter_mut().zip(chosen) {
                reply.push(chosen.unwrap().token);
            }
        }
        // Sums are made in another order, so near ties may fall otherwise; most of each reply must be the same.
        let same: usize = alone
            .iter()
            .zip(&replies)
            .map(|(one, two)| one.iter().zip(two).take_while(|(a, b)| a == b).count())
            .sum();
        assert!(
            same >= 45,
            "{family:?} {head_dim}: {same} of 60 tokens\n{alone:?}\n{replies:?}"
        );
    }
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn a_prefix_is_copied_and_slots_come_back() {
    let (_, mut device) = both(ModelFamily::Llama, 64);
    let tokens = tokens(90, 900);
    let mut whole = device.new_cache().unwrap();
    let wanted = device.logits(&mut whole, &tokens).unwrap();
    let mut copy = device.prefix(&whole, 50).unwrap().unwrap();
    assert_eq!(copy.len(), 50);
    let seen = device.logits(&mut copy, &tokens[50..]).unwrap();
    let worst = off(seen.data(), &wanted.data()[50 * wanted.columns()..]);
    assert!(worst < 0.01, "{worst}");
    let mut taken = Vec::new();
    while let Some(cache) = device.new_cache() {
        taken.push(cache);
    }
    assert_eq!(taken.len(), ROOM.slots - 2);
    drop(taken.pop());
    assert!(device.new_cache().is_some());
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn log_probabilities_are_the_models_own() {
    let (_, mut device) = both(ModelFamily::Qwen3, 128);
    let prompt = tokens(20, 900);
    let choice = RowSampling {
        temperature: 0.8,
        top_p: 0.9,
        seed: 5,
    };
    let mut cache = device.new_cache().unwrap();
    let (mut text, mut recorded) = (prompt.clone(), Vec::new());
    for step in 0..20 {
        let from = cache.len();
        let mut segments = [DeviceSegment {
            cache: &mut cache,
            tokens: &text[from..],
            choice: Some((choice, step)),
        }];
        let chosen = device.step(&mut segments).unwrap()[0].unwrap();
        text.push(chosen.token);
        recorded.push(chosen.log_probability);
    }
    let mut again = device.new_cache().unwrap();
    let logits = device.logits(&mut again, &text).unwrap();
    for (step, recorded) in recorded.iter().enumerate() {
        let row = logits.row(prompt.len() + step - 1);
        let highest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = row.iter().map(|one| (one - highest).exp()).sum();
        let own = row[text[prompt.len() + step] as usize] - highest - sum.ln();
        assert!(
            (own - recorded).abs() < 0.05,
            "step {step}: {own} and {recorded}"
        );
    }
    // The same seed draws the same.
    let mut cache = device.new_cache().unwrap();
    let mut segments = [DeviceSegment {
        cache: &mut cache,
        tokens: &prompt,
        choice: Some((choice, 0)),
    }];
    assert_eq!(
        device.step(&mut segments).unwrap()[0].unwrap().token,
        text[20]
    );
}

#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn what_cannot_work_is_said() {
    let (_, mut device) = both(ModelFamily::Llama, 64);
    let mut cache = device.new_cache().unwrap();
    let long = tokens(301, 900);
    assert!(device.logits(&mut cache, &long).is_err());
    assert!(device.logits(&mut cache, &[]).is_err());
    assert!(device.logits(&mut cache, &[1000]).is_err());
    assert!(cache.is_empty());
    let config = small(ModelFamily::Llama, 32);
    let refused = DeviceTransformer::new(Gpu::open(0).unwrap(), &random_weights(config, 1), ROOM);
    assert!(refused.unwrap_err().to_string().contains("heads of 32"));
}

/// It is read from the binary: the tests' own folder may be on another machine.
fn words() -> Arc<Tokenizer> {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs_err::write(folder.path().join(name), text).unwrap();
    write("tokenizer.json", include_str!("tokens/tokenizer.json"));
    write("config.json", "{\"eos_token_id\": null}");
    Arc::new(Tokenizer::load(folder.path()).unwrap())
}

/// The same requests, with room for all and with room for few, together with what is kept of those that ended.
#[test]
#[ignore = "needs a GPU: scripts/gpu/kernels"]
fn an_engine_generates_on_the_device() {
    let weights = Arc::new(random_weights(small(ModelFamily::Qwen2, 64), 7));
    let words = words();
    let replies = |slots: usize, sequences: usize| -> Vec<Vec<u32>> {
        let room = KvCapacity {
            slots,
            sequences,
            ..ROOM
        };
        let device = DeviceTransformer::new(Gpu::open(0).unwrap(), &weights, room).unwrap();
        let limits = BatchLimits {
            sequences,
            prompt_tokens_per_step: 100,
            kept_tokens: 10_000,
        };
        let mut engine = Engine::new(device, words.clone(), limits);
        let mut order = Vec::new();
        for number in 0..12 {
            // Every second one begins like the one before.
            let prompt = tokens(40 + number / 2 * 9 + number % 2 * 5, 300);
            let request = GenerationRequest {
                prompt,
                sampling: Sampler::GREEDY,
                max_tokens: 10,
                stop: Vec::new(),
            };
            order.push(engine.submit(request).unwrap());
        }
        let mut replies = vec![Vec::new(); order.len()];
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let EngineEvent::Done { request, reply } = event {
                    let place = order.iter().position(|one| *one == request).unwrap();
                    replies[place] = reply.tokens.iter().map(|one| one.token).collect();
                }
            }
        }
        replies
    };
    let plenty = replies(32, 16);
    assert!(plenty.iter().all(|reply| !reply.is_empty()));
    let scarce = replies(3, 3);
    let pairs = plenty.iter().zip(&scarce);
    let same = pairs.filter(|(one, two)| one == two).count();
    // Sums are made in another order, so near ties may fall otherwise.
    assert!(same >= 10, "{same} of 12\n{plenty:?}\n{scarce:?}");
}
