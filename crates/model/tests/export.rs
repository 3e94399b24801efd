//! Merged models written out and read back: by us here, by transformers, PEFT and gguf in `check_exports.py`.
#![cfg(feature = "local")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use warpsmith_model::export::{FloatType, GgufType, write_folder, write_gguf};
use warpsmith_model::gguf::GgufFile;
use warpsmith_model::{
    Adapter, ChatTemplate, LogitsFor, Role, Segment, TemplateMessage, Tokenizer, Transformer,
    Weights,
};

const NAMES: [&str; 4] = ["llama", "qwen2", "qwen3", "qwen3-second"];

#[derive(Deserialize)]
struct Expected {
    base: String,
    below: Option<String>,
    prompt: Vec<u32>,
    continuation: Vec<u32>,
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

fn expected(name: &str) -> Expected {
    let path = tests().join("adapters").join(name).join("expected.json");
    serde_json::from_str(&fs_err::read_to_string(path).unwrap()).unwrap()
}

fn checkpoint(name: &str) -> PathBuf {
    tests().join("checkpoints").join(name)
}

fn adapter(name: &str) -> Adapter {
    Adapter::load(&tests().join("adapters").join(name)).unwrap()
}

/// What is on disk at that place, with the adapter of that name and the one below it.
fn stacked(origin: &Path, name: &str) -> Weights {
    let mut weights = Weights::load(origin).unwrap();
    for name in expected(name).below.as_deref().into_iter().chain([name]) {
        weights = weights.stacked(&adapter(name)).unwrap();
    }
    weights
}

fn logits(weights: &Weights, tokens: &[u32]) -> Vec<f32> {
    let model = Transformer::new(Arc::new(weights.clone()));
    let mut segments = [Segment {
        cache: &mut model.new_cache(),
        tokens,
        logits_for: LogitsFor::All,
    }];
    model.forward(&mut segments).unwrap().remove(0).into_data()
}

fn greedy(weights: &Weights, prompt: &[u32], count: usize) -> Vec<u32> {
    let model = Transformer::new(Arc::new(weights.clone()));
    let mut cache = model.new_cache();
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let new = &tokens[cache.len()..];
        let mut segments = [Segment {
            cache: &mut cache,
            tokens: new,
            logits_for: LogitsFor::Last,
        }];
        let logits = model.forward(&mut segments).unwrap().remove(0);
        let best = logits.data().iter().enumerate();
        let best = best
            .max_by(|left, right| left.1.total_cmp(right.1))
            .unwrap();
        tokens.push(u32::try_from(best.0).unwrap());
    }
    tokens.split_off(prompt.len())
}

fn worst(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    left.iter()
        .zip(right)
        .map(|(left, right)| (left - right).abs())
        .fold(0.0, f32::max)
}

/// The difference's share of the whole.
fn share(found: &[f32], expected: &[f32]) -> f32 {
    let length = |numbers: Vec<f32>| numbers.iter().map(|one| one * one).sum::<f32>().sqrt();
    let difference = found.iter().zip(expected).map(|(a, b)| a - b).collect();
    length(difference) / length(expected.to_vec())
}

/// A checkpoint that has a tokenizer and a chat template too.
fn chat_model(name: &str) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for entry in fs_err::read_dir(checkpoint(name)).unwrap() {
        let path = entry.unwrap().path();
        fs_err::copy(&path, place.path().join(path.file_name().unwrap())).unwrap();
    }
    let tokenizer = tests().join("tokens/tokenizer.json");
    fs_err::copy(tokenizer, place.path().join("tokenizer.json")).unwrap();
    let template =
        "{% for one in messages %}{{ one.role }}: {{ one.content }}{{ eos_token }}{% endfor %}";
    fs_err::write(place.path().join("chat_template.jinja"), template).unwrap();
    let config = serde_json::json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
    });
    let path = place.path().join("tokenizer_config.json");
    fs_err::write(path, config.to_string()).unwrap();
    place
}

#[test]
fn folders_read_back_equal_what_was_stacked() {
    for name in NAMES {
        let expected = expected(name);
        let origin = checkpoint(&expected.base);
        let weights = stacked(&origin, name);
        let before = logits(&weights, &expected.prompt);
        for (numbers, dtype, limit) in [
            (FloatType::F32, "float32", 1e-4),
            (FloatType::F16, "float16", 2e-2),
            (FloatType::Bf16, "bfloat16", 2e-1),
        ] {
            let place = tempfile::tempdir().unwrap();
            let folder = place.path().join("deep/merged");
            write_folder(&weights, &origin, &folder, numbers).unwrap();
            let merged = Weights::load(&folder).unwrap();
            let worst = worst(&logits(&merged, &expected.prompt), &before);
            assert!(worst <= limit, "{name} {dtype}: off by {worst}");
            let config = fs_err::read_to_string(folder.join("config.json")).unwrap();
            assert!(config.contains(&format!("\"{dtype}\"")), "{config}");
            if numbers == FloatType::F32 {
                let found = greedy(&merged, &expected.prompt, expected.continuation.len());
                assert_eq!(found, expected.continuation, "{name}");
            }
        }
    }
}

#[test]
fn gguf_files_read_back_equal_what_was_stacked() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("merged.gguf");
    for name in NAMES {
        let expected = expected(name);
        let origin = checkpoint(&expected.base);
        let weights = stacked(&origin, name);
        let before = logits(&weights, &expected.prompt);
        for (numbers, limit) in [
            (GgufType::F32, 1e-5),
            (GgufType::F16, 2e-3),
            (GgufType::Q8_0, 5e-2),
        ] {
            write_gguf(&weights, &origin, &path, numbers).unwrap();
            let merged = Weights::load(&path).unwrap();
            let share = share(&logits(&merged, &expected.prompt), &before);
            assert!(share <= limit, "{name} {numbers:?}: off by {share}");
            if numbers == GgufType::F32 {
                let found = greedy(&merged, &expected.prompt, expected.continuation.len());
                assert_eq!(found, expected.continuation, "{name}");
            }
        }
    }
}

/// From one kind of file to the other and back, with an adapter merged on the way.
#[test]
fn tokenizers_and_templates_go_along() {
    let corpus = fs_err::read_to_string(tests().join("tokens/corpus.txt")).unwrap();
    let place = tempfile::tempdir().unwrap();
    let origin = chat_model("qwen2");
    let gguf = place.path().join("base.gguf");
    write_gguf(
        &Weights::load(origin.path()).unwrap(),
        origin.path(),
        &gguf,
        GgufType::F32,
    )
    .unwrap();
    let weights = stacked(&gguf, "qwen2");
    let merged_gguf = place.path().join("merged.gguf");
    write_gguf(&weights, &gguf, &merged_gguf, GgufType::F16).unwrap();
    let merged_folder = place.path().join("merged");
    write_folder(&weights, &gguf, &merged_folder, FloatType::F32).unwrap();
    let copied_folder = place.path().join("copied");
    write_folder(&weights, origin.path(), &copied_folder, FloatType::F32).unwrap();

    let expected = expected("qwen2");
    let before = logits(&weights, &expected.prompt);
    let tokenizer = Tokenizer::load(origin.path()).unwrap();
    let tokens = tokenizer.encode(&corpus).unwrap();
    let end = tokenizer.encode("<|im_end|>").unwrap()[0];
    let messages = [TemplateMessage::new(Role::User, "go")];
    for path in [gguf, merged_gguf, merged_folder, copied_folder] {
        let found = Tokenizer::load(&path).unwrap();
        assert_eq!(found.encode(&corpus).unwrap(), tokens, "{path:?}");
        assert_eq!(found.end(), Some("<|im_end|>"), "{path:?}");
        assert_eq!(found.beginning(), Some("<|endoftext|>"), "{path:?}");
        assert!(found.is_end(end), "{path:?}");
        let template = ChatTemplate::load(&path, &found).unwrap();
        assert_eq!(
            template.render(&messages, &[]).unwrap(),
            "user: go<|im_end|>"
        );
        if !path.ends_with("base.gguf") {
            let logits = logits(&Weights::load(&path).unwrap(), &expected.prompt);
            let worst = worst(&logits, &before);
            assert!(worst <= 2e-2, "{path:?}: off by {worst}");
        }
    }
}

#[test]
fn a_quantised_base_is_merged_by_its_own_numbers() {
    let place = tempfile::tempdir().unwrap();
    let base = place.path().join("base.gguf");
    let origin = checkpoint("llama");
    let plain = Weights::load(&origin).unwrap();
    write_gguf(&plain, &origin, &base, GgufType::Q8_0).unwrap();
    let weights = stacked(&base, "llama");
    let merged = place.path().join("merged.gguf");
    write_gguf(&weights, &base, &merged, GgufType::F32).unwrap();
    let prompt = expected("llama").prompt;
    let expected = logits(&weights.merged(), &prompt);
    let found = logits(&Weights::load(&merged).unwrap(), &prompt);
    // Embedding and output are no projections: they are still eight bits on one side.
    let share = share(&found, &expected);
    assert!(share <= 2e-2, "off by {share}");
    // The rule of its rotary scaling was lost in the first GGUF file.
    let folder = place.path().join("folder");
    let error = write_folder(&weights, &base, &folder, FloatType::F32).unwrap_err();
    assert!(error.to_string().contains("rotary scaling"), "{error}");
    assert!(error.hint().unwrap().contains("GGUF from GGUF"));
}

#[test]
fn a_base_is_never_overwritten() {
    let origin = chat_model("qwen2");
    let weights = Weights::load(origin.path()).unwrap();
    let error = write_folder(&weights, origin.path(), origin.path(), FloatType::F32).unwrap_err();
    assert!(error.to_string().contains("overwrite"), "{error}");
    let gguf = origin.path().join("base.gguf");
    write_gguf(&weights, origin.path(), &gguf, GgufType::F32).unwrap();
    let error = write_gguf(&weights, &gguf, &gguf, GgufType::F16).unwrap_err();
    assert!(error.hint().unwrap().contains("another place"), "{error}");
    assert!(Weights::load(&gguf).is_ok());
}

/// What llama.cpp needs to load a file, by its keys' names.
#[test]
fn gguf_metadata_are_complete() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.gguf");
    let origin = chat_model("qwen3");
    let weights = Weights::load(origin.path()).unwrap();
    write_gguf(&weights, origin.path(), &path, GgufType::Q8_0).unwrap();
    let file = GgufFile::open(&path).unwrap();
    for key in [
        "general.architecture",
        "general.file_type",
        "qwen3.block_count",
        "qwen3.context_length",
        "qwen3.embedding_length",
        "qwen3.feed_forward_length",
        "qwen3.attention.head_count",
        "qwen3.attention.head_count_kv",
        "qwen3.attention.key_length",
        "qwen3.attention.value_length",
        "qwen3.attention.layer_norm_rms_epsilon",
        "qwen3.rope.freq_base",
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.chat_template",
    ] {
        assert!(file.metadata().contains_key(key), "no `{key}`");
    }
}

/// Leaves in `WARPSMITH_EXPORTS` what `check_exports.py` holds against the libraries of others.
#[test]
#[ignore = "its files are for check_exports.py"]
fn exports_for_other_libraries() {
    let place = PathBuf::from(std::env::var_os("WARPSMITH_EXPORTS").unwrap());
    for name in NAMES {
        let folder = place.join(name);
        fs_err::create_dir_all(&folder).unwrap();
        let origin = chat_model(&expected(name).base);
        let weights = stacked(origin.path(), name);
        write_folder(
            &weights,
            origin.path(),
            &folder.join("folder"),
            FloatType::F32,
        )
        .unwrap();
        for (file, numbers) in [
            ("f32.gguf", GgufType::F32),
            ("f16.gguf", GgufType::F16),
            ("q8_0.gguf", GgufType::Q8_0),
        ] {
            write_gguf(&weights, origin.path(), &folder.join(file), numbers).unwrap();
        }
        if name != "llama" {
            let gguf = folder.join("f32.gguf");
            let merged = Weights::load(&gguf).unwrap();
            write_folder(&merged, &gguf, &folder.join("from_gguf"), FloatType::F32).unwrap();
        }
        adapter(name).save(&folder.join("adapter")).unwrap();
    }
}
