//! `synth` by the real binary: a small set on the CPU, and what can go wrong on the way to one.

use std::process::Command;

use serde_json::{Value, json};

use crate::common::{Context, code, json};

/// Quick and patient: few operators, and a window that a busy machine does not leave.
fn command(context: &Context, more: &[&str]) -> Command {
    let mut all = vec!["synth", "--target", "cpu", "--mix", "1:1", "--no-survey"];
    all.extend(["--window-ms", "0.05..2000", "--out", "set", "--json", "-q"]);
    all.extend(more);
    context.command(&all)
}

fn lines(context: &Context, name: &str) -> Vec<Value> {
    let text = context.read(name);
    let read = |line| serde_json::from_str(line).unwrap();
    text.lines().map(read).collect()
}

#[test]
fn a_set_is_made_is_not_made_again_takes_no_other_settings_and_grows() {
    let context = Context::new();
    let made = json(&command(&context, &["--count", "1"]).output().unwrap());
    let summary = &made["summary"];
    assert_eq!(summary["kept"], 1, "{made:#}");
    // Whatever came to a filter was counted by it, and none that was kept was left out of one.
    for filter in ["screen", "compile", "time"] {
        let count = &summary["stages"][filter];
        let number = |name: &str| count[name].as_u64().unwrap();
        assert!(
            number("came") >= number("left") && number("left") >= 1,
            "{summary:#}"
        );
        assert!(count["seconds"].as_f64().unwrap() > 0.0, "{summary:#}");
    }
    let tasks = lines(&context, "set/tasks.jsonl");
    assert_eq!(tasks.len(), 1);
    for task in &tasks {
        assert_eq!(task["data_source"], "torch#1");
        assert!(task["graph"]["values"].is_array());
    }
    let parts = ["set/train.jsonl", "set/validation.jsonl"];
    let parts = parts.map(|name| lines(&context, name).len());
    assert_eq!(parts.iter().sum::<usize>(), 1);

    let again = json(&command(&context, &["--count", "1"]).output().unwrap());
    assert_eq!(again["summary"], *summary);
    assert_eq!(again["pace"]["candidates"], 0);
    assert_eq!(lines(&context, "set/tasks.jsonl"), tasks);

    let other = command(&context, &["--count", "1", "--seed", "9"])
        .output()
        .unwrap();
    assert_eq!(code(&other), 2, "{:#}", json(&other));
    assert_eq!(lines(&context, "set/tasks.jsonl"), tasks);

    let grown = json(&command(&context, &["--count", "2"]).output().unwrap());
    assert_eq!(grown["summary"]["kept"], 2, "{grown:#}");
    let more = lines(&context, "set/tasks.jsonl");
    let names =
        |tasks: &[Value]| -> Vec<Value> { tasks.iter().map(|one| one["id"].clone()).collect() };
    assert!(names(&tasks).iter().all(|one| names(&more).contains(one)));
}

#[test]
fn a_benchmark_that_cannot_be_read_is_said_before_anything_is_begun() {
    let context = Context::new();
    context.write("tasks/broken.jsonl", "{\n");
    for benchmark in ["missing", "tasks/broken.jsonl"] {
        let output = command(&context, &["--exclude", benchmark])
            .output()
            .unwrap();
        let found = json(&output);
        assert_eq!(code(&output), 2, "{found:#}");
        let message = found["failure"]["message"].as_str().unwrap();
        assert!(message.contains(benchmark), "{message}");
        assert!(!context.path("set").exists());
    }
}

#[test]
fn nonsense_is_counted_and_a_composer_that_ends_leaves_what_was_kept() {
    let context = Context::new();
    let replies = [
        "I would rather not.",
        "```python\nclass Model:\n    pass\n```",
        "```python\n",
    ];
    let script: String = replies
        .iter()
        .map(|text| json!({ "text": text }).to_string() + "\n")
        .collect();
    context.write("script.jsonl", &script);
    let flags = ["--composer", "llm", "--policy", "script:script.jsonl"];
    let output = command(&context, &flags).output().unwrap();
    let found = json(&output);
    assert_eq!(code(&output), 3, "{found:#}");
    assert_eq!(found["failure"]["code"], "policy");
    let summary: Value = serde_json::from_str(&context.read("set/summary.json")).unwrap();
    assert_eq!(summary["dropped"], json!({ "nonsense": 3 }));
    assert_eq!(summary["kept"], 0);
    assert_eq!(context.read("set/tasks.jsonl"), "");
}
