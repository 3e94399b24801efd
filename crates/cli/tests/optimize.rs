//! `optimize` by the real binary, with a policy that follows a script: the judge, the sandbox and the compiler are real.

use crate::common::scale_relu::{KERNEL, TASK, reply};
use crate::common::{Context, code, json, judged};
use serde_json::{Value, json};

/// A user's own program, without Warpsmith.
const USE: &str = "
import sys
sys.path[:0] = ['run/result/package', '.']
import torch
from task import Model
from task_fast import ModelNew
assert 'warpsmith_kernels' not in sys.modules
model, faster, x = Model(256), ModelNew(256), torch.randn(1024, 256)
torch.testing.assert_close(faster(x), model(x))
try:
    faster(x[:64])
except ValueError as error:
    assert '--guard' in str(error), error
else:
    raise SystemExit('a shape that nobody judged was computed')
";

/// A folder with the task and a script of these replies.
fn context(replies: &[String]) -> Context {
    let one = |text: &String| json!({ "text": text });
    with_script(replies.iter().map(one))
}

/// The same with replies of several samples.
fn context_of_samples(replies: &[(u32, String)]) -> Context {
    let one = |(sample, text): &(u32, String)| json!({ "text": text, "sample": sample });
    with_script(replies.iter().map(one))
}

fn with_script(lines: impl Iterator<Item = Value>) -> Context {
    let context = Context::new();
    context.write("task.py", TASK);
    let lines: String = lines.map(|line| line.to_string() + "\n").collect();
    context.write("script.jsonl", &lines);
    context
}

fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec![
        "optimize",
        "task.py",
        "--policy",
        "script:script.jsonl",
        "--target",
        "cpu",
        "--no-compile",
        "--start",
        "none",
        "--out",
        "run",
        "--json",
        "-q",
    ];
    all.extend(more);
    all
}

fn trajectory(context: &Context) -> Value {
    let mut all = context.trajectories("run");
    assert_eq!(all.len(), 1);
    all.remove(0)
}

/// The example that small models are shown is itself judged here: it must pass.
#[test]
fn a_broken_attempt_is_repaired_measured_afresh_and_laid_out() {
    let broken = KERNEL.replace("return 0;", "return 0");
    let context = context(&[
        "I would rather not.".to_owned(),
        reply(&broken),
        reply(KERNEL),
    ]);
    let output = judged(|| context.command(&arguments(&[])));
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(found["verdict"]["status"], "passed");
    assert_eq!(found["ending"], json!({ "kind": "finished" }));
    assert_eq!(found["attempts"], 2);
    assert_eq!(context.read("run/result/kernels/scale_relu.cpp"), KERNEL);
    assert_eq!(context.read("run/result/model.py"), TASK);

    let trajectory = trajectory(&context);
    let statuses: Vec<&Value> = trajectory["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| &attempt["verdict"]["status"])
        .collect();
    assert_eq!(statuses, ["compile_failed", "passed"]);
    assert_eq!(trajectory["best"], 1);
    let told = trajectory["messages"][3]["text"].as_str().unwrap();
    assert!(told.contains("no fenced block"), "{told}");
    let told = trajectory["messages"][5]["text"].as_str().unwrap();
    assert!(
        told.starts_with("It does not compile") && told.contains("scale_relu.cpp"),
        "{told}"
    );

    // What was handed over stands by itself: it builds its kernels and agrees with the original.
    let python = context.python();
    context.run_as_a_user(&python, USE);

    // Again: the script is at its end, but so was the run.
    let output = judged(|| context.command(&arguments(&[])));
    assert_eq!(json(&output)["verdict"]["status"], "passed");
    assert_eq!(context.trajectories("run").len(), 1);
    // Another configuration in the same folder is refused with the difference.
    let output = context
        .command(&arguments(&["--repairs", "5"]))
        .output()
        .unwrap();
    assert_eq!(code(&output), 2);
    let message = json(&output)["failure"]["message"].clone();
    assert!(
        message.as_str().unwrap().ends_with("`repairs` was 2, is 5"),
        "{message}"
    );
    // Said in another way it is the same configuration.
    let output = context
        .command(&arguments(&["--set", "repairs=2", "--mode", "single"]))
        .output()
        .unwrap();
    assert_eq!(code(&output), 0);
}

#[test]
fn without_an_improvement_the_original_is_the_result() {
    let wrong = KERNEL.replace("scale[i], 0.0f)", "scale[i], 0.5f)");
    let context = context(&[reply(&wrong), reply(&wrong)]);
    let output = judged(|| context.command(&arguments(&["--require-speedup", "1"])));
    let found = json(&output);
    assert_eq!(code(&output), 1, "{found:#}");
    assert_eq!(found["verdict"], Value::Null);
    assert_eq!(found["ending"], json!({ "kind": "looping" }));
    assert_eq!(
        trajectory(&context)["attempts"][0]["verdict"]["status"],
        "mismatch"
    );
    assert!(
        context
            .read("run/result/model_new.py")
            .contains("from model import Model as ModelNew")
    );
}

#[test]
fn a_policy_that_is_none_and_a_script_that_is_none_are_told_at_once() {
    let context = context(&[]);
    for (policy, expected) in [
        ("tutor", "there is no policy `tutor`"),
        ("script:missing.jsonl", "failed to read the script"),
        ("local:qwen2.5-coder-1.5b+missing", "missing"),
    ] {
        let output = context
            .command(&["optimize", "task.py", "--policy", policy, "--json", "-q"])
            .output()
            .unwrap();
        assert_eq!(code(&output), 2);
        let message = json(&output)["failure"]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(message.contains(expected), "{message}");
    }
}

/// Ways to write the same module, told apart by a comment.
fn variant(number: u32) -> String {
    reply(&format!("// {number}\n{KERNEL}"))
}

/// Of the evidence of every judgement: by submission, and numbered where one was measured afresh.
fn bundles(context: &Context) -> Vec<String> {
    let entries = fs_err::read_dir(context.path("run/evidence/task")).unwrap();
    let name = |entry: std::io::Result<fs_err::DirEntry>| entry.unwrap().file_name();
    let names = entries.map(|entry| name(entry).into_string().unwrap());
    names.collect()
}

fn events(context: &Context, kind: &str) -> Vec<Value> {
    let log = context.read("run/events.jsonl");
    let events = log.lines().filter_map(|line| {
        // The last one may be being written.
        let line: Value = serde_json::from_str(line).ok()?;
        Some(line["event"].clone())
    });
    events.filter(|event| event["kind"] == kind).collect()
}

#[test]
fn samples_are_asked_together_and_the_best_is_measured_afresh() {
    let broken = KERNEL.replace("return 0;", "return 0");
    // Turn one of samples 1 to 3, then the repair of sample 1. Samples 2 and 3 say the same.
    let context = context_of_samples(&[
        (1, reply(&broken)),
        (2, variant(1)),
        (3, variant(1)),
        (1, variant(2)),
    ]);
    let output = judged(|| context.command(&arguments(&["--samples", "3", "--seed", "5"])));
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(found["verdict"]["status"], "passed");
    assert_eq!(found["attempts"], 4);
    let samples = found["samples"].as_array().unwrap();
    let told: Vec<(&Value, &Value)> = samples
        .iter()
        .map(|sample| (&sample["sample"], &sample["attempts"]))
        .collect();
    assert_eq!(
        told,
        [(1, 2), (2, 1), (3, 1)]
            .map(|(sample, attempts)| (json!(sample), json!(attempts)))
            .iter()
            .map(|(sample, attempts)| (sample, attempts))
            .collect::<Vec<_>>()
    );
    // Four attempts, three different ones.
    assert_eq!(events(&context, "judged").len(), 3);
    let mut ended: Vec<Value> = context
        .trajectories("run")
        .iter()
        .map(|one| one["sample"].clone())
        .collect();
    ended.sort_by_key(Value::as_u64);
    assert_eq!(ended, [json!(1), json!(2), json!(3)]);
    // The number that is told is none of those that chose: both finalists are measured afresh, then the winner once more.
    let remeasured = events(&context, "remeasured");
    let reported = remeasured.last().unwrap();
    assert_eq!(reported["verdict"], found["verdict"]);
    assert_eq!(reported["round"] == 2, remeasured.len() == 3);
    let evidence = found["verdict"]["evidence"].as_str().unwrap();
    let number = if remeasured.len() == 3 { "-3" } else { "-2" };
    assert!(evidence.ends_with(number), "{evidence}");
    assert_eq!(bundles(&context).len(), 3 + remeasured.len());
}

/// The script has a line for each reply and none to spare: a reply that was lost could not be had again.
#[test]
fn what_was_interrupted_goes_on_where_it_stopped() {
    let broken = KERNEL.replace("return 0;", "return 0");
    let context = context_of_samples(&[(1, variant(1)), (2, reply(&broken)), (2, variant(2))]);
    let more = ["--samples", "2", "--profile", "rl"];
    let mut running = context
        .command(&arguments(&more))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Both have replied, and neither is judged.
    let begun = || context.path("run/events.jsonl").exists();
    while !begun() || events(&context, "episode_progressed").len() < 2 {
        assert!(running.try_wait().unwrap().is_none(), "it ended too soon");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let kill = std::process::Command::new("kill")
        .args(["-INT", &running.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let output = running.wait_with_output().unwrap();
    assert_eq!(code(&output), 130);
    assert_eq!(json(&output)["failure"]["code"], "interrupted");

    let output = judged(|| context.command(&arguments(&more)));
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(found["attempts"], 3);
    let ended = context.trajectories("run");
    assert_eq!(ended.len(), 2);
    for one in ended {
        assert_eq!(one["ending"], json!({ "kind": "finished" }));
    }
}

/// What an earlier version left is refused with the reason, whoever reads it.
#[test]
fn a_run_of_an_earlier_version_is_refused() {
    let context = context(&[]);
    context.write("old/trajectories.jsonl", "{}\n");
    for arguments in [
        &["report", "old", "--json"][..],
        &[
            "train",
            "sft",
            "--data",
            "old",
            "--model",
            "smollm2-135m",
            "--json",
        ],
    ] {
        let output = context.bare(arguments).output().unwrap();
        assert_eq!(code(&output), 2);
        let failure = &json(&output)["failure"];
        let message = failure["message"].as_str().unwrap();
        assert!(message.contains("is of an earlier version"), "{failure}");
        assert!(failure["hint"].as_str().unwrap().contains("again"));
    }
}

#[test]
fn settings_come_from_flags_set_and_file_in_that_order() {
    let context = context(&[]);
    context.write("mine.toml", "samples = 3\nrepairs = 0\nprofile = \"rl\"\n");
    let printed = |more: &[&str]| {
        let mut all = vec!["optimize", "--print-config", "--config", "mine.toml"];
        all.extend(more);
        context.bare(&all).output().unwrap()
    };
    let output = printed(&[
        "--set",
        "repairs=7",
        "--set",
        "policy=openai:x",
        "--samples",
        "5",
    ]);
    assert_eq!(code(&output), 0);
    let text = String::from_utf8(output.stdout).unwrap();
    for expected in [
        "\nsamples = 5\n",
        "\nrepairs = 7\n",
        "\nprofile = \"rl\"\n",
        "\npolicy = \"openai:x\"\n",
        "\n# seed = 7\n",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    // What is printed is a file that says the same.
    context.write("printed.toml", &text);
    let again = context
        .bare(&["optimize", "--print-config", "--config", "printed.toml"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(again.stdout).unwrap(), text);

    for (more, message, hint) in [
        (
            ["--set", "sampels=4"],
            "there is no setting `sampels`",
            "did you mean `samples`?",
        ),
        (
            ["--set", "samples=0"],
            "`samples` cannot be this",
            "--print-config",
        ),
        (
            ["--set", "profile=fast"],
            "expected one of `full`, `rl`, `verify`",
            "--print-config",
        ),
        (
            ["--temperature", "0"],
            "3 samples at `temperature` 0",
            "leave out one",
        ),
    ] {
        let output = printed(&[&more[..], &["--json"]].concat());
        assert_eq!(code(&output), 2);
        let failure = &json(&output)["failure"];
        assert_eq!(failure["kind"], "config");
        assert!(
            failure["message"].as_str().unwrap().contains(message),
            "{failure}"
        );
        assert!(
            failure["hint"].as_str().unwrap().contains(hint),
            "{failure}"
        );
    }
}
