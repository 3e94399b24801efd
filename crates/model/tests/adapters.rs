//! Adapters against PEFT, on the folders that `make_adapters.py` made.
#![cfg(feature = "local")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use warpsmith_model::policy::{ChatModel, RunsOn};
use warpsmith_model::quantized::{GgmlType, QuantizedMatrix};
use warpsmith_model::{
    Adapter, BatchLimits, Engine, EngineEvent, GenerationRequest, HostTensor, LogitsFor, Matrix,
    Projection, SafetensorsFile, Sampler, Scaling, Segment, Tokenizer, Transformer, Weights,
};

use crate::quantize::quantize;

const NAMES: [&str; 4] = ["llama", "qwen2", "qwen3", "qwen3-second"];

#[derive(Deserialize)]
struct Expected {
    base: String,
    below: Option<String>,
    prompt: Vec<u32>,
    logits: Vec<ExpectedLogits>,
    continuation: Vec<u32>,
}

#[derive(Deserialize)]
struct ExpectedLogits {
    position: usize,
    values: Vec<f32>,
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn folder(name: &str) -> PathBuf {
    tests().join("adapters").join(name)
}

fn expected(name: &str) -> Expected {
    let text = fs_err::read_to_string(folder(name).join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn base(name: &str) -> Weights {
    Weights::load(&tests().join("checkpoints").join(name)).unwrap()
}

/// The adapter, with the one it is made to lie on, on its base.
fn stacked(name: &str) -> (Weights, Expected) {
    let expected = expected(name);
    let mut weights = base(&expected.base);
    for name in expected.below.as_deref().into_iter().chain([name]) {
        let adapter = Adapter::load(&folder(name)).unwrap();
        weights = weights.stacked(&adapter).unwrap();
    }
    (weights, expected)
}

fn logits(weights: &Weights, tokens: &[u32]) -> HostTensor {
    let model = Transformer::new(Arc::new(weights.clone()));
    let mut segments = [Segment {
        cache: &mut model.new_cache(),
        tokens,
        logits_for: LogitsFor::All,
    }];
    model.forward(&mut segments).unwrap().remove(0)
}

fn worst(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    left.iter()
        .zip(right)
        .map(|(left, right)| (left - right).abs())
        .fold(0.0, f32::max)
}

fn engine(weights: Weights, limits: BatchLimits) -> Engine {
    let place = tempfile::tempdir().unwrap();
    let file = "tokenizer.json";
    fs_err::copy(tests().join("tokens").join(file), place.path().join(file)).unwrap();
    let tokenizer = Tokenizer::load(place.path()).unwrap();
    Engine::new(
        Transformer::new(Arc::new(weights)),
        Arc::new(tokenizer),
        limits,
    )
}

fn greedy(prompt: &[u32], max_tokens: usize) -> GenerationRequest {
    GenerationRequest {
        prompt: prompt.to_vec(),
        sampling: Sampler::GREEDY,
        max_tokens,
        stop: Vec::new(),
    }
}

#[test]
fn stacked_adapters_agree_with_peft() {
    for name in NAMES {
        let (weights, expected) = stacked(name);
        let found = logits(&weights, &expected.prompt);
        let plain = logits(&base(&expected.base), &expected.prompt);
        for one in &expected.logits {
            let worst = worst(found.row(one.position), &one.values);
            assert!(worst <= 1e-3, "{name}, {}: off by {worst}", one.position);
        }
        assert!(self::worst(found.data(), plain.data()) > 1.0, "{name}");
    }
}

/// In one batch, in pieces, and from kept prefixes.
#[test]
fn continuations_equal_pefts() {
    for name in NAMES {
        let (weights, expected) = stacked(name);
        let limits = BatchLimits {
            prompt_tokens_per_step: 7,
            ..BatchLimits::default()
        };
        let mut engine = engine(weights, limits);
        let other = engine.submit(greedy(&expected.prompt[5..], 9)).unwrap();
        let request = engine.submit(greedy(&expected.prompt, 40)).unwrap();
        let mut replies = BTreeMap::new();
        while !engine.is_idle() {
            for event in engine.step().unwrap() {
                if let EngineEvent::Done { request, reply } = event {
                    replies.insert(request, reply);
                }
            }
        }
        assert_eq!(replies[&other].tokens.len(), 9);
        let again = engine
            .generate(greedy(&expected.prompt, 40), |_| {})
            .unwrap();
        assert_eq!(again.reused_tokens, expected.prompt.len() - 1);
        for reply in [&replies[&request], &again] {
            let tokens: Vec<u32> = reply.tokens.iter().map(|one| one.token).collect();
            assert_eq!(tokens, expected.continuation, "{name}");
        }
    }
}

#[test]
fn merged_weights_equal_stacked_ones() {
    for name in NAMES {
        let (weights, expected) = stacked(name);
        let merged = weights.merged();
        assert!(
            merged
                .layers
                .iter()
                .all(|layer| layer.query.adapters.is_empty())
        );
        let (left, right) = (
            logits(&weights, &expected.prompt),
            logits(&merged, &expected.prompt),
        );
        let worst = worst(left.data(), right.data());
        assert!(worst <= 1e-4, "{name}: off by {worst}");
    }
}

/// A quantised base keeps its format below the adapter; merged, its own numbers are in the sum.
#[test]
fn adapters_lie_on_quantised_bases() {
    for ggml_type in [GgmlType::Q8_0, GgmlType::Q4_0] {
        let mut weights = base("llama");
        for layer in &mut weights.layers {
            for linear in [&mut layer.query, &mut layer.gate, &mut layer.down] {
                let Matrix::Full(tensor) = &linear.weight else {
                    panic!("a checkpoint is not quantised")
                };
                let tensor = QuantizedMatrix::new(&quantize(tensor, ggml_type)).unwrap();
                linear.weight = Matrix::Quantized(Arc::new(tensor));
            }
        }
        let adapter = Adapter::load(&folder("llama")).unwrap();
        let stacked = weights.stacked(&adapter).unwrap();
        assert!(matches!(
            stacked.layers[1].gate.weight,
            Matrix::Quantized(_)
        ));
        let prompt = expected("llama").prompt;
        let merged = logits(&stacked.merged(), &prompt).into_data();
        let difference: Vec<f32> = logits(&stacked, &prompt)
            .data()
            .iter()
            .zip(&merged)
            .map(|(left, right)| left - right)
            .collect();
        let length = |numbers: &[f32]| numbers.iter().map(|one| one * one).sum::<f32>().sqrt();
        // Inputs of quantised matrices are rounded to eight bits, those of merged ones are not.
        let share = length(&difference) / length(&merged);
        assert!(share <= 0.05, "{ggml_type:?}: off by {share}");
    }
}

#[test]
fn saved_adapters_are_the_same_adapters() {
    for name in NAMES {
        let place = tempfile::tempdir().unwrap();
        let adapter = Adapter::load(&folder(name)).unwrap();
        adapter.save(place.path()).unwrap();
        let again = Adapter::load(place.path()).unwrap();
        assert_eq!(again.settings(), adapter.settings());
        assert_eq!(again.projections(), adapter.projections());
        assert_eq!(again.hash(), adapter.hash());
    }
    let second = Adapter::load(&folder("qwen3-second")).unwrap();
    assert_eq!(second.settings().scaling, Scaling::RootOfRank);
    assert!((second.settings().scale() - 2.0 / 2f32.sqrt()).abs() < 1e-6);
    assert_eq!(second.projections().len(), Projection::ALL.len());
}

/// In 8 bits each number is within half a step of what it was, and nothing changes when it is written again.
#[test]
fn an_adapter_in_8_bits_is_nearly_the_same() {
    let place = tempfile::tempdir().unwrap();
    for name in NAMES {
        let adapter = Adapter::load(&folder(name)).unwrap();
        let at = |number: u32| place.path().join(format!("{name}-{number}"));
        adapter.save_int8(&at(1)).unwrap();
        let once = Adapter::load(&at(1)).unwrap();
        assert_eq!(once.settings(), adapter.settings());
        let rank = adapter.settings().rank;
        for (place, exact) in adapter.factors() {
            let near = &once.factors()[place];
            for (index, (one, other)) in exact.a.data().iter().zip(near.a.data()).enumerate() {
                let row = index / exact.a.columns() * exact.a.columns();
                let row = &exact.a.data()[row..row + exact.a.columns()];
                let most = row.iter().fold(0.0_f32, |most, one| most.max(one.abs()));
                assert!(
                    (one - other).abs() <= most / 127.0 * 0.501,
                    "{place}: {one} {other}"
                );
            }
            for (index, (one, other)) in exact.b.data().iter().zip(near.b.data()).enumerate() {
                let column = exact.b.data().iter().skip(index % rank).step_by(rank);
                let most = column.fold(0.0_f32, |most, one| most.max(one.abs()));
                assert!(
                    (one - other).abs() <= most / 127.0 * 0.501,
                    "{place}: {one} {other}"
                );
            }
        }
        once.save_int8(&at(2)).unwrap();
        let bytes = |number| fs_err::read(at(number).join("adapter_model.safetensors")).unwrap();
        assert_eq!(bytes(1), bytes(2), "{name}");
    }
}

/// A copy of an adapter, changed.
struct Changed(tempfile::TempDir);

impl Changed {
    fn of(name: &str) -> Self {
        let place = tempfile::tempdir().unwrap();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            fs_err::copy(folder(name).join(file), place.path().join(file)).unwrap();
        }
        Self(place)
    }

    fn set(self, option: &str, value: Value) -> Self {
        let path = self.0.path().join("adapter_config.json");
        let mut config: Value =
            serde_json::from_str(&fs_err::read_to_string(&path).unwrap()).unwrap();
        config[option] = value;
        fs_err::write(path, config.to_string()).unwrap();
        self
    }

    fn tensors(self, change: impl Fn(&mut BTreeMap<String, HostTensor>)) -> Self {
        let path = self.0.path().join("adapter_model.safetensors");
        let mut tensors = SafetensorsFile::read(&path).unwrap().tensors().unwrap();
        change(&mut tensors);
        safetensors::serialize_to_file(&tensors, None, &path).unwrap();
        self
    }

    fn without(self, file: &str) -> Self {
        fs_err::remove_file(self.0.path().join(file)).unwrap();
        self
    }

    /// What is wrong, and what to do, the folder's name left out.
    fn refused(&self) -> (String, String) {
        let error = Adapter::load(self.0.path()).unwrap_err();
        let folder = self.0.path().display().to_string();
        (
            error.to_string().replace(&folder, "."),
            error.hint().unwrap(),
        )
    }
}

#[test]
fn unusable_adapters_say_what_to_do() {
    let (message, hint) = Changed::of("llama")
        .without("adapter_model.safetensors")
        .refused();
    assert_eq!(
        message,
        "there is no adapter in `.`: it has no `adapter_model.safetensors`"
    );
    assert!(hint.contains("save_pretrained"), "{hint}");
    let old = Changed::of("llama").without("adapter_model.safetensors");
    fs_err::write(old.0.path().join("adapter_model.bin"), "").unwrap();
    assert!(old.refused().1.contains("save it again"));
    let (message, _) = Changed::of("llama")
        .without("adapter_config.json")
        .refused();
    assert!(message.ends_with("no `adapter_config.json`"), "{message}");

    for (option, value) in [
        ("use_dora", json!(true)),
        ("bias", json!("all")),
        ("modules_to_save", json!(["lm_head"])),
        ("fan_in_fan_out", json!(true)),
        ("rank_pattern", json!({ "q_proj": 8 })),
        ("init_lora_weights", json!("pissa")),
        ("peft_type", json!("ADALORA")),
        ("invented_next_year", json!(1)),
    ] {
        let (message, hint) = Changed::of("llama").set(option, value.clone()).refused();
        let expected = format!(
            "the adapter `./adapter_config.json` has `{option}` set to {value}, which is not supported"
        );
        assert_eq!(message, expected);
        assert!(hint.contains(option), "{hint}");
    }

    let (message, hint) = Changed::of("llama").set("r", json!(8)).refused();
    assert_eq!(
        message,
        "`lora_A` and `lora_B` of `model.layers.0.self_attn.q_proj` have shapes [4, 64] and [64, 4], not those of rank 8"
    );
    assert!(hint.contains("adapter_config.json"), "{hint}");

    let query = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
    let renamed = |to: &'static str| {
        move |tensors: &mut BTreeMap<String, HostTensor>| {
            let tensor = tensors.remove(query).unwrap();
            tensors.insert(to.into(), tensor);
        }
    };
    let head = "base_model.model.lm_head.lora_A.weight";
    let (message, hint) = Changed::of("llama").tensors(renamed(head)).refused();
    assert_eq!(
        message,
        format!("the adapter has a tensor `{head}`, which belongs to nothing that can be adapted")
    );
    assert!(hint.contains("q_proj, k_proj"), "{hint}");
    let elsewhere = "base_model.model.model.layers.7.mlp.up_proj.lora_A.weight";
    let (message, _) = Changed::of("llama").tensors(renamed(elsewhere)).refused();
    assert_eq!(
        message,
        "the adapter has only one of the two tensors of `model.layers.0.self_attn.q_proj`: `lora_A.weight` is missing"
    );
    let (message, _) = Changed::of("qwen3")
        .set("target_modules", json!(["q_proj", "model.embed_tokens"]))
        .refused();
    assert_eq!(
        message,
        "the adapter's settings name the module `model.embed_tokens`, and it has no tensors for it"
    );
}

#[test]
fn adapters_of_another_base_are_refused() {
    let adapter = Adapter::load(&folder("qwen3")).unwrap();
    let mut shallow = base("qwen3");
    shallow.layers.truncate(1);
    let error = shallow.stacked(&adapter).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the adapter changes `model.layers.1.self_attn.q_proj`, and the model has only 1 layers"
    );
    let error = base("llama").stacked(&adapter).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the adapter is made for a `model.layers.0.self_attn.q_proj` of shape [128, 64], and the model's is [64, 64]"
    );
    assert!(error.hint().contains("base_model_name_or_path"));
}

/// A trajectory must tell which adapter spoke, and a policy with none keeps the base's hash.
#[test]
fn versions_depend_on_the_adapters() {
    let place = tempfile::tempdir().unwrap();
    for entry in fs_err::read_dir(tests().join("checkpoints/qwen3")).unwrap() {
        let path = entry.unwrap().path();
        fs_err::copy(&path, place.path().join(path.file_name().unwrap())).unwrap();
    }
    let tokenizer = tests().join("tokens/tokenizer.json");
    fs_err::copy(tokenizer, place.path().join("tokenizer.json")).unwrap();
    fs_err::write(place.path().join("chat_template.jinja"), "{{ messages }}").unwrap();
    let version = |adapters: &[&str]| {
        let adapters: Vec<PathBuf> = adapters.iter().map(|name| folder(name)).collect();
        let hash = Some("base".to_owned());
        let model = ChatModel::load(
            "tiny+mine",
            place.path(),
            hash,
            &adapters,
            RunsOn::Processor,
        )
        .unwrap();
        model.version
    };
    assert_eq!(version(&[]).hash.as_deref(), Some("base"));
    assert_eq!(version(&["qwen3"]).name, "local:tiny+mine");
    let hashes = BTreeSet::from([
        version(&[]).hash,
        version(&["qwen3"]).hash,
        version(&["qwen3-second"]).hash,
        version(&["qwen3", "qwen3-second"]).hash,
    ]);
    assert_eq!(hashes.len(), 4);
    assert_eq!(version(&["qwen3"]), version(&["qwen3"]));
}
