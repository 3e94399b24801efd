//! `optimize --start` by the real binary: what a policy starts from. The compiler, the judge and PyTorch are real.

use std::process::Command;

use crate::common::scale_relu::{KERNEL, MODEL_NEW, TASK, reply};
use crate::common::{Context, code, json, judged};
use serde_json::{Value, json};

/// A user's own program, without Warpsmith: the faster module and the original.
const USE: &str = "
import sys
sys.path[:0] = ['run/result/package', 'run/result']
import torch
import model
from softmax_fast import ModelNew
assert 'warpsmith_kernels' not in sys.modules
x = torch.randn(*model.get_inputs()[0].shape)
torch.testing.assert_close(ModelNew(*model.get_init_inputs())(x), model.Model(*model.get_init_inputs())(x))
";

fn write_script(context: &Context, replies: &[String]) {
    let line = |text: &String| json!({ "text": text }).to_string() + "\n";
    context.write(
        "script.jsonl",
        &replies.iter().map(line).collect::<String>(),
    );
}

fn optimize(context: &Context, more: &[&str]) -> Command {
    let mut all = vec!["optimize", "--target", "cpu", "--no-compile"];
    all.extend(["--profile", "rl", "--out", "run", "--json"]);
    all.extend(more);
    context.command(&all)
}

const SCRIPT: [&str; 2] = ["--policy", "script:script.jsonl"];

/// The first thing that a policy is told about the task.
fn told(context: &Context) -> String {
    let trajectories = context.trajectories("run");
    let text = &trajectories[0]["messages"][1]["text"];
    text.as_str().unwrap().to_owned()
}

/// As a new user has it: no model on disk, and no network. The default policy cannot be asked, and there is a result.
#[test]
fn the_embedded_example_gets_faster_without_a_model() {
    let context = Context::new();
    let python = context.python();
    let run = || {
        judged(|| {
            let _ = fs_err::remove_dir_all(context.path("run"));
            let mut command = optimize(&context, &["--offline"]);
            command
                .env("WARPSMITH_CACHE", context.path("cache"))
                .env("WARPSMITH_PYTHON", &python);
            command
        })
    };
    // Eager is timed a while before: on a machine whose load changes in between, once more.
    let mut output = run();
    for _ in 0..2 {
        if json(&output)["improved"] == false {
            output = run();
        }
    }
    let (found, said) = (json(&output), String::from_utf8_lossy(&output.stderr));
    assert_eq!(code(&output), 0, "{found:#}\n{said}");
    assert_eq!(found["author"], "compiler", "{found:#}");
    assert_eq!(found["improved"], true, "{found:#}");
    assert_eq!(found["verdict"]["status"], "passed");
    assert_eq!(found["start"]["verdict"]["status"], "passed");
    assert_eq!(found["sample"], Value::Null);
    let places =
        ["judging the compiler's solution", "no policy was asked:"].map(|line| said.find(line));
    assert!(places[0].is_some() && places[0] < places[1], "{said}");
    // What was handed over is used without this program.
    context.run_as_a_user(&python, USE);
}

#[test]
fn a_policy_is_shown_what_the_compiler_wrote_and_its_time() {
    let context = Context::new();
    context.write("task.py", TASK);
    let unusable = "I would rather not.".to_owned();
    write_script(&context, &[unusable.clone(), unusable]);
    let arguments = [&["task.py", "-q"][..], &SCRIPT].concat();
    let shown = [&arguments[..], &["--html", "story.html"]].concat();
    let output = judged(|| optimize(&context, &shown));
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(found["start"]["author"], "compiler");
    let page = context.read("story.html");
    assert!(page.contains("Kernels and what they replace"), "{page}");
    assert!(page.contains("mul_relu_kernel(<span"), "{page}");
    assert_eq!(found["start"]["verdict"]["status"], "passed", "{found:#}");
    assert_eq!(found["attempts"], 0);
    assert_eq!(found["verdict"]["status"], "passed");
    let told = told(&context);
    let us = found["start"]["verdict"]["times_us"]["candidate"].as_f64();
    let time = format!("takes {:.1} us", us.unwrap());
    assert!(told.contains(&time), "{told}");
    assert!(told.contains("\nwrite model_new.py\n```python\n"), "{told}");
    // The same again: nothing is judged twice.
    let events = context.read("run/events.jsonl");
    let output = judged(|| optimize(&context, &arguments));
    assert_eq!(json(&output)["verdict"], found["verdict"]);
    assert_eq!(context.read("run/events.jsonl"), events);
}

#[test]
fn a_policy_starts_from_a_folder_of_the_users() {
    let context = Context::new();
    context.write("task.py", TASK);
    context.write("mine/model_new.py", MODEL_NEW);
    context.write("mine/kernels/scale_relu.cpp", KERNEL);
    // Only the file that changes.
    let changed = format!("write kernels/scale_relu.cpp\n```cpp\n// another\n{KERNEL}```\n");
    write_script(&context, &[changed]);
    let arguments = [
        &["task.py", "-q", "--start", "mine", "--repairs", "0"][..],
        &SCRIPT,
    ]
    .concat();
    let output = judged(|| optimize(&context, &arguments));
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(found["start"]["author"], "user");
    assert_eq!(found["start"]["verdict"]["status"], "passed");
    assert_eq!(found["samples"][0]["passed"], 1, "{found:#}");
    let author = found["author"].as_str().unwrap();
    assert!(["user", "policy"].contains(&author), "{author}");
    let told = told(&context);
    assert!(told.contains("write kernels/scale_relu.cpp"), "{told}");
    // Another solution in the folder is another configuration, and one that is not there is told.
    context.write("mine/kernels/scale_relu.cpp", &format!("// mine\n{KERNEL}"));
    let output = optimize(&context, &arguments).output().unwrap();
    assert_eq!(code(&output), 2);
    let message = json(&output)["failure"]["message"].clone();
    assert!(
        message.as_str().unwrap().contains("`start` was"),
        "{message}"
    );
    let output = optimize(&context, &["task.py", "--start", "complier"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 2);
    let hint = json(&output)["failure"]["hint"].clone();
    assert!(
        hint.as_str().unwrap().contains("`compiler`, `none`"),
        "{hint}"
    );
}

/// What it computes depends on a value. The policy alone tries, and is told nothing that it is not told with `none`.
#[test]
fn a_module_without_a_graph_is_left_to_the_policy() {
    let forward = "for _ in range(16):";
    assert!(TASK.contains(forward));
    let branch = "if x.abs().max() > 1e30:\n            x = -x\n        ";
    let task = TASK.replace(forward, &format!("{branch}{forward}"));
    let context = Context::new();
    context.write("task.py", &task);
    write_script(&context, &[reply(KERNEL)]);
    let arguments = [&["task.py", "-q"][..], &SCRIPT].concat();
    let output = judged(|| optimize(&context, &arguments));
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    let line = task.lines().position(|line| line.contains("1e30")).unwrap() + 1;
    assert_eq!(found["start"]["line"], line, "{found:#}");
    assert_eq!(found["start"]["verdict"], Value::Null);
    let reason = found["start"]["reason"].as_str().unwrap();
    assert!(reason.starts_with(&format!("line {line}: ")), "{reason}");
    assert_eq!(found["author"], "policy");
    assert_eq!(found["sample"], 1);
    let expected = format!(
        "Write `ModelNew` for this `model.py`.\n\n```python\n{}\n```",
        task.trim_end()
    );
    assert_eq!(told(&context), expected);
}
