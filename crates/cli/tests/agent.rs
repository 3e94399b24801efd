//! The loop of tool calls by the real binary: shell, sandbox, compiler and judge are real, the policy follows a script.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::common::scale_relu::{KERNEL, MODEL_NEW, TASK};
use crate::common::{Context, code, json, judged, with_fewer_rows};
use serde_json::{Value, json};

fn call(name: &str, arguments: &Value) -> Value {
    json!({ "id": name, "name": name, "arguments": arguments })
}

fn context(lines: &[Value]) -> Context {
    let context = Context::new();
    context.write("task.py", TASK);
    write_script(&context, lines);
    context
}

fn write_script(context: &Context, lines: &[Value]) {
    let text: String = lines.iter().map(|line| line.to_string() + "\n").collect();
    context.write("script.jsonl", &text);
}

fn arguments<'a>(task: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec![
        "optimize",
        task,
        "--policy",
        "script:script.jsonl",
        "--mode",
        "agent",
    ];
    all.extend([
        "--target",
        "cpu",
        "--no-compile",
        "--start",
        "none",
        "--profile",
        "rl",
        "--out",
        "run",
        "--json",
        "-q",
    ]);
    all.extend(more);
    all
}

fn run(context: &Context, more: &[&str]) -> Output {
    context
        .command(&arguments("task.py", more))
        .output()
        .unwrap()
}

fn trajectory(context: &Context) -> Value {
    context.trajectories("run").pop().unwrap()
}

/// What tools said, in their order.
fn told(trajectory: &Value) -> Vec<(String, String)> {
    let messages = trajectory["messages"].as_array().unwrap().iter();
    messages
        .filter(|message| message["role"] == "tool")
        .map(|message| {
            let text = |field: &str| message[field].as_str().unwrap().to_owned();
            (text("name"), text("text"))
        })
        .collect()
}

#[test]
fn an_agent_writes_mends_verifies_and_submits() {
    let broken = KERNEL.replace("return 0;", "return 0");
    let write =
        |path: &str, content: &str| call("write", &json!({ "path": path, "content": content }));
    let context = context(&[
        json!({ "text": "I look around.", "calls": [
            call("bash", &json!({ "command": "ls" })),
            call("read", &json!({ "path": "model.py", "limit": 2 })),
            call("fly", &json!({})),
            call("write", &json!({ "path": "model_new.py" })),
        ] }),
        json!({ "text": "", "calls": [
            write("model_new.py", MODEL_NEW), write("kernels/scale_relu.cpp", &broken), call("compile", &Value::Null),
        ] }),
        json!({ "text": "A semicolon.", "calls": [
            call("edit", &json!({ "path": "kernels/scale_relu.cpp", "old": "return 0", "new": "return 0;" })),
            call("compile", &json!({})), call("verify", &json!({})), call("judge", &json!({})), call("submit", &json!({})),
        ] }),
    ]);
    let output = judged(|| context.command(&arguments("task.py", &["--wire", "json"])));
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(found["verdict"]["status"], "passed");
    assert_eq!(found["ending"], json!({ "kind": "finished" }));
    assert_eq!(context.read("run/result/kernels/scale_relu.cpp"), KERNEL);

    let trajectory = trajectory(&context);
    assert_eq!(trajectory["mode"], "agent");
    assert_eq!(trajectory["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(
        trajectory["attempts"][0]["files"]["model_new.py"],
        MODEL_NEW
    );
    let told = told(&trajectory);
    let of = |number: usize| (told[number].0.as_str(), told[number].1.as_str());
    assert_eq!(of(0), ("bash", "kernels\nmodel.py"));
    assert_eq!(
        of(1),
        ("read", "    1  import torch\n    2  import torch.nn as nn")
    );
    assert!(of(2).1.contains("there is no tool `fly`"));
    assert!(of(3).1.contains("missing field `content`"));
    assert!(of(6).1.starts_with("It does not compile"), "{}", of(6).1);
    assert_eq!(of(8), ("compile", "It compiles."));
    assert_eq!(of(9), ("verify", "It compiles and its results are right."));
    assert!(of(10).1.starts_with("It passes: "), "{}", of(10).1);
}

#[test]
fn every_way_an_episode_can_end_has_a_name() {
    let again = json!({ "text": "", "calls": [call("bash", &json!({ "command": "true" }))] });
    let prose = |text: &str| json!({ "text": text });
    let busy = |number: u32| json!({ "text": format!("{number}"), "calls": [call("bash", &json!({ "command": "seq 30000" }))] });
    // What a policy says itself is never left out.
    let chatty = |number: u32| json!({ "text": format!("{number}{}", " words".repeat(500)), "calls": [call("bash", &json!({ "command": "true" }))] });
    let slow = |number: u32| json!({ "text": format!("{number}"), "calls": [call("bash", &json!({ "command": "sleep 1" }))] });
    let script_end = json!({ "kind": "policy_failed", "message": "the script `script.jsonl` has no reply number 2" });
    for (name, lines, more, ending) in [
        (
            "loops",
            vec![again.clone(), again.clone(), again.clone(), again.clone()],
            vec![],
            json!({ "kind": "looping" }),
        ),
        (
            "talks",
            vec![prose("a"), prose("b"), prose("c"), prose("d")],
            vec![],
            json!({ "kind": "nothing_usable" }),
        ),
        ("stops", vec![again], vec![], script_end),
        (
            "turns",
            vec![busy(1), busy(2), busy(3)],
            vec!["--turns", "2"],
            json!({ "kind": "limit", "which": "turns" }),
        ),
        (
            "tokens",
            (0..30).map(chatty).collect(),
            vec!["--tokens", "4000", "--turns", "30"],
            json!({ "kind": "limit", "which": "tokens" }),
        ),
        (
            "time",
            (0..30).map(slow).collect(),
            vec!["--minutes", "0.02"],
            json!({ "kind": "limit", "which": "time" }),
        ),
    ] {
        let context = context(&lines);
        let mut more = more;
        more.extend(["--wire", "json"]);
        let output = run(&context, &more);
        let found = json(&output);
        assert_eq!(found["ending"], ending, "{name}: {found:#}");
        assert_eq!(code(&output), 0, "{name}: the original is a correct result");
        assert!(
            context
                .read("run/result/model_new.py")
                .contains("from model import Model"),
            "{name}"
        );
    }
}

/// A budget for five turns lasts for twelve, and nobody is left in the dark about it.
#[test]
fn old_output_makes_room_and_everybody_is_told() {
    for (wire, role) in [("json", "tool"), ("fenced", "user")] {
        let lines: Vec<Value> = (1..=12)
            .map(|number| match wire {
                "json" => {
                    let command = json!({ "command": format!("seq {number} 30000") });
                    json!({ "text": format!("{number}"), "calls": [call("bash", &command)] })
                }
                _ => json!({ "text": format!("bash\n```\nseq {number} 30000\n```") }),
            })
            .collect();
        let context = context(&lines);
        let mut all = arguments(
            "task.py",
            &["--wire", wire, "--tokens", "5000", "--turns", "12"],
        );
        all.retain(|argument| *argument != "-q");
        let output = context.command(&all).output().unwrap();
        let found = json(&output);
        assert_eq!(
            found["ending"],
            json!({ "kind": "limit", "which": "turns" })
        );
        let shown = String::from_utf8_lossy(&output.stderr);
        assert!(shown.contains("old tool answers, about"), "{shown}");

        let trajectory = trajectory(&context);
        let elisions = trajectory["elisions"].as_array().unwrap();
        // Rarely and much at once.
        assert!((1..=4).contains(&elisions.len()), "{elisions:#?}");
        for elision in elisions {
            let left_out = elision["elided"].as_array().unwrap();
            assert!(left_out.len() > 1, "{elision:#}");
            for one in left_out {
                let line = one["replacement"].as_str().unwrap();
                assert!(line.contains("characters that `bash` gave"), "{line}");
                let message = &trajectory["messages"][one["message"].as_u64().unwrap() as usize];
                assert_eq!(message["role"], role);
                assert!(
                    message["text"].as_str().unwrap().len() > 1000,
                    "kept in the trajectory"
                );
            }
        }
    }
}

/// Whatever the examples need can be written, compiled and judged from inside the loop.
#[test]
fn a_script_solves_every_example_through_the_loop() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut names: Vec<String> = fs_err::read_dir(&examples)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("model_new.py").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 10, "{names:?}");
    let (mut tasks, mut script) = (String::new(), String::new());
    for name in &names {
        let folder = examples.join(name);
        let code = with_fewer_rows(&fs_err::read_to_string(folder.join("model.py")).unwrap());
        tasks += &(json!({ "name": name, "code": code }).to_string() + "\n");
        let files = sources(&folder).into_iter();
        let blocks = files.map(|(path, text)| format!("write {path}\n````\n{text}````\n\n"));
        for text in [blocks.collect(), "submit".to_owned()] {
            script += &(json!({ "text": text, "task": name }).to_string() + "\n");
        }
    }
    let context = Context::new();
    context.write("tasks.jsonl", &tasks);
    context.write("script.jsonl", &script);
    let mut all = arguments("--tasks", &["--samples", "1"]);
    all[0] = "rollout";
    // A rollout never starts from anything.
    all.retain(|one| !["--start", "none"].contains(one));
    all.insert(2, "tasks.jsonl");
    let found = json(&context.command(&all).output().unwrap());
    let expected = json!({ "planned": names.len(), "ended": names.len(), "unfinished": 0, "passed": names.len() });
    assert_eq!(found["episodes"], expected, "{found:#}");
    for line in context.read("run/events.jsonl").lines() {
        let event = serde_json::from_str::<Value>(line).unwrap()["event"].take();
        if event["kind"] == "episode_ended" {
            let one = &event["trajectory"];
            assert_eq!(one["ending"], json!({ "kind": "finished" }), "{one:#}");
        }
    }
}

fn sources(folder: &Path) -> Vec<(String, String)> {
    let mut found = vec![(
        "model_new.py".to_owned(),
        fs_err::read_to_string(folder.join("model_new.py")).unwrap(),
    )];
    let kernels = folder.join("kernels");
    let entries: Vec<PathBuf> = match fs_err::read_dir(&kernels) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => Vec::new(),
    };
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap();
        found.push((
            format!("kernels/{name}"),
            fs_err::read_to_string(&path).unwrap(),
        ));
    }
    found
}

/// A small model in the loop, whatever it says: the record has every token it sampled, under the message it became.
#[test]
fn the_tokens_of_a_local_policy_are_recorded() {
    let context = context(&[]);
    let mut all = arguments("task.py", &["--temperature", "0", "--max-tokens", "100"]);
    all[3] = "local:smollm2-135m";
    let found = json(&context.command(&all).output().unwrap());
    let trajectory = trajectory(&context);
    let messages = trajectory["messages"].as_array().unwrap();
    let said: Vec<u64> = (0..)
        .zip(messages)
        .filter(|(_, message)| message["role"] == "assistant")
        .map(|(number, _)| number)
        .collect();
    assert!(said.len() >= 3, "{found:#}");

    let (mut replies, mut sampled) = (Vec::new(), 0);
    for record in trajectory["tokens"].as_array().unwrap() {
        let of = |field: &str| record[field].as_array().unwrap().clone();
        let (ids, logprobs, mask) = (of("ids"), of("logprobs"), of("loss_mask"));
        assert_eq!((ids.len(), ids.len()), (logprobs.len(), mask.len()));
        for (logprob, sampled) in logprobs.iter().zip(&mask) {
            assert_eq!(logprob.is_number(), sampled == true);
        }
        // A run of sampled tokens for each reply, after what was given.
        let begins = mask
            .windows(2)
            .filter(|pair| pair[0] == false && pair[1] == true);
        assert_eq!(begins.count(), of("replies").len());
        sampled += mask.iter().filter(|one| **one == true).count() as u64;
        replies.extend(of("replies"));
    }
    assert_eq!(replies, said);
    assert_eq!(trajectory["usage"]["completion_tokens"], sampled);
    // All but the first turn went on from what was there.
    assert_eq!(trajectory["tokens"].as_array().unwrap().len(), 1);
    assert!(trajectory["usage"]["cached_tokens"].as_u64() > Some(0));
}
