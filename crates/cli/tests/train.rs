//! `train` by the real binary, with a model of random numbers on the processor.
#![cfg(feature = "local-models")]

use std::collections::BTreeSet;
use std::process::{Command, Output};

use crate::common::venv::python_with;
use crate::common::{Context, code, files, json};
use crate::tiny;
use serde_json::Value;
use warpsmith_schema::{
    Attempt, EpisodeEnding, EpisodeMode, Message, PolicyVersion, Profile, Status, Target, Task,
    TokenRecord, Trajectory, Verdict,
};

/// Every second one passed; one of them by saying the same three times.
fn trajectories(count: u32) -> Vec<Trajectory> {
    let trajectory = |number: u32| {
        let task = Task {
            id: format!("level1/{number}"),
            name: format!("task {number}"),
            source: String::new(),
            level: Some(1),
            problem_id: Some(number),
            origin: String::new(),
            graph: None,
        };
        let policy = PolicyVersion {
            name: "script:teacher".into(),
            hash: None,
            step: None,
        };
        let mut trajectory = Trajectory::begin(&task, Target::Cpu, &policy, 1, EpisodeMode::Single);
        trajectory.ending = EpisodeEnding::Finished;
        let word = ["float", "int"][number as usize % 2];
        for turn in 0..if number == 2 { 3 } else { 1 } {
            trajectory.messages.push(Message::User {
                text: format!("Write {word}, {turn}."),
            });
            trajectory.messages.push(Message::Assistant {
                text: format!("{word} x;"),
                calls: Vec::new(),
            });
        }
        let passed = number.is_multiple_of(2);
        let status = if passed {
            Status::Passed
        } else {
            Status::Crashed
        };
        let mut verdict = Verdict::unreached(status, Target::Cpu, Profile::Rl, String::new());
        verdict.reward.robust = if passed { 1.0 } else { -1.0 };
        trajectory.attempts = vec![Attempt {
            message: 1,
            files: [].into(),
            verdict,
        }];
        trajectory.best = passed.then_some(0);
        trajectory
    };
    (1..=count).map(trajectory).collect()
}

fn lines(trajectories: &[Trajectory]) -> String {
    let line = |one: &Trajectory| serde_json::to_string(one).unwrap() + "\n";
    trajectories.iter().map(line).collect()
}

pub(crate) fn context() -> Context {
    let context = Context::new();
    tiny::write(&context.path("model"), tiny::VOCABULARY);
    context.write("data.jsonl", &lines(&trajectories(12)));
    context
}

/// Quick, and large steps.
const USUAL: [(&str, &str); 8] = [
    ("--data", "data.jsonl"),
    ("--model", "./model"),
    ("--epochs", "3"),
    ("--batch", "4"),
    ("--learning-rate", "0.02"),
    ("--warmup-steps", "2"),
    ("--held-out", "0.2"),
    ("--out", "run"),
];

/// What `more` says wins over what is usual.
fn command(context: &Context, verb: &str, more: &str) -> Command {
    let more: Vec<&str> = more.split_whitespace().collect();
    let mut all = vec!["train", verb, "--json", "-q"];
    for (flag, value) in USUAL {
        if !more.contains(&flag) {
            all.extend([flag, value]);
        }
    }
    all.extend(more);
    context.bare(&all)
}

fn train(context: &Context, verb: &str, more: &str) -> Output {
    command(context, verb, more).output().unwrap()
}

fn done(context: &Context, verb: &str, more: &str) -> Value {
    let output = train(context, verb, more);
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    found
}

/// The failure's code and message.
fn refused(output: &Output, exit: i32) -> (String, String) {
    let found = json(output);
    assert_eq!(code(output), exit, "{found:#}");
    let text = |name: &str| found["failure"][name].as_str().unwrap().to_owned();
    (text("code"), text("message"))
}

#[test]
fn sft_learns_and_its_adapter_is_served_and_goes_on_learning() {
    let context = context();
    let found = done(&context, "sft", "");
    assert_eq!(found["verb"], "train sft");
    assert_eq!(found["warnings"], serde_json::json!([]));
    assert_eq!(found["data"]["trajectories"], 12);
    assert_eq!((&found["step"], &found["steps"]), (&9.into(), &9.into()));
    let metrics = context.read("run/metrics.jsonl");
    let lines: Vec<Value> = metrics
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 9);
    let loss = |line: &Value| line["loss"].as_f64().unwrap();
    assert!(loss(&lines[8]) < 0.8 * loss(&lines[0]), "{metrics}");
    assert!(found["metrics"]["validation_loss"].is_f64(), "{found:#}");

    // So does TensorBoard, while it trains.
    let place = context.path("run/tensorboard/events.out.tfevents.0.warpsmith");
    let events = fs_err::read(place).unwrap();
    let name = b"training/loss";
    let points = events.windows(name.len()).filter(|one| one == name);
    assert_eq!(points.count(), 9);

    // The report draws it.
    let output = context.bare(&["report", "run", "--html", "report.html"]);
    let output = { output }.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(code(&output), 0, "{said}");
    assert!(context.read("report.html").contains("validation_loss"));

    // The same again has nothing left to do, another configuration is refused.
    let again = done(&context, "sft", "--checkpoint-every 3");
    assert_eq!(again["metrics"], found["metrics"]);
    let (code, message) = refused(&train(&context, "sft", "--seed 1"), 2);
    assert_eq!(code, "other_run");
    assert!(message.contains("seed"), "{message}");

    // On from the adapter, in another run.
    let on = "--model ./model+run/published --out on";
    let on = done(&context, "sft", on);
    let first = context.read("on/metrics.jsonl");
    let first: Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
    assert!(loss(&first) < 0.8 * loss(&lines[0]), "{first}");
    assert!(on["published"].as_str().unwrap().ends_with("published"));
}

/// With the services' own packages, which write into folders here.
#[test]
fn steps_are_logged_to_wandb_and_mlflow() {
    let packages = ["wandb==0.31.0", "mlflow-skinny==3.17.2"];
    let python = python_with("wandb-0.31.0-mlflow-3.17.2", &packages);
    let context = context();
    let flags = format!(
        "--wandb kernels --mlflow kernels --tracker-python {}",
        python.display()
    );
    let output = command(&context, "sft", &flags)
        .env("WANDB_MODE", "offline")
        .env("MLFLOW_TRACKING_URI", "file:./mlruns")
        .env("MLFLOW_ALLOW_FILE_STORE", "true")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(code(&output), 0, "{said}");
    let ids: Value = serde_json::from_str(&context.read("run/tracking.json")).unwrap();
    let metrics = context.read("run/metrics.jsonl");
    let last: Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    // A line a step: time, value, step.
    let of_mlflow = files(&context.path("mlruns"));
    let found = of_mlflow.iter().find(|file| file.ends_with("metrics/loss"));
    let history = context.read(&format!("mlruns/{}", found.expect(&said)));
    assert!(found.unwrap().contains(ids["mlflow"].as_str().unwrap()));
    assert_eq!(history.lines().count(), 9);
    let words: Vec<f64> = history
        .lines()
        .last()
        .unwrap()
        .split(' ')
        .map(|word| word.parse().unwrap())
        .collect();
    assert!((words[1] - last["loss"].as_f64().unwrap()).abs() < 1e-12 && words[2] > 8.5);
    let of_wandb = files(&context.path("wandb"));
    let id = ids["wandb"].as_str().unwrap();
    let found = of_wandb
        .iter()
        .find(|file| file.ends_with(&format!("run-{id}.wandb")));
    let log = fs_err::read(context.path("wandb").join(found.expect(&said))).unwrap();
    assert!(log.windows(9).any(|part| part == b"grad_norm"));

    // Where the package is missing nothing is learnt.
    let bare = python_with("bare", &["pip"]);
    let more = format!("--out other --wandb x --tracker-python {}", bare.display());
    let (code, message) = refused(&train(&context, "sft", &more), 2);
    assert_eq!(code, "tracker");
    assert!(message.contains("cannot import wandb"), "{message}");
    assert!(!context.path("other").exists());
}

#[test]
fn rft_leaves_out_what_was_not_paid_for_and_loops() {
    let context = context();
    let found = done(&context, "rft", "");
    let expected = serde_json::json!({
        "trajectories": 12, "kept": 5, "demonstrations": 0,
        "left_out": {
            "outcome": 6, "loops": 1, "tool_schema": 0, "duplicates": 0, "surplus": 0, "nothing_fits": 0,
            "benchmark": 0
        },
    });
    assert_eq!(found["data"], expected);
    let all = done(&context, "rft", "--above -2 --repeats 9 --out all");
    assert_eq!(all["data"]["kept"], 12);
}

/// Eight trajectories of each of three tasks: solved five times, always and once.
#[test]
fn rft_prefers_tasks_that_are_solved_now_and_then_and_mixes_demonstrations_in() {
    let context = context();
    let mut own = Vec::new();
    for (task, solved) in [("some", 5), ("every", 8), ("once", 1)] {
        for sample in 1..=8 {
            let [.., failed, passed] = <[Trajectory; 4]>::try_from(trajectories(4)).unwrap();
            let mut one = if sample <= solved { passed } else { failed };
            one.task.id = task.into();
            one.sample = sample;
            // The first two say the same but for their spaces.
            let said = match sample {
                1 => "int  x2;".to_owned(),
                _ => format!("int x{sample};"),
            };
            one.messages[1] = Message::Assistant {
                text: said,
                calls: Vec::new(),
            };
            own.push(one);
        }
    }
    context.write("own.jsonl", &lines(&own));
    let of = |more: &str| done(&context, "rft", &format!("--data own.jsonl {more}"));
    let found = of("--max-per-task 3 --held-out 0");
    let expected = serde_json::json!({
        "trajectories": 24, "kept": 5, "demonstrations": 0,
        "left_out": {
            "outcome": 10, "loops": 0, "tool_schema": 0, "duplicates": 2, "surplus": 7, "nothing_fits": 0,
            "benchmark": 0
        },
    });
    assert_eq!(found["data"], expected);
    let mixed =
        "--max-per-task 3 --held-out 0 --demonstrations data.jsonl --demonstration-share 0.5";
    let found = of(&format!("{mixed} --out mixed"));
    assert_eq!(found["data"]["demonstrations"], 5);
    // Ten examples in batches of four, three times.
    assert_eq!(found["steps"], 9);
    // Other demonstrations make another run.
    context.write("data.jsonl", &lines(&trajectories(10)));
    let again = format!("--data own.jsonl {mixed} --out mixed");
    let (code, message) = refused(&train(&context, "rft", &again), 2);
    assert_eq!(code, "other_run");
    assert!(message.contains("demonstrated"), "{message}");
}

#[test]
fn value_needs_tokens_and_learns_from_them() {
    let context = context();
    let (code, message) = refused(&train(&context, "value", ""), 2);
    assert_eq!(code, "training_data");
    assert!(
        message.contains("level1/1, sample 1 has no record of its tokens"),
        "{message}"
    );
    let mut recorded = trajectories(12);
    for (number, trajectory) in recorded.iter_mut().enumerate() {
        let kind = 10 + number as u32 % 2;
        trajectory.tokens = Some(vec![TokenRecord {
            ids: vec![1, kind, 20, 21],
            logprobs: vec![None, None, Some(-1.0), Some(-1.0)],
            loss_mask: vec![false, false, true, true],
            replies: vec![1],
            template: None,
            tokenizer: None,
        }]);
    }
    context.write("data.jsonl", &lines(&recorded));
    let found = done(&context, "value", "--epochs 30 --out critic");
    let explained = found["metrics"]["explained_variance"].as_f64().unwrap();
    assert!(explained > 0.3, "{found:#}");
    assert_eq!(found["published"], Value::Null);
    for trajectory in &mut recorded {
        let records = trajectory.tokens.iter_mut().flatten();
        records.for_each(|record| record.ids[1] = 999_999);
    }
    context.write("data.jsonl", &lines(&recorded));
    let (code, message) = refused(&train(&context, "value", "--out other"), 2);
    assert_eq!(code, "training_data");
    assert!(message.contains("token 999999"), "{message}");
    for trajectory in &mut recorded {
        let records = trajectory.tokens.iter_mut().flatten();
        records.for_each(|record| record.loss_mask.truncate(3));
    }
    context.write("data.jsonl", &lines(&recorded));
    let (code, message) = refused(&train(&context, "value", "--out other"), 2);
    assert_eq!(code, "training_data");
    assert!(message.contains("does not add up"), "{message}");
}

#[test]
fn nothing_to_learn_from_is_the_users_to_mend() {
    let context = context();
    let arguments = ["train", "sft", "--json"];
    let (code, message) = refused(&context.bare(&arguments).output().unwrap(), 2);
    assert_eq!(code, "usage");
    assert!(message.ends_with("not provided: --data <RUN>"), "{message}");
    context.write("data.jsonl", "");
    let (code, message) = refused(&train(&context, "sft", ""), 2);
    assert_eq!(code, "training_data");
    assert!(
        message.starts_with("there is nothing to learn from"),
        "{message}"
    );
    let (code, _) = refused(&train(&context, "sft", "--data nowhere"), 2);
    assert_eq!(code, "unreadable");
    context.write("data.jsonl", &task_lines(1..2));
    let (code, message) = refused(&train(&context, "sft", ""), 2);
    assert_eq!(code, "training_data");
    assert!(
        message.starts_with("data.jsonl:1: not a trajectory"),
        "{message}"
    );
}

/// No file may grow beyond a limit that a checkpoint exceeds, as on a full disk.
#[test]
fn a_full_disk_is_told_and_the_same_command_goes_on() {
    let context = context();
    let whole = done(&context, "sft", "--out whole");
    let command = command(&context, "sft", "");
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let limited = format!("trap '' XFSZ; ulimit -f 32; exec {}", words.join(" "));
    let output = Command::new("bash")
        .args(["-c", &limited])
        .current_dir(context.path("."))
        .env("WARPSMITH_CACHE", context.path("cache"))
        .output()
        .unwrap();
    let (code, message) = refused(&output, 3);
    assert_eq!(code, "store");
    assert!(message.contains("failed to write"), "{message}");
    let found = done(&context, "sft", "");
    assert_eq!(found["metrics"]["loss"], whole["metrics"]["loss"]);
}

/// Elsewhere the same command goes on from what was packed.
#[test]
fn a_packed_run_goes_on_elsewhere() {
    let context = context();
    let whole = done(&context, "sft", "--out whole");
    let stopped = done(&context, "sft", "--out stopped --checkpoint-every 3");
    // As if it had been stopped after six of nine steps.
    fs_err::remove_dir_all(context.path("stopped/checkpoints/step-000009")).unwrap();
    let arguments = ["train", "pack", "stopped", "elsewhere", "--json"];
    let packed = context.bare(&arguments).output().unwrap();
    assert_eq!((code(&packed), &json(&packed)["step"]), (0, &6.into()));
    let found = done(&context, "sft", "--out elsewhere");
    assert_eq!(found["step"], stopped["step"]);
    let loss = |found: &Value| found["metrics"]["loss"].as_f64().unwrap();
    let (one, other) = (loss(&whole), loss(&found));
    assert!((one - other).abs() < 0.02 * one, "{one}, {other}");
    assert!(
        context
            .path("elsewhere/published/adapter_config.json")
            .is_file()
    );
    let (code, message) = refused(&context.bare(&arguments).output().unwrap(), 2);
    assert_eq!(code, "config");
    assert!(message.contains("is there already"), "{message}");

    // One that is done brings along what it came to, and what was best on the way there.
    let pack = |run: &str, to: &str| {
        let arguments = ["train", "pack", run, to, "--json"];
        context.bare(&arguments).output().unwrap()
    };
    assert_eq!(self::code(&pack("whole", "far/away")), 0);
    let arrived = done(&context, "sft", "--out far/away");
    assert_eq!(arrived["best"], whole["best"]);
    for name in ["published", "best"] {
        let file = context.path(&format!("far/away/{name}/adapter_config.json"));
        assert!(file.is_file(), "{name}");
    }
    // Whole or not there.
    let last = "whole/checkpoints/step-000009/actor.safetensors";
    context.write(last, "broken");
    context.write(".half.new/precious", "");
    let (code, _) = refused(&pack("whole", "half"), 2);
    assert_eq!(code, "checkpoint");
    let left = fs_err::read_dir(context.path(".")).unwrap();
    let names = left.map(|entry| entry.unwrap().file_name());
    let names: Vec<_> = names
        .filter(|name| name.to_string_lossy().contains("half"))
        .collect();
    assert_eq!(names, [".half.new"]);
}

#[test]
fn settings_can_be_printed_and_mistaken() {
    let context = context();
    let output = train(&context, "sft", "--print-config");
    assert_eq!(json(&output)["settings"]["batch"], 4);
    assert_eq!(json(&output)["settings"]["aggregation"], "token");
    let output = train(&context, "value", "--print-config");
    assert_eq!(json(&output)["settings"]["lam"], 1.0);
    let (code, message) = refused(&train(&context, "sft", "--set rat=1"), 2);
    assert_eq!(code, "config");
    assert!(message.contains("there is no setting `rat`"), "{message}");
    for (verb, flag) in [
        ("sft", "--held-out 1.5"),
        ("sft", "--weight-decay nan"),
        ("rft", "--above inf"),
        ("value", "--gamma 2"),
        ("value", "--enough 5"),
        ("sft", "--learning-rate -1"),
        ("sft", "--held-out -0.1"),
    ] {
        let (code, message) = refused(&train(&context, verb, flag), 2);
        assert_eq!(code, "usage");
        // It is this one's mistake and nobody else's.
        let named = flag.split_whitespace().next().unwrap();
        assert!(message.contains(named), "{message}");
    }
    context.write("tasks.jsonl", &task_lines(1..3));
    for (verb, flag, said) in [
        ("grpo", "--samples 1", "`samples` must be at least 2"),
        (
            "grpo",
            "--temperature 0.7",
            "`temperature` is 0.7: only replies sampled with 1",
        ),
        (
            "ppo",
            "--temperature 1.2",
            "`temperature` is 1.2: only replies sampled with 1",
        ),
        ("ppo", "--clip-ratio-c 1", "`clip_ratio_c` must be above 1"),
    ] {
        let said_all = format!("train {verb} --tasks tasks.jsonl --model ./model {flag} --json");
        let arguments: Vec<&str> = said_all.split_whitespace().collect();
        let (code, message) = refused(&context.bare(&arguments).output().unwrap(), 2);
        assert_eq!(code, "config");
        assert!(message.starts_with(said), "{message}");
    }
}

/// What is refused leaves nothing that would be in the way of asking again.
#[test]
fn mistakes_can_be_mended_in_the_same_folder() {
    let context = context();
    let (code, message) = refused(&train(&context, "sft", "--max-tokens 1"), 2);
    assert_eq!(code, "training_data");
    assert!(message.contains("ends within 1 tokens"), "{message}");
    let (code, message) = refused(&train(&context, "rft", "--above 5"), 2);
    assert_eq!(code, "nothing_rewarded");
    assert!(message.contains("12 are left out by outcome"), "{message}");
    let (code, _) = refused(&train(&context, "sft", "--model-on gpu"), 3);
    assert_eq!(code, "model");
    done(&context, "sft", "");
    // Another model under the same name would learn on from what this one learnt.
    let settings = context.read("model/config.json");
    context.write("model/README.md", "It says nothing.");
    done(&context, "sft", "");
    context.write("model/config.json", &(settings + "\n"));
    let (code, message) = refused(&train(&context, "sft", ""), 2);
    assert_eq!(code, "other_run");
    assert!(message.contains("`weights`"), "{message}");
}

/// The same task under several numbers, as a task set.
pub(crate) fn task_lines(numbers: std::ops::Range<u32>) -> String {
    let task = include_str!("common/scale_relu.py");
    let line = |number: u32| {
        let name = format!("task {number}");
        let task = format!("{task}\n# {number}\n");
        let line =
            serde_json::json!({ "level": 1, "problem_id": number, "name": name, "code": task });
        format!("{line}\n")
    };
    numbers.map(line).collect()
}

/// Real episodes, with real judges: a model of random numbers says nothing that could be judged, and is paid accordingly.
#[test]
fn reinforcement_plays_is_paid_learns_and_goes_on() {
    let context = context();
    context.write("tasks.jsonl", &task_lines(1..3));
    context.write("llm_judge.jsonl", "");
    let train = |verb: &str, steps: u32| {
        // Several replies that all earn the same would teach PPO nothing either.
        let samples = if verb == "ppo" { 1 } else { 2 };
        let arguments = format!(
            "train {verb} --llm-judge script:llm_judge.jsonl --tasks tasks.jsonl --model ./model --steps {steps} --tasks-per-step 2 --samples {samples} --max-tokens 6 \
             --learning-rate 0.001 --warmup-steps 0 --lr-scheduler-type constant --target cpu --no-compile --cut-replies penalise --out {verb} --json -q"
        );
        let arguments: Vec<&str> = arguments.split_whitespace().collect();
        context.command(&arguments).output().unwrap()
    };
    for verb in ["ppo", "grpo"] {
        let output = train(verb, 2);
        let found = json(&output);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(code(&output), 0, "{found:#}\n{said}");
        assert_eq!((&found["step"], &found["steps"]), (&2.into(), &2.into()));
        let metrics = &found["metrics"];
        assert_eq!(metrics["reward"], -1.0, "{found:#}");
        assert_eq!(metrics["length"], 6.0);
        // Nothing was submitted, so nobody is asked: this LLM judge would have no answer.
        assert_eq!(
            (&metrics["llm_judge_score"], &metrics["llm_judge_missing"]),
            (&0.0.into(), &0.0.into())
        );
        if verb == "ppo" {
            // What samples and what learns are one model.
            assert!(
                metrics["mismatch_mean"].as_f64().unwrap() < 1e-3,
                "{found:#}"
            );
            assert_eq!(metrics["episodes"], 2.0);
            assert!(metrics["value_loss"].as_f64().unwrap() > 0.0);
        } else {
            // Nothing can be learnt from groups without a difference, however often others are asked for. That is said.
            let warnings = found["warnings"].to_string();
            assert!(
                warnings.contains("the policy learned nothing"),
                "{warnings}"
            );
            assert_eq!(metrics["groups_dropped"], 4.0);
            assert_eq!(
                (&metrics["groups"], &metrics["episodes"]),
                (&0.0.into(), &8.0.into())
            );
            // No step, round, task or sample says what another said.
            let mut replies: Vec<Value> = Vec::new();
            for collection in ["000001-0", "000001-1", "000002-0", "000002-1"] {
                let played = context.trajectories(&format!("grpo/rollouts/step-{collection}"));
                replies.extend(played.iter().map(|one| one["messages"].clone()));
            }
            let said = |messages: &Value| messages.as_array().unwrap().last().unwrap().to_string();
            let distinct: BTreeSet<String> = replies.iter().map(said).collect();
            assert_eq!((replies.len(), distinct.len()), (16, 16), "{distinct:#?}");
        }
        assert!(
            context
                .path(verb)
                .join("published/adapter_config.json")
                .is_file()
        );
        let folder = format!("{verb}/rollouts/step-000002-0/events.jsonl");
        assert!(context.read(&folder).contains("episode_ended"));
        let again = train(verb, 2);
        assert_eq!(json(&again)["metrics"], *metrics);
    }
    let (code, message) = refused(&train("ppo", 3), 2);
    assert_eq!(code, "other_run");
    assert!(message.contains("steps"), "{message}");
}

#[test]
fn the_first_step_is_announced_and_the_end_says_what_is_next() {
    let context = context();
    let mut command = context.bare(&[
        "train", "sft", "--out", "run", "--epochs", "1", "--batch", "4",
    ]);
    command.args([
        "--data",
        "data.jsonl",
        "--model",
        "./model",
        "--held-out",
        "0.2",
    ]);
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, shown) = (text(&output.stderr), text(&output.stdout));
    assert_eq!(code(&output), 0, "{said}");
    assert!(said.contains("0 of 3 steps; step 1 is under way"), "{said}");
    assert!(shown.contains("run: run\n"), "{shown}");
    assert!(shown.contains("next: warpsmith report run\n"), "{shown}");
    let policy = "next: warpsmith rollout --tasks FILE --policy local:./model+run/published\n";
    assert!(shown.contains(policy), "{shown}");
    // Wherever it lies, it is the latest.
    let latest = fs_err::canonicalize(context.path("runs/latest")).unwrap();
    assert_eq!(latest, fs_err::canonicalize(context.path("run")).unwrap());
}
