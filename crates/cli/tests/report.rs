//! `report` by the real binary, over runs that `optimize` made.

use std::path::Path;

use crate::common::{Context, code, files, json};
use crate::snapshot;
use serde_json::{Value, json};
use warpsmith_schema::EVENT_FORMAT;

/// A run of this name, with episodes that `optimize` made.
fn kept<'a>(context: &Context, name: &'a str) -> &'a str {
    let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../report/tests/runs");
    let episodes = fs_err::read_to_string(runs.join(name).join("trajectories.jsonl")).unwrap();
    let event = |line: &str| {
        let trajectory: Value = serde_json::from_str(line).unwrap();
        let event = json!({ "kind": "episode_ended", "trajectory": trajectory });
        json!({ "format": EVENT_FORMAT, "at": "2026-01-01T00:00:00Z", "event": event }).to_string()
            + "\n"
    };
    let log: String = episodes.lines().map(event).collect();
    context.write(&format!("{name}/events.jsonl"), &log);
    name
}

#[test]
fn one_object_with_the_numbers_of_both_runs() {
    let context = Context::new();
    let (first, second) = (kept(&context, "first"), kept(&context, "second"));
    // A wrong name makes no folder.
    let wrong = ["report", first, "--html", "out/report.html", "--json"];
    let output = context.bare(&wrong).output().unwrap();
    assert_eq!(code(&output), 2);
    assert_eq!(json(&output)["failure"]["code"], "no_folder");
    assert!(!context.path("out").exists());
    fs_err::create_dir(context.path("out")).unwrap();
    let arguments = [
        "report",
        first,
        second,
        "--json",
        "--html",
        "out/report.html",
        "--tensorboard",
        "logs",
    ];
    let output = context.bare(&arguments).output().unwrap();
    assert_eq!(code(&output), 0);
    let found = json(&output);
    assert_eq!(
        found["runs"][0]["metrics"]["overall"]["correct"]["share"],
        0.5
    );
    assert_eq!(found["runs"][1]["name"], "second");
    assert_eq!(found["comparisons"][0]["gained"], 1);
    assert_eq!(
        (&found["html"], &found["tensorboard"]),
        (&"out/report.html".into(), &"logs".into())
    );
    assert!(
        context
            .read("out/report.html")
            .starts_with("<!DOCTYPE html>")
    );
    let logs = files(&context.path("logs"));
    assert_eq!(
        logs,
        ["first", "second"].map(|run| format!("{run}/events.out.tfevents.0.warpsmith"))
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "page: out/report.html\nevent files: logs\n"
    );
}

#[test]
fn the_final_attempt_can_count() {
    let context = Context::new();
    let output = context
        .bare(&[
            "report",
            kept(&context, "first"),
            "--attempt",
            "final",
            "--json",
        ])
        .output()
        .unwrap();
    assert_eq!(json(&output)["runs"][0]["metrics"]["counted"], "final");
}

#[test]
fn the_same_run_twice_is_told_apart() {
    let context = Context::new();
    let output = context
        .bare(&[
            "report",
            kept(&context, "first"),
            kept(&context, "first"),
            "--json",
        ])
        .output()
        .unwrap();
    let found = json(&output);
    assert_eq!(
        (&found["runs"][0]["name"], &found["runs"][1]["name"]),
        (&"first".into(), &"first (2)".into())
    );
    assert_eq!(found["comparisons"][0]["times_as_quick"], 1.0);
}

#[test]
fn the_tables_of_a_run() {
    let context = Context::new();
    let shown = context.shown(
        &context
            .bare(&["report", kept(&context, "first")])
            .output()
            .unwrap(),
    );
    insta::assert_snapshot!(shown, @"
    exit_code: 0
    ----- stdout -----
    first

      policy         script:first.jsonl
      mode           single
      device         a processor

    Overall
      number                                              first
      tasks                                                   4
      episodes                                                4
      compiled                             75 % (25 % to 100 %)
      correct                               50 % (0 % to 100 %)
      faster than eager by 5 %               25 % (0 % to 75 %)
      faster than eager at all                             25 %
      faster than compile by 5 %            50 % (0 % to 100 %)
      faster than compile at all                           50 %
      speed-up over eager, geomean       0.94x (0.48x to 1.86x)
        at matched precision                              0.94x
        median                                            1.17x
        geomean, a failure counted as 1                   0.97x
      speed-up over compile, geomean     1.62x (1.55x to 1.69x)
        at matched precision                              1.62x
        median                                            1.62x
        geomean, a failure counted as 1                   1.27x
      average runtime of correct                       11.59 ms
      correct by the best attempt                          50 %
      correct by the final attempt                         50 %
      attempts that broke a rule                         1 of 5
      prompt tokens per task                                  0
      completion tokens per task                              0
      time per task                                      44.6 s

    Compiled, correct and runtime
      run    policy              compiled  correct  average runtime
      first  script:first.jsonl    3 of 4   2 of 4         11.59 ms

    fast_p: correct and more than p times as fast
      p                       0   0.5   0.8     1   1.5    2  2.5    3
      first, over eager    50 %  25 %  25 %  25 %  25 %  0 %  0 %  0 %
      first, over compile  50 %  50 %  50 %  50 %  50 %  0 %  0 %  0 %

    By level and family
      group          tasks  compiled  correct  > eager  > compile  over eager  over compile  average runtime
      level 1            2     100 %    100 %     50 %      100 %       0.94x         1.62x         11.59 ms
      level 2            1     100 %      0 %      0 %        0 %           –             –                –
      level 3            1       0 %      0 %      0 %        0 %           –             –                –
      activation         1     100 %    100 %      0 %      100 %       0.48x         1.69x         11.79 ms
      normalization      1     100 %    100 %    100 %      100 %       1.86x         1.55x         11.40 ms
      matmul chain       1     100 %      0 %      0 %        0 %           –             –                –
      perceptron         1       0 %      0 %      0 %        0 %           –             –                –

    Broken rules
      rule                first
      forbidden-operator      1

    Where the time went
      part                            first
      generation, tools and waiting   0.2 s
      compile                         8.4 s
      verify                          7.0 s
      time                            2 min
      judge, other                   16.5 s

    Tasks
      task                        status          correct   runtime  over eager  over compile
      level1/1 1_Softmax          passed           1 of 1  11.79 ms       0.48x         1.69x
      level1/2 2_LayerNorm        passed           1 of 1  11.40 ms       1.86x         1.55x
      level2/3 3_Matmul_Epilogue  mismatch         0 of 1         –           –             –
      level3/4 4_MLP              nothing judged   0 of 1         –           –             –
    ----- stderr -----
    ");
}

#[test]
fn tasks_of_two_runs_are_side_by_side() {
    let context = Context::new();
    let output = context
        .bare(&["report", kept(&context, "first"), kept(&context, "second")])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let table = text.split("\n\n").last().unwrap();
    insta::assert_snapshot!(table, @"
    Tasks: speed-up over eager
      task                        first           second    change
      level1/1 1_Softmax          0.48x           0.42x     1.13x slower
      level1/2 2_LayerNorm        1.86x           mismatch  lost
      level2/3 3_Matmul_Epilogue  mismatch        0.39x     gained
      level3/4 4_MLP              nothing judged  –         in one only
    ");
}

#[test]
fn what_is_no_run_is_said() {
    let context = Context::new();
    context.write("empty/config.json", "{}");
    let said = |folder: &str| {
        let shown = context.shown(&context.bare(&["report", folder]).output().unwrap());
        shown.replace(folder, "[FOLDER]")
    };
    assert_eq!(said("empty"), said("missing"));
    snapshot!(said("missing"), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: `[FOLDER]` is not a run's folder: it has neither `events.jsonl` nor `metrics.jsonl`
    hint: name a run's folder, such as `runs/latest`
    ");
    let shown = context.shown(&context.bare(&["report"]).output().unwrap());
    assert!(shown.starts_with("exit_code: 2"), "{shown}");
}

#[test]
fn a_run_that_only_trains_has_its_numbers_and_no_empty_tables() {
    let context = Context::new();
    let line = |step: u32, loss: f64| {
        format!(
            "{{\"step\":{step},\"steps\":3,\"at\":\"2026-01-02T03:04:0{step}Z\",\"loss\":{loss},\"pass_rate\":0.5}}\n"
        )
    };
    let log = line(1, 2.5) + &line(2, 1.25) + &line(3, 1.5);
    context.write("sft/metrics.jsonl", &log);
    context.write("sft/config.json", "{}");
    let arguments = ["report", "sft", "--html", "page.html"];
    let shown = context.shown(&context.bare(&arguments).output().unwrap());
    insta::assert_snapshot!(shown, @"
    exit_code: 0
    ----- stdout -----
    sft

      steps          3 of 3

    Training
      number      first    last  lowest  highest
      loss       2.5000  1.5000  1.2500   2.5000
      pass rate    50 %    50 %    50 %     50 %
    ----- stderr -----
    page: page.html
    ");
    let page = context.read("page.html");
    assert!(page.contains("id=\"training-loss\""), "{page}");
    assert!(
        !page.contains("fast_p") && !page.contains("Overall"),
        "{page}"
    );
}
