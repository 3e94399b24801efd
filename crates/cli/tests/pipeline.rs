//! `train pipeline` and `train … --dry-run` by the real binary, with a model of random numbers on the processor.
#![cfg(feature = "local-models")]
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{Context, code, json};
use crate::train::{context, task_lines};

const SETTINGS: &str = r#"
model = "./model"
teacher = ["data.jsonl"]
tasks = "tasks.jsonl"
validation = "validation.jsonl"

[learning]
warmup_steps = 0
lr_scheduler_type = "constant"
checkpoint_every = 1

[judging]
target = "cpu"
no_compile = true
max_tokens = 6

[sft]
epochs = 1
learning_rate = 0.02

[gate]
samples = 1

[single_turn]
steps = 2
tasks_per_step = 2
samples = 1
learning_rate = 0.001
cut_replies = "penalise"
evaluate_every = 2
validation_samples = 1

[collect]
samples = 1

[rft]
above = -2.0
epochs = 1
max_tokens = 4096

[value]
epochs = 1

[agentic]
steps = 1
tasks_per_step = 1
samples = 2
learning_rate = 0.001
turns = 2
validation_samples = 1
"#;

fn prepared() -> Context {
    let context = context();
    context.write("tasks.jsonl", &task_lines(1..3));
    context.write("validation.jsonl", &task_lines(3..4));
    context.write("pipeline.toml", SETTINGS);
    context
}

fn pipeline(context: &Context, more: &[&str]) -> Command {
    let usual = ["train", "pipeline", "--config", "pipeline.toml"];
    let usual = [&usual[..], &["--json", "-q"]].concat();
    let out: &[&str] = if more.contains(&"--out") {
        &[]
    } else {
        &["--out", "run"]
    };
    context.command(&[&usual[..], out, more].concat())
}

fn stages(found: &Value) -> Vec<&str> {
    let stages = found["stages"].as_array().unwrap().iter();
    stages.map(|one| one["stage"].as_str().unwrap()).collect()
}

/// A gate that says no, a kill in the middle of a stage, and on to the end; what was done is not done again.
#[test]
fn a_pipeline_stops_at_its_gate_goes_on_when_told_and_after_a_kill() {
    let context = prepared();
    let output = pipeline(&context, &[]).output().unwrap();
    let found = json(&output);
    assert_eq!(code(&output), 1, "{found:#}");
    assert_eq!(stages(&found), ["sft"]);
    assert_eq!(found["stopped_by"]["passed"], false);
    assert_eq!(found["stopped_by"]["found"]["unreadable"], 1.0);
    let sft_metrics = context.read("run/sft/metrics.jsonl");

    let mut child = pipeline(&context, &["--ignore-gates"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let metrics = context.path("run/single_turn/metrics.jsonl");
    for _ in 0..1200 {
        let text = fs_err::read_to_string(&metrics).unwrap_or_default();
        if text.contains("\"step\":1") {
            break;
        }
        assert!(child.try_wait().unwrap().is_none(), "it was not to end yet");
        sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!context.read("run/stages.jsonl").contains("single_turn"));

    let output = pipeline(&context, &["--ignore-gates"]).output().unwrap();
    let found = json(&output);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(code(&output), 0, "{found:#}\n{said}");
    let all = [
        "sft",
        "gate",
        "single_turn",
        "collect",
        "rft",
        "value",
        "agentic",
    ];
    assert_eq!(stages(&found), all);
    assert_eq!(context.read("run/sft/metrics.jsonl"), sft_metrics);
    // Each stage begins with what the one before left.
    let models: Vec<&str> = found["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["model"].as_str().unwrap())
        .collect();
    let after = |stage: &str| format!("./model+run/{stage}/published");
    let expected = [
        "sft",
        "sft",
        "single_turn",
        "single_turn",
        "rft",
        "rft",
        "agentic",
    ];
    assert_eq!(models, expected.map(after));
    // Before, between and after.
    let rft = &found["stages"][4]["result"]["data"];
    assert_eq!(
        (&rft["kept"], &rft["demonstrations"]),
        (&json!(2), &json!(1))
    );
    // Until a critic is pretrained, every token hears of the reward.
    let lam = |stage: &str| -> Value {
        let config = context.read(&format!("run/{stage}/config.json"));
        serde_json::from_str::<Value>(&config).unwrap()["lam"].clone()
    };
    assert_eq!(
        (lam("single_turn"), lam("agentic")),
        (json!(1.0), json!(0.95))
    );
    let lines = context.read("run/single_turn/metrics.jsonl");
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let looked = |line: &Value| line["validation_reward"].is_f64();
    let steps: Vec<(u64, bool)> = lines
        .iter()
        .map(|line| (line["step"].as_u64().unwrap(), looked(line)))
        .collect();
    assert_eq!(steps, [(0, true), (1, false), (2, true)]);
    assert!(
        context
            .path("run/single_turn/best/adapter_config.json")
            .is_file()
    );
    // The last stage was an agent's: two replies, and both were trained on.
    let played = context.read("run/agentic/rollouts/step-000001-0/events.jsonl");
    assert!(played.contains("\"mode\":\"agent\""));
    let last = &found["stages"][6]["result"]["metrics"];
    let length = last["length"].as_f64().unwrap();
    assert!(length > 6.0 && length <= 12.0, "{last:#}");
    // A critic that was pretrained expects what is always paid; a new one would not.
    assert!(last["value_loss"].as_f64().unwrap() < 0.1, "{last:#}");

    // The gate does not ask twice.
    let again = pipeline(&context, &[]).output().unwrap();
    let (exit, again) = (code(&again), json(&again));
    assert_eq!((exit, stages(&again)), (0, all.to_vec()));
    assert_eq!(again["model"], found["model"]);
    let other = pipeline(&context, &["--no-rft"]).output().unwrap();
    assert_eq!(
        (code(&other), &json(&other)["failure"]["code"]),
        (2, &json!("other_run"))
    );

    // Where nothing was paid for there is nothing to imitate, and what comes after goes on without.
    let arguments = "--no-sft --no-single-turn --no-value --set rft.above=0 --out poor";
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let output = pipeline(&context, &arguments).output().unwrap();
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(stages(&found), ["collect", "rft", "agentic"]);
    let why = found["stages"][1]["result"]["left_out"].as_str().unwrap();
    assert!(why.contains("2 are left out by outcome"), "{why}");
    assert_eq!(found["stages"][1]["model"], "./model");
}

/// Before anything is trained; and once it is mended, in the same folder.
#[test]
fn mistakes_of_a_pipeline_are_told_at_once() {
    let context = prepared();
    let refused = |more: &[&str]| {
        let output = pipeline(&context, more).output().unwrap();
        let found = json(&output);
        assert_eq!(code(&output), 2, "{found:#}");
        found["failure"]["message"].as_str().unwrap().to_owned()
    };
    let message = refused(&["--tasks", "nowhere.jsonl"]);
    assert!(message.contains("nowhere.jsonl"), "{message}");
    let message = refused(&["--validation", "tasks.jsonl"]);
    assert!(
        message.contains("among those of `--validation`"),
        "{message}"
    );
    let message = refused(&["--set", "agentic.temperature=0.7"]);
    assert!(message.starts_with("`temperature` is 0.7"), "{message}");
    let message = refused(&["--set", "value.rank=2"]);
    assert!(message.contains("[value] and [agentic]"), "{message}");
    let message = refused(&["--set", "sft.max_tokens=1"]);
    assert!(message.contains("ends within 1 tokens"), "{message}");
    let message = refused(&[
        "--set",
        "sft.max_tokens=2",
        "--set",
        "sft.checkpoint_every=7",
    ]);
    assert!(message.contains("ends within 2 tokens"), "{message}");
}

#[test]
fn a_dry_run_reckons_every_stage_and_starts_nothing() {
    let context = prepared();
    let bare = |arguments: &[&str]| context.bare(arguments).output().unwrap();
    let usual = [
        "train",
        "pipeline",
        "--config",
        "pipeline.toml",
        "--out",
        "run",
        "--dry-run",
        "--json",
        "-q",
    ];
    let output = bare(&usual);
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(stages(&found).len(), 7);
    assert!(!context.path("run").exists());
    let single = &found["stages"][2];
    // Two steps of two tasks, and evaluations before and after; one reply each.
    assert_eq!(single["episodes"], 6);
    assert_eq!(single["work"]["generated_tokens"], 6.0 * 600.0);
    // One pass of the policy and two of the critic.
    assert_eq!(single["work"]["trained_tokens"], 3.0 * 4.0 * 1800.0);
    for part in [
        "weights",
        "trainable",
        "optimizer",
        "activations",
        "kv_cache",
    ] {
        assert!(single["memory"][part].as_u64().unwrap() > 0, "{part}");
    }
    let seconds: f64 = found["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["seconds"]["total"].as_f64().unwrap())
        .sum();
    assert!((found["seconds"].as_f64().unwrap() - seconds).abs() < 1e-6);
    // A speed that is given is taken, and its source said.
    let given = json(&bare(
        &[&usual[..], &["--estimate-judgements-per-minute", "30"]].concat(),
    ));
    assert_eq!(given["speeds"]["judge"], 30.0);
    assert_eq!(given["sources"]["judge"], "as given");
    assert!(
        found["sources"]["judge"]
            .as_str()
            .unwrap()
            .starts_with("docs/results/judge.md")
    );

    let verbs: [&[&str]; 3] = [
        &["sft", "--data", "data.jsonl"],
        &["value", "--data", "data.jsonl"],
        &[
            "ppo",
            "--tasks",
            "tasks.jsonl",
            "--validation",
            "validation.jsonl",
        ],
    ];
    // The second one would have to be fetched.
    let models = ["./model", "qwen2.5-coder-1.5b"];
    for (verb, model) in verbs
        .iter()
        .flat_map(|verb| models.map(|model| (verb, model)))
    {
        let output = bare(&[&["train"], *verb, &["--model", model, "--dry-run"]].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(code(&output), 0, "{said}");
        assert!(
            said.contains("activations") && said.contains("tokens/s"),
            "{said}"
        );
    }
    assert!(!context.path("runs").exists());
}

#[test]
fn validation_tasks_must_not_be_trained_on() {
    let context = prepared();
    let arguments = [
        "train",
        "ppo",
        "--tasks",
        "tasks.jsonl",
        "--validation",
        "tasks.jsonl",
        "--model",
        "./model",
        "--json",
    ];
    let output = context.bare(&arguments).output().unwrap();
    let found = json(&output);
    assert_eq!(code(&output), 2);
    let message = found["failure"]["message"].as_str().unwrap();
    assert!(
        message.contains("among the tasks and among those of `--validation`"),
        "{message}"
    );
}
