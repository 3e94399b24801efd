//! Several conversations with one local model at once: each gets the reply that it would get alone.
#![cfg(feature = "local")]

use std::path::Path;

use tempfile::TempDir;
use warpsmith_model::policy::{
    ChatModel, LocalPolicy, Policy, PolicyError, PolicyReply, PolicyRequest, ReplyUpdate, RunsOn,
    SamplingParams,
};
use warpsmith_schema::Message;

/// A random model of a few layers, with a tokenizer and a template.
fn model() -> (TempDir, LocalPolicy) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let place = tempfile::tempdir().unwrap();
    for entry in fs_err::read_dir(tests.join("checkpoints/qwen3")).unwrap() {
        let path = entry.unwrap().path();
        fs_err::copy(&path, place.path().join(path.file_name().unwrap())).unwrap();
    }
    let tokenizer = tests.join("tokens/tokenizer.json");
    fs_err::copy(tokenizer, place.path().join("tokenizer.json")).unwrap();
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    fs_err::write(place.path().join("chat_template.jinja"), template).unwrap();
    let model = ChatModel::load("tiny", place.path(), None, &[], RunsOn::Processor).unwrap();
    let local = LocalPolicy::start(model, None).unwrap();
    (place, local)
}

fn conversation(text: &str) -> Vec<Message> {
    vec![Message::User {
        text: text.to_owned(),
    }]
}

fn request(messages: &[Message], seed: u64) -> PolicyRequest<'_> {
    PolicyRequest {
        messages,
        tools: &[],
        sampling: SamplingParams {
            temperature: 1.0,
            seed: Some(seed),
            max_tokens: 24,
            ..SamplingParams::default()
        },
    }
}

#[test]
fn replies_are_those_that_each_would_get_alone() {
    let (_place, mut local) = model();
    let asked = ["a", "x7", "a"].map(conversation);
    // The first and the last are the same question with another seed.
    let requests: Vec<PolicyRequest<'_>> = (asked.iter().zip([1, 1, 2]))
        .map(|(messages, seed)| request(messages, seed))
        .collect();
    let mut heard = vec![String::new(); requests.len()];
    let mut replies = vec![None; requests.len()];
    local.reply_many(&requests, &mut |number, said| match said {
        ReplyUpdate::Text(piece) => heard[number] += piece,
        ReplyUpdate::Done(reply) => replies[number] = Some(reply.unwrap()),
    });
    for (number, request) in requests.iter().enumerate() {
        let alone = local.reply(request, &mut |_| {}).unwrap();
        let together = replies[number].as_ref().unwrap();
        assert_eq!(together.text, alone.text);
        assert_eq!(together.text, heard[number]);
        // What was read before is not read again.
        let counts =
            |reply: &PolicyReply| (reply.usage.prompt_tokens, reply.usage.completion_tokens);
        assert_eq!(counts(together), counts(&alone));
    }
    assert_ne!(replies[0], replies[2]);
}

#[test]
fn one_that_does_not_fit_does_not_stop_the_others() {
    let (_place, mut local) = model();
    let asked = [conversation(&"a b ".repeat(20_000)), conversation("a")];
    let requests: Vec<PolicyRequest<'_>> = asked.iter().map(|one| request(one, 1)).collect();
    let mut whole = Vec::new();
    local.reply_many(&requests, &mut |number, said| {
        if let ReplyUpdate::Done(reply) = said {
            whole.push((number, reply.map(drop)));
        }
    });
    assert!(matches!(
        whole[..],
        [(0, Err(PolicyError::ContextFull { .. })), (1, Ok(()))]
    ));
}
