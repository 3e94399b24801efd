//! `evolve` by the real binary: compiler, judge and sandbox are real, a policy follows a script.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::scale_relu::{KERNEL, TASK, reply};
use crate::common::{Context, code, json, judged};
use serde_json::{Value, json};

fn arguments<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec![
        "evolve",
        "task.py",
        "--target",
        "cpu",
        "--no-compile",
        "--islands",
        "2",
        "--finalists",
        "1",
        "--rounds",
        "2",
        "--out",
        "run",
        "--json",
        "-q",
    ];
    all.extend(more);
    all
}

fn events(context: &Context, kind: &str) -> Vec<Value> {
    let log = context.path("run/events.jsonl");
    let text = fs_err::read_to_string(log).unwrap_or_default();
    // The last line may be torn.
    let lines = text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'));
    lines
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"].take())
        .filter(|event| event["kind"] == kind)
        .collect()
}

/// Without a model: the compiler's solutions and their parameters. Killed in between, no judgement is lost.
#[test]
fn killed_and_resumed_a_search_loses_no_judgement() {
    let context = Context::new();
    context.write("task.py", TASK);
    let more = ["--judgements", "6"];
    for wanted in [1, 4] {
        let mut child = context
            .command(&arguments(&more))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while events(&context, "judged").len() < wanted && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(20));
            assert!(begun.elapsed() < Duration::from_mins(10));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let before = events(&context, "judged");
    let output = judged(|| context.command(&arguments(&more)));
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    let after = events(&context, "judged");
    assert_eq!(after[..before.len()], before);
    let submissions: BTreeSet<&str> = after
        .iter()
        .map(|one| one["submission"].as_str().unwrap())
        .collect();
    assert_eq!(submissions.len(), after.len());
    assert_eq!(found["spent"]["judgements"], 6);
    assert_eq!(found["ended_by"], "judgements");
    // What is reported was measured afresh, several times.
    let reported = events(&context, "finalist_measured");
    let reported = reported.iter().filter(|one| one["reported"] == true);
    assert!(reported.count() >= 2);
    assert_eq!(found["best"]["us"]["measurements"], 2);
    let archive = found["archive"].as_array().unwrap();
    assert!(!archive.is_empty());
    // Again, it is at its end: the same archive from the log, and nothing is judged.
    let again = judged(|| context.command(&arguments(&more)));
    let again = json(&again);
    assert_eq!(again["archive"], found["archive"]);
    assert_eq!(again["best"], found["best"]);
    assert_eq!(events(&context, "judged"), after);

    let report = context
        .command(&["report", "run", "--html", "search.html"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&report.stdout);
    assert_eq!(code(&report), 0, "{text}");
    for title in [
        "the best over the budget",
        "Archive",
        "measured afresh",
        "Lineage",
    ] {
        assert!(text.contains(title), "{title}: {text}");
    }
    let page = context.read("search.html");
    assert!(page.contains("id=\"candidate-1\"") && page.contains("href=\"#candidate-"));
    // Another seed is another search.
    let other = context
        .command(&arguments(&["--judgements", "6", "--seed", "1"]))
        .output()
        .unwrap();
    assert_eq!(code(&other), 2);
    assert!(
        json(&other)["failure"]["message"]
            .as_str()
            .unwrap()
            .contains("`seed` was 0, is 1")
    );
}

#[test]
fn a_policy_starts_from_nothing_and_the_kernel_is_the_users_to_keep() {
    let context = Context::new();
    context.write("task.py", TASK);
    let line = json!({ "text": reply(KERNEL) }).to_string();
    context.write("script.jsonl", &format!("{line}\n"));
    let more = [
        "--start",
        "none",
        "--policy",
        "script:script.jsonl",
        "--judgements",
        "1",
    ];
    let output = judged(|| context.command(&arguments(&more)));
    let found = json(&output);
    assert_eq!(code(&output), 0, "{found:#}");
    assert_eq!(found["passed"], 1);
    assert_eq!(found["best"]["policy"], "script:script.jsonl");
    assert_eq!(context.read("run/result/model.py"), TASK);
    assert!(context.path("run/result/model_new.py").exists());
}

#[test]
fn what_cannot_be_searched_is_refused_with_the_next_step() {
    let context = Context::new();
    context.write("task.py", TASK);
    let failure = |more: &[&str]| {
        let output = context.command(&arguments(more)).output().unwrap();
        assert_eq!(code(&output), 2);
        json(&output)["failure"].clone()
    };
    let nothing = failure(&["--start", "none"]);
    assert_eq!(nothing["code"], "no_start");
    assert!(nothing["hint"].as_str().unwrap().contains("--policy"));
    let unpriced = failure(&["--policy", "openai:x", "--dollars", "1"]);
    assert_eq!(
        unpriced["message"],
        "`--dollars` needs the price of `openai:x`"
    );
    let twice = failure(&["--policy", "openai:x", "--policy", "openai:x"]);
    assert_eq!(twice["message"], "policy `openai:x` is given twice");
    assert_eq!(failure(&["--policy", "teacher"])["code"], "policy");
}
