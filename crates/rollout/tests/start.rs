//! What the policy of an `optimize` starts from, with a judge and a policy that follow scripts.

use std::path::Path;

use crate::common::{StandIn, plan, reply, scripted, task};
use serde_json::json;
use tempfile::TempDir;
use warpsmith_agent::read_files;
use warpsmith_rollout::RolloutPlan;
use warpsmith_rollout::optimize::{
    Author, Conclusion, NoSolution, PackageOptions, Start, StartContext, StartProgress,
    StartRequest, StartTuning, conclude,
};
use warpsmith_schema::{Precision, StartAuthor, Submission, Target, Task};
use warpsmith_store::RunFolder;
use warpsmith_tasks::{CaptureError, CaptureStage, NotCaptured, submission_from_text};

const RELU: &str = "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        \
    return torch.relu(x)\n\n\ndef get_inputs():\n    return [torch.randn(64)]\n\n\ndef get_init_inputs():\n    return []\n";

fn folder(place: &TempDir) -> RunFolder {
    RunFolder::at(&place.path().join("run"), &json!({ "verb": "optimize" })).unwrap()
}

fn graph(op: &str) -> serde_json::Value {
    json!({
        "values": [
            { "shape": [64], "dtype": "float32", "from": { "kind": "input", "position": 0 } },
            { "shape": [64], "dtype": "float32", "line": 7,
              "from": { "kind": "applied", "op": op, "inputs": [0], "arguments": {}, "result": 0 } },
        ],
        "returns": [1],
    })
}

fn submission(words: &str) -> Submission {
    submission_from_text(&read_files(&reply(words)).unwrap())
}

/// What comes of a request, and what was said meanwhile.
fn start(
    folder: &RunFolder,
    task: &Task,
    request: StartRequest,
    judge: &mut StandIn,
) -> (Start, Vec<String>) {
    let mut said = Vec::new();
    let mut context = StartContext {
        folder,
        task,
        target: Target::Cpu,
        capture: &|task| {
            if task.source.contains("branch") {
                return Err(CaptureError::NotCaptured(NotCaptured {
                    stage: CaptureStage::Trace,
                    message: "it branches".to_owned(),
                    operator: Some("gt".to_owned()),
                    line: Some(3),
                }));
            }
            let is_relu = task.source.contains("relu");
            let op = if is_relu { "relu" } else { "no_such_operator" };
            Ok(serde_json::from_value(graph(op)).unwrap())
        },
        judge,
        precision: Precision::Fp32,
        tuning: StartTuning {
            folder: &folder.path().join("tuning"),
            device: "stand-in",
            torch: "2.11",
            budget: None,
            stop: &|| false,
        },
    };
    let start = context.start(request, &mut |progress| {
        said.push(match progress {
            StartProgress::Capturing => "capturing".to_owned(),
            StartProgress::Absent(reason) => reason.to_string(),
            StartProgress::Judging(_) => "judging".to_owned(),
            StartProgress::Judged(verdict) => verdict.status.name().to_owned(),
            StartProgress::Tuning(_) => "tuning".to_owned(),
            StartProgress::Tuned(_) => "tuned".to_owned(),
        });
    });
    (start.unwrap(), said)
}

fn lines(path: &Path) -> usize {
    fs_err::read_to_string(path).unwrap().lines().count()
}

#[test]
fn the_compilers_solution_is_judged_once() {
    let place = TempDir::new().unwrap();
    let notes = place.path().join("notes");
    let mut judge = StandIn {
        notes: Some(notes.clone()),
        ..StandIn::default()
    };
    let task = Task {
        source: RELU.to_owned(),
        ..task(1)
    };
    let folder = folder(&place);
    let (first, said) = start(&folder, &task, StartRequest::Compiler, &mut judge);
    assert_eq!(said, ["capturing", "judging", "passed"]);
    let shown = first.starting_point().unwrap();
    assert!(shown.files["model_new.py"].contains("class ModelNew"));
    assert!(shown.us < shown.eager_us);
    let (again, said) = start(&folder, &task, StartRequest::Compiler, &mut judge);
    assert_eq!(said, ["capturing", "passed"]);
    assert_eq!(again.starting_point(), first.starting_point());
    assert_eq!(lines(&notes), 1);
}

#[test]
fn what_the_compiler_does_not_cover_is_named_with_its_line() {
    let place = TempDir::new().unwrap();
    let folder = folder(&place);
    for (text, operator, line) in [("branch", "gt", 3), ("other", "no_such_operator", 7)] {
        let source = RELU.replace("relu", text);
        let task = Task { source, ..task(1) };
        let request = StartRequest::Compiler;
        let (start, _) = start(&folder, &task, request, &mut StandIn::default());
        assert!(start.solution.is_none() && start.starting_point().is_none());
        let absent: NoSolution = start.absent.unwrap();
        assert_eq!(
            (absent.operator(), absent.line()),
            (Some(operator), Some(line))
        );
    }
}

/// A policy that says the same again has written nothing.
#[test]
fn what_a_policy_repeats_is_its_authors() {
    let place = TempDir::new().unwrap();
    let script = place.path().join("script.jsonl");
    let replies = [reply("mine"), reply("wrong")];
    let line = |text: &String| json!({ "text": text }).to_string() + "\n";
    fs_err::write(&script, replies.iter().map(line).collect::<String>()).unwrap();
    let (folder, task) = (folder(&place), task(1));
    let mut judge = StandIn::default();
    let request = StartRequest::Solution(submission("mine"));
    let (start, _) = start(&folder, &task, request, &mut judge);
    let plan = RolloutPlan {
        start: start.starting_point(),
        ..plan(vec![task.clone()], 1, 1)
    };
    let mut resources = scripted(&script, vec![judge.clone()]);
    let outcome = warpsmith_rollout::run(&folder, plan, resources.lend(), &mut |_, _| {}).unwrap();
    assert_eq!(outcome.tally.episodes, 1);
    let outcome = conclude(
        &folder,
        &task,
        start.passed(),
        &mut judge,
        Conclusion {
            failure: None,
            package: &PackageOptions::default(),
            on_round: &mut |_| {},
        },
    )
    .unwrap();
    // No faster than the start: it was told so and tried again.
    let attempts = &outcome.trajectories[0].attempts;
    let passed: Vec<bool> = attempts.iter().map(|one| one.verdict.passed()).collect();
    assert_eq!(passed, [true, false]);
    let told = outcome.trajectories[0].messages[3].text();
    assert!(told.contains("The best solution so far takes"), "{told}");
    let winner = outcome.winner.unwrap();
    assert_eq!(winner.author, Author::Start(StartAuthor::User));
}

#[test]
fn a_start_that_fails_is_nothing_to_start_from() {
    let place = TempDir::new().unwrap();
    let request = StartRequest::Solution(submission("wrong"));
    let (start, said) = start(&folder(&place), &task(1), request, &mut StandIn::default());
    assert_eq!(said, ["judging", "mismatch"]);
    assert!(start.solution.is_some());
    assert!(start.passed().is_none() && start.starting_point().is_none());
}
