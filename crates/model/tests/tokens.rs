//! Tokens and chat templates against Python's, by the files that `make_tokens.py` made.
#![cfg(feature = "local")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use warpsmith_model::gguf::{self, GgufValue};
use warpsmith_model::{ChatTemplate, TemplateMessage, TextStream, Tokenizer, Tool};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tokens")
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&fs_err::read_to_string(folder().join(name)).unwrap()).unwrap()
}

fn corpus() -> String {
    fs_err::read_to_string(folder().join("corpus.txt")).unwrap()
}

/// The first place where two lists differ, with some of what surrounds it: the lists are long.
fn assert_same(found: &[u32], expected: &[u32], tokenizer: &Tokenizer, what: &str) {
    let equal = found
        .iter()
        .zip(expected)
        .take_while(|(a, b)| a == b)
        .count();
    if equal < found.len().max(expected.len()) {
        let around = |tokens: &[u32]| {
            let end = tokens.len().min(equal + 6);
            let start = equal.saturating_sub(3).min(end);
            (
                tokens[start..end].to_vec(),
                tokenizer.decode(&tokens[start..end]).unwrap(),
            )
        };
        panic!(
            "{what}: token {equal} differs: {:?} instead of {:?}",
            around(found),
            around(expected)
        );
    }
}

#[derive(Deserialize)]
struct Tiny {
    tokens: Vec<String>,
    types: Vec<i32>,
    merges: Vec<String>,
    expected: BTreeMap<String, Vec<u32>>,
}

/// A GGUF file of metadata only.
fn write_gguf(path: &Path, tiny: &Tiny, splitting: &str) {
    let texts =
        |list: &[String]| GgufValue::Array(list.iter().cloned().map(GgufValue::String).collect());
    let types = tiny
        .types
        .iter()
        .map(|kind| GgufValue::I32(*kind))
        .collect();
    let end = u32::try_from(
        tiny.tokens
            .iter()
            .position(|one| one == "<|im_end|>")
            .unwrap(),
    );
    let metadata = [
        ("tokenizer.ggml.model", GgufValue::String("gpt2".into())),
        ("tokenizer.ggml.pre", GgufValue::String(splitting.into())),
        ("tokenizer.ggml.tokens", texts(&tiny.tokens)),
        ("tokenizer.ggml.token_type", GgufValue::Array(types)),
        ("tokenizer.ggml.merges", texts(&tiny.merges)),
        ("tokenizer.ggml.eos_token_id", GgufValue::U32(end.unwrap())),
    ];
    let mut file = fs_err::File::create(path).unwrap();
    let metadata = metadata.iter().map(|(key, value)| (*key, value));
    gguf::write(&mut file, metadata, &[]).unwrap();
}

#[test]
fn every_way_of_splitting_equals_pythons() {
    let place = tempfile::tempdir().unwrap();
    let tiny: Tiny = read("tiny.json");
    assert_eq!(tiny.expected.len(), 4);
    for (splitting, expected) in &tiny.expected {
        let path = place.path().join(format!("{splitting}.gguf"));
        write_gguf(&path, &tiny, splitting);
        let tokenizer = Tokenizer::load(&path).unwrap();
        let found = tokenizer.encode(&corpus()).unwrap();
        assert_same(&found, expected, &tokenizer, splitting);
    }
    let path = place.path().join("unknown.gguf");
    write_gguf(&path, &tiny, "tekken");
    let error = Tokenizer::load(&path).unwrap_err();
    assert!(error.to_string().contains("`tekken`"), "{error}");
    assert!(error.hint().unwrap().contains("tokenizer.json"));
    // With the hint followed, the same file loads.
    fs_err::copy(
        folder().join("tokenizer.json"),
        place.path().join("tokenizer.json"),
    )
    .unwrap();
    assert!(Tokenizer::load(&path).is_ok());
}

#[test]
fn tokenizer_json_equals_pythons() {
    let tokenizer = Tokenizer::load(&folder()).unwrap();
    let tiny: Tiny = read("tiny.json");
    let found = tokenizer.encode(&corpus()).unwrap();
    assert_same(
        &found,
        &tiny.expected["qwen2"],
        &tokenizer,
        "tokenizer.json",
    );
    let end = tokenizer.encode("<|im_end|>").unwrap();
    assert_eq!(end.len(), 1);
    assert!(tokenizer.is_end(end[0]));
    assert!(!tokenizer.is_end(found[0]));
}

/// Tokens cut characters anywhere, and a stream of them still gives whole ones, all of them, in order.
#[test]
fn streamed_text_is_the_text() {
    let tokenizer = Tokenizer::load(&folder()).unwrap();
    let tokens = tokenizer.encode(&corpus()).unwrap();
    let mut stream = TextStream::default();
    let mut pieces = Vec::new();
    for &token in &tokens {
        pieces.push(stream.push(&tokenizer, token).unwrap());
    }
    assert!(pieces.iter().any(String::is_empty), "no character was cut");
    let text = pieces.concat() + &stream.finish(&tokenizer).unwrap();
    assert_eq!(text, tokenizer.decode(&tokens).unwrap());
}

#[derive(Deserialize)]
struct Chats {
    chats: Vec<Chat>,
    templates: Vec<Rendered>,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<TemplateMessage>,
    tools: Vec<Tool>,
}

#[derive(Deserialize)]
struct Rendered {
    template: String,
    rendered: Vec<String>,
}

#[test]
fn chats_equal_transformers() {
    let tokenizer = Tokenizer::load(&folder()).unwrap();
    let file: Chats = read("chats.json");
    assert_eq!(file.templates.len(), 2);
    for Rendered { template, rendered } in file.templates {
        let template = ChatTemplate::new(template, &tokenizer).unwrap();
        for (chat, expected) in file.chats.iter().zip(rendered) {
            assert_eq!(
                template.render(&chat.messages, &chat.tools).unwrap(),
                expected
            );
        }
    }
    let refusing = ChatTemplate::new("{{ raise_exception('no tools') }}".into(), &tokenizer);
    let error = refusing.unwrap().render(&[], &[]).unwrap_err();
    assert!(error.to_string().contains("no tools"), "{error}");
}
