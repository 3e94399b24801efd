//! `--policy teacher` by the real binary: composed tasks, and one without a graph; the judge is real.

use crate::common::{Context, alone, code, json};
use serde_json::{Value, json};
use warpsmith_synth::{Composition, Seeds, Size};

/// Compositions that hold something of everything, by their operators.
fn tasks() -> String {
    let seeds = Seeds::torch().unwrap();
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
        let size = Size::new(1).unwrap();
        let line = json!({ "name": wanted.remove(place), "code": made.code(size), "graph": made.graph(size) });
        lines += &(line.to_string() + "\n");
        if wanted.is_empty() {
            break;
        }
    }
    let bare = json!({ "name": "bare", "code": include_str!("common/scale_relu.py") });
    lines + &bare.to_string() + "\n"
}

#[test]
fn composed_tasks_are_solved_and_others_are_not_covered() {
    let _lock = alone();
    let context = Context::new();
    context.write("tasks.jsonl", &tasks());
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
    assert_eq!(result["episodes"]["passed"], 3, "{result}");
    assert_eq!(
        result["endings"],
        json!({ "finished": 3, "not_covered": 1 })
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
