//! `--policy teacher` by the real binary: composed tasks, one whose graph is captured from its module, and one that has none;
//! the judge is real.

use crate::common::{Context, code, json};
use serde_json::{Value, json};
use warpsmith_synth::{Composition, SeedCatalogue, TaskSize};

/// Compositions that hold something of everything, by their operators.
fn tasks() -> String {
    let seeds = SeedCatalogue::torch().unwrap();
    let mut lines = String::new();
    let mut wanted = vec!["layer_norm", "linear", "conv2d"];
    for index in 0.. {
        let Some(made) = Composition::new(&seeds, 3, index, 2) else {
            continue;
        };
        let Some(place) = wanted
            .iter()
            .position(|op| made.ops().iter().any(|own| own == op))
        else {
            continue;
        };
        let size = TaskSize::new(1).unwrap();
        let line = json!({ "name": wanted.remove(place), "code": made.code(size), "graph": made.graph(size) });
        lines += &(line.to_string() + "\n");
        if wanted.is_empty() {
            break;
        }
    }
    let bare = json!({ "name": "bare", "code": include_str!("common/scale_relu.py") });
    lines + &bare.to_string() + "\n"
}

/// What it computes depends on a value, so that it has no graph.
const BRANCHES: &str = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        \
    return torch.relu(x) * (2.0 if x.abs().sum() > 0 else 1.0)\n\n\ndef get_inputs():\n    return [torch.randn(512, 256)]\n\n\n\
def get_init_inputs():\n    return []\n";

#[test]
fn composed_and_captured_tasks_are_solved_and_others_are_not_covered() {
    let context = Context::new();
    let branches = json!({ "name": "branches", "code": BRANCHES });
    context.write("tasks.jsonl", &format!("{}{branches}\n", tasks()));
    let output = context
        .command(&[
            "rollout",
            "--tasks",
            "tasks.jsonl",
            "--policy",
            "teacher",
            "--target",
            "cpu",
            "--no-compile",
            "--profile",
            "rl",
            "--seed",
            "1",
            "--out",
            "run",
            "--json",
            "-q",
        ])
        .output()
        .unwrap();
    assert_eq!(
        code(&output),
        0,
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let result = json(&output);
    assert_eq!(result["episodes"]["passed"], 4, "{result}");
    assert_eq!(
        result["endings"],
        json!({ "finished": 4, "not_covered": 1 })
    );
    // Why it has no graph stands where its episode is looked at.
    let uncovered = context
        .trajectories("run")
        .into_iter()
        .find(|one| one["ending"]["kind"] == "not_covered")
        .unwrap();
    let message = uncovered["ending"]["message"].as_str().unwrap();
    assert!(
        message.contains("its graph could not be captured"),
        "{message}"
    );
    // What a student is trained on: its own prompt, and a reply that can be read.
    let ended: Vec<Value> = context
        .read("run/events.jsonl")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].clone())
        .filter(|event| event["kind"] == "episode_ended")
        .collect();
    for event in ended {
        let trajectory = &event["trajectory"];
        let messages = trajectory["messages"].as_array().unwrap();
        assert_eq!(messages[0]["role"], "system");
        assert!(
            messages[0]["text"]
                .as_str()
                .unwrap()
                .contains("You write fast C++ with OpenMP")
        );
        if trajectory["ending"]["kind"] == "finished" {
            assert!(
                messages[2]["text"]
                    .as_str()
                    .unwrap()
                    .contains("write model_new.py")
            );
        }
    }
}

#[test]
fn demos_need_no_judge_and_are_what_a_student_learns() {
    let context = Context::new();
    context.write("tasks.jsonl", &tasks());
    let demos = |target: &str, more: &[&str]| {
        let mut arguments = vec!["train", "demos", "--tasks", "tasks.jsonl"];
        arguments.extend(["--target", target, "--out", "demos.jsonl", "--json"]);
        arguments.extend(more);
        context.command(&arguments).output().unwrap()
    };
    let output = demos("cuda", &["--styles", "plain,tuned"]);
    assert_eq!(code(&output), 0);
    let told = json(&output);
    // The last one came without a graph, and PyTorch captured it.
    assert_eq!(
        (&told["tasks"], &told["not_covered"]),
        (&json!(4), &json!(0))
    );
    let file = fs_err::read_to_string(context.path("demos.jsonl")).unwrap();
    let lines: Vec<Value> = file
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(told["demos"], json!(lines.len()));
    for line in &lines {
        let messages = line["messages"].as_array().unwrap();
        let roles: Vec<&Value> = messages.iter().map(|message| &message["role"]).collect();
        assert_eq!(roles, ["system", "user", "assistant"]);
        let reply = messages[2]["text"].as_str().unwrap();
        assert!(reply.contains("write model_new.py\n```python\n"), "{reply}");
        assert!(
            reply.contains("__global__") || reply.contains("warpsmith_"),
            "{reply}"
        );
        assert_eq!(
            (&line["attempts"], &line["policy"]["name"]),
            (&json!([]), &json!("teacher"))
        );
    }
    // Validation is not taught, and nothing that is like it.
    let tasks = tasks();
    let first = tasks.lines().next().unwrap();
    context.write("validation.jsonl", first);
    fs_err::remove_file(context.path("demos.jsonl")).unwrap();
    let fewer = json(&demos("cuda", &["--except", "validation.jsonl"]));
    assert_eq!(fewer["excluded"], json!(1));
    let excluded: Value = serde_json::from_str(first).unwrap();
    let taught = |file: &str| file.contains(&format!(r#""name":{}"#, excluded["name"]));
    assert!(taught(&file) && !taught(&context.read("demos.jsonl")));
    // Composed ones come on top, by their seed.
    let composed = |seed: &str| {
        fs_err::remove_file(context.path("demos.jsonl")).unwrap();
        let told = json(&demos("cuda", &["--compose", "20", "--seed", seed]));
        assert_eq!(told["tasks"], json!(24));
        context.read("demos.jsonl")
    };
    let (some, others) = (composed("5"), composed("6"));
    assert!(some.contains("exercise-5-torch2-") && !others.contains("exercise-5-"));
    // What is there is not written over, and tasks that nobody can teach are an error.
    assert_eq!(code(&demos("cuda", &[])), 2);
    context.write(
        "bare.jsonl",
        &json!({ "name": "bare", "code": "x" }).to_string(),
    );
    for (more, hint) in [
        ("--tasks bare.jsonl", "says why a module has none"),
        (
            "--tasks tasks.jsonl --except tasks.jsonl",
            "fewer to exclude",
        ),
        ("", "`--handwritten N` make some up"),
    ] {
        let arguments = format!("train demos {more} --target cpu --out a/b/c.jsonl --json");
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        let refused = context.command(&arguments).output().unwrap();
        assert_eq!(code(&refused), 2);
        let failure = &json(&refused)["failure"];
        assert_eq!(failure["code"], "no_demo");
        let found = failure["hint"].as_str().unwrap();
        assert!(found.contains(hint), "{found}");
        assert!(!context.path("a").exists());
    }
    let arguments = "train demos --compose 3 --target cpu --out a/b/c.jsonl";
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    assert_eq!(code(&context.command(&arguments).output().unwrap()), 0);
    assert!(context.path("a/b/c.jsonl").is_file());
    // As people write them, for a model that was trained with few words before them.
    let arguments = "train demos --handwritten 2 --prompt short --target cuda --out e.jsonl";
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    assert_eq!(code(&context.command(&arguments).output().unwrap()), 0);
    let written = context.read("e.jsonl");
    assert!(written.contains(r#""id":"handwritten-0-"#) && written.contains("First the plan"));
    // More than memory holds.
    let arguments = "train demos --compose 99999999999 --target cpu --out d.jsonl";
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let refused = context.command(&arguments).output().unwrap();
    assert_eq!(code(&refused), 2);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(told.contains("0..=1000000"), "{told}");
}

/// Bases of their own, imports over several lines, names that are defined late, keys that are no identifiers.
#[test]
fn the_compiler_takes_modules_as_people_write_them() {
    let context = Context::new();
    let modules = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/modules");
    let output = context
        .command(&[
            "rollout",
            "--tasks",
            modules,
            "--policy",
            "compiler",
            "--target",
            "cpu",
            "--profile",
            "verify",
            "--repairs",
            "0",
            "--out",
            "run",
            "--json",
            "-q",
        ])
        .output()
        .unwrap();
    let result = json(&output);
    assert_eq!(result["episodes"]["passed"], 6, "{result}");
}

/// A reply that failed is read with its verdict; what is learned after it says where it went astray, and is right.
#[test]
fn failed_replies_of_a_run_become_corrections() {
    let context = Context::new();
    let done = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        context.command(&arguments).output().unwrap()
    };
    let demos = done(
        "train demos --handwritten 1 --seed 3 --styles fused --prompt short --target cpu --out right.jsonl",
    );
    assert_eq!(code(&demos), 0);
    let right: Value = serde_json::from_str(context.read("right.jsonl").trim()).unwrap();
    let reply = right["messages"][2]["text"].as_str().unwrap();
    let wrong = reply.replacen("extern \"C\" int ", "extern \"C\" imt ", 1);
    assert_ne!(wrong, reply);
    let task = json!({ "name": "lone", "code": right["task"]["source"] });
    context.write("tasks.jsonl", &task.to_string());
    context.write("script.jsonl", &json!({ "text": wrong }).to_string());
    let run = "rollout --tasks tasks.jsonl --policy script:script.jsonl --mode single --repairs 0 --profile verify --prompt short --target cpu --out run --json -q";
    let result = json(&done(run));
    assert_eq!(result["episodes"]["passed"], 0, "{result}");

    let repaired = json(&done(
        "train demos --repairs run --styles fused --target cpu --out repairs.jsonl --json",
    ));
    assert_eq!(
        (&repaired["demos"], &repaired["repairs"]),
        (&json!(1), &json!(1))
    );
    let line: Value = serde_json::from_str(context.read("repairs.jsonl").trim()).unwrap();
    let messages = line["messages"].as_array().unwrap();
    assert_eq!(messages[2]["text"], wrong);
    let told = messages[3]["text"].as_str().unwrap();
    assert!(told.contains("imt"), "{told}");
    let correction = messages[4]["text"].as_str().unwrap();
    assert!(
        correction.starts_with("Wrong: `extern \"C\" imt "),
        "{correction}"
    );
    assert!(correction.ends_with(reply), "{correction}");
    assert_eq!(line["attempts"].as_array().unwrap().len(), 1);
    // Nothing failed for the other target, and validation is not taught.
    for other in ["--target cuda", "--target cpu --except tasks.jsonl"] {
        let refused = done(&format!(
            "train demos --repairs run {other} --out none.jsonl --json"
        ));
        assert_eq!(json(&refused)["failure"]["code"], "no_demo");
    }
}
