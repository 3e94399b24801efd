//! `rollout` and `bench` by the real binary, with a policy that follows a script: the judge is real.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::scale_relu::{KERNEL, MODEL_NEW, TASK, reply};
use crate::common::{Context, code, json};
use serde_json::{Value, json};

/// The same task under several names, and one that is broken; each episode fails first, and no two submit the same.
fn context(tasks: &[&str], samples: u32) -> Context {
    let context = Context::new();
    let mut set = String::new();
    let mut script = String::new();
    for (number, name) in tasks.iter().enumerate() {
        let code = if *name == "broken" {
            "raise ValueError('not today')\n".to_owned()
        } else {
            format!("{TASK}\n# {name}\n")
        };
        let line = json!({ "level": 1, "problem_id": number + 1, "name": name, "code": code });
        set += &(line.to_string() + "\n");
        for sample in 1..=samples {
            let right = format!("// {name} {sample}\n{KERNEL}");
            let wrong = right.replace("return 0;", "return 0");
            for kernel in [wrong, right] {
                let id = format!("level1/{}", number + 1);
                let line = json!({ "text": reply(&kernel), "task": id, "sample": sample });
                script += &(line.to_string() + "\n");
            }
        }
    }
    context.write("tasks.jsonl", &set);
    context.write("script.jsonl", &script);
    context
}

fn command(context: &Context, verb: &str, more: &[&str]) -> Command {
    command_of(context, verb, "script:script.jsonl", more)
}

fn command_of(context: &Context, verb: &str, policy: &str, more: &[&str]) -> Command {
    let mut all = vec![verb, "--tasks", "tasks.jsonl", "--policy", policy];
    all.extend(["--target", "cpu", "--no-compile", "--profile", "rl"]);
    all.extend(["--out", "run", "--json", "-q"]);
    all.extend(more);
    context.command(&all)
}

/// Status of every attempt of every episode that ended.
fn results(context: &Context) -> BTreeMap<(String, u64), Vec<String>> {
    let mut found = BTreeMap::new();
    for event in events(context, "episode_ended") {
        let one = &event["trajectory"];
        let attempts = one["attempts"].as_array().unwrap().iter();
        let statuses = attempts.map(|one| one["verdict"]["status"].as_str().unwrap().to_owned());
        let key = (
            one["task"]["id"].as_str().unwrap().to_owned(),
            one["sample"].as_u64().unwrap(),
        );
        assert!(found.insert(key, statuses.collect()).is_none());
    }
    found
}

fn events(context: &Context, kind: &str) -> Vec<Value> {
    let text = context.read("run/events.jsonl");
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    whole
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].clone())
        .filter(|event| event["kind"] == kind)
        .collect()
}

#[test]
fn tasks_are_judged_a_broken_one_is_listed_and_the_run_can_be_named_again() {
    let context = context(&["one", "broken", "two"], 2);
    let output = command(&context, "rollout", &["--samples", "2"])
        .output()
        .unwrap();
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(
        found["episodes"],
        json!({ "planned": 6, "ended": 4, "unfinished": 0, "passed": 4 })
    );
    assert_eq!(found["attempts"], 8);
    assert_eq!(found["left_out"][0]["task"], "level1/2");
    assert_eq!(found["left_out"][0]["why"]["kind"], "task");
    assert!(found["tasks"]["level1/1"]["best"]["speedup"].is_number());
    let expected = ["level1/1", "level1/3"].map(|task| {
        [1, 2].map(|sample| {
            let statuses = ["compile_failed", "passed"].map(str::to_owned).to_vec();
            ((task.to_owned(), sample), statuses)
        })
    });
    assert_eq!(results(&context), expected.into_iter().flatten().collect());
    // Every verdict has its evidence, and the log has a head and gauges.
    for event in events(&context, "judged") {
        let evidence = event["verdict"]["evidence"].as_str().unwrap();
        assert!(
            std::path::Path::new(evidence)
                .join("manifest.json")
                .is_file()
        );
    }
    let head = &events(&context, "run_started")[0]["run"];
    assert_eq!(head["tasks"].as_array().unwrap().len(), 3);
    assert_eq!(head["settings"]["repairs"], 2);
    assert!(events(&context, "metrics_sampled").last().unwrap()["metrics"]["judgements"] == 8);

    // Again: nothing is left to do, with however many at once.
    let again = ["--samples", "2", "--concurrency", "3"];
    let output = command(&context, "rollout", &again).output().unwrap();
    assert_eq!(json(&output)["gauges"]["judgements"], 0);
    assert_eq!(json(&output)["episodes"], found["episodes"]);
    let output = command(&context, "rollout", &["--samples", "3"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 2);
    let message = json(&output)["failure"]["message"].to_string();
    assert!(message.contains("`samples` was 2, is 3"), "{message}");
}

/// Each in a workspace of its own, with compiler and judge behind tools.
#[test]
fn agents_work_side_by_side() {
    let context = context(&["one"], 1);
    let mut script = String::new();
    for sample in 1..=2 {
        let call = |name: &str, arguments: Value| json!({ "id": name, "name": name, "arguments": arguments });
        let write =
            |path: &str, content: &str| call("write", json!({ "path": path, "content": content }));
        let kernel = format!("// {sample}\n{KERNEL}");
        for calls in [
            json!([
                write("model_new.py", MODEL_NEW),
                write("kernels/scale_relu.cpp", &kernel),
                call("compile", json!({}))
            ]),
            json!([call("verify", json!({})), call("submit", json!({}))]),
        ] {
            let line = json!({ "text": "", "calls": calls, "sample": sample });
            script += &(line.to_string() + "\n");
        }
    }
    context.write("script.jsonl", &script);
    let more = ["--mode", "agent", "--wire", "json", "--samples", "2"];
    let output = command(&context, "rollout", &more).output().unwrap();
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(found["episodes"]["passed"], 2);
    for sample in ["01", "02"] {
        let kernel = format!("run/workspaces/level1-1-{sample}/kernels/scale_relu.cpp");
        assert!(context.read(&kernel).ends_with(KERNEL));
    }
}

#[test]
fn killed_and_resumed_it_comes_to_the_same() {
    let context = context(&["one", "two"], 2);
    let start = || {
        let mut command = command(&context, "rollout", &["--samples", "2"]);
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    for wanted in [1, 4, 6] {
        let mut child = start();
        let begun = Instant::now();
        // The log is what tells how far it is.
        while !context.path("run/events.jsonl").exists()
            || events(&context, "judged").len() < wanted
        {
            thread::sleep(Duration::from_millis(20));
            assert!(begun.elapsed() < Duration::from_mins(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let output = command(&context, "rollout", &["--samples", "2"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{:#}", json(&output));
    let found = results(&context);
    assert_eq!(found.len(), 4);
    let expected = ["compile_failed", "passed"];
    assert!(found.values().all(|one| one == &expected), "{found:?}");
    assert_eq!(events(&context, "judged").len(), 8);
    assert_eq!(events(&context, "run_started").len(), 4);

    // A kill between the evidence and the log: the verdict is found, not reached again.
    let text = context.read("run/events.jsonl");
    let last = text.rfind("\"kind\":\"judged\"").unwrap();
    let cut = text[..last].rfind('\n').unwrap() + 1;
    let lost: Value = serde_json::from_str(text[cut..].lines().next().unwrap()).unwrap();
    context.write("run/events.jsonl", &text[..cut]);
    let output = command(&context, "rollout", &["--samples", "2"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 0);
    let judged = events(&context, "judged");
    assert_eq!(judged.last().unwrap()["verdict"], lost["event"]["verdict"]);
    assert_eq!(results(&context), found);
}

#[test]
fn ctrl_c_finishes_what_is_being_judged() {
    let context = context(&["one", "two"], 3);
    let arguments = ["--samples", "3"];
    let said = fs_err::File::create(context.path("said")).unwrap();
    let mut child = command(&context, "rollout", &arguments)
        .stdout(Stdio::piped())
        .stderr(said.into_file())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !context.path("run/events.jsonl").exists() || events(&context, "judged").is_empty() {
        thread::sleep(Duration::from_millis(20));
        assert!(begun.elapsed() < Duration::from_mins(5));
    }
    let pid = child.id().to_string();
    Command::new("kill").args(["-INT", &pid]).status().unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut text).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["interrupted"], true);
    // The command that goes on, to be pasted.
    let said = context.read("said");
    assert!(
        said.contains("hint: to go on: warpsmith rollout "),
        "{said}"
    );
    assert!(said.contains("--out run"), "{said}");
    let ended = events(&context, "run_ended");
    assert_eq!(ended[0]["interrupted"], true);
    // Nothing was cut short: no verdict is a crash.
    assert!(
        events(&context, "judged")
            .iter()
            .all(|event| event["verdict"]["status"] != "crashed")
    );
    let output = command(&context, "rollout", &arguments).output().unwrap();
    assert_eq!(code(&output), 0);
    assert_eq!(results(&context).len(), 6);
}

#[test]
fn a_benchmark_surveys_lists_and_marks_what_was_scaled() {
    let context = context(&["one", "broken"], 1);
    let more = [
        "--scale",
        "2",
        "--counts",
        "final",
        "--split",
        "train",
        "--repairs",
        "1",
    ];
    let output = command(&context, "bench", &more).output().unwrap();
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(
        (&found["scale"], &found["counts"]),
        (&json!(2), &json!("final"))
    );
    assert_eq!(found["episodes"]["passed"], 1);
    assert_eq!(found["left_out"][0]["task"], "level1/2");
    let head = &events(&context, "run_started")[0]["run"];
    assert_eq!(head["tasks"][0]["part"], "train");
    assert_eq!(events(&context, "task_accepted").len(), 1);
    // Nobody was asked about the broken one.
    assert!(
        events(&context, "episode_progressed")
            .iter()
            .all(|event| event["episode"]["task"] == "level1/1")
    );
}

#[test]
fn mistakes_are_told_before_anything_is_started() {
    let context = context(&["one"], 1);
    for (verb, more, expected) in [
        ("bench", ["--levels", "7"], "there is no level 7"),
        ("bench", ["--levels", "2"], "has no task of these levels"),
        ("bench", ["--isolation", "weak"], "needs every protection"),
        ("rollout", ["--set", "sample=2"], "there is no setting"),
    ] {
        let output = command(&context, verb, &more).output().unwrap();
        assert_eq!(code(&output), 2);
        let message = json(&output)["failure"]["message"].to_string();
        assert!(message.contains(expected), "{message}");
        assert!(!context.path("run").exists());
    }
}

#[test]
fn two_runs_in_one_folder_and_a_dead_server_are_told() {
    let context = context(&["one"], 1);
    let dead = ["--base-url", "http://127.0.0.1:9/v1", "--mode", "single"];
    let command = || command_of(&context, "rollout", "openai:x", &dead);
    let mut first = command()
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while !context.path("run/events.jsonl").exists() {
        thread::sleep(Duration::from_millis(20));
        assert!(begun.elapsed() < Duration::from_mins(2));
    }
    let second = command().output().unwrap();
    assert_eq!(code(&second), 3);
    let message = json(&second)["failure"]["message"].to_string();
    let holder = format!("is in use by process {}", first.id());
    assert!(message.contains(&holder), "{message}");
    assert_eq!(first.wait().unwrap().code(), Some(3));
    let mut text = String::new();
    std::io::Read::read_to_string(&mut first.stdout.take().unwrap(), &mut text).unwrap();
    let found: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(found["episodes"]["unfinished"], 1);
    assert!(
        found["failure"]["message"]
            .as_str()
            .unwrap()
            .contains("does not answer")
    );
}
