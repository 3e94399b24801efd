//! Reports of two runs whose episodes were made by `optimize` (`make_runs.py` says how), and of what may go wrong with a run's
//! folder.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod tfevents;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;
use warpsmith_report::metrics::Change;
use warpsmith_report::{
    LiveCurves, Report, ReportError, Run, html, read, same_rules, tables, write_tensorboard,
};
use warpsmith_schema::{CountedAttempt, EVENT_FORMAT, Rules, Trajectory};

/// The episodes of a run, one a line.
fn episodes(name: &str) -> String {
    let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/runs");
    fs_err::read_to_string(runs.join(name).join("trajectories.jsonl")).unwrap()
}

fn event(event: &Value) -> String {
    json!({ "format": EVENT_FORMAT, "at": "2026-01-01T00:00:00Z", "event": event }).to_string()
        + "\n"
}

/// The log of a run in which these episodes ended.
fn log<'a>(episodes: impl IntoIterator<Item = &'a str>) -> String {
    let ended = |line: &str| {
        let trajectory: Value = serde_json::from_str(line).unwrap();
        event(&json!({ "kind": "episode_ended", "trajectory": trajectory }))
    };
    episodes.into_iter().map(ended).collect()
}

/// A run of this name.
fn kept(name: &str) -> Run {
    let runs = tempfile::tempdir().unwrap();
    let run = runs.path().join(name);
    fs_err::create_dir(&run).unwrap();
    fs_err::write(run.join("events.jsonl"), log(episodes(name).lines())).unwrap();
    read(&run).unwrap()
}

fn both() -> Vec<Run> {
    ["first", "second"].map(kept).into()
}

/// A run's folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs_err::write(folder.path().join(name), content).unwrap();
    }
    folder
}

#[test]
fn two_runs_are_counted_and_compared() {
    let runs = both();
    let report = Report::of(&runs, None, 0);
    let counts = |number: usize| {
        let row = &report.runs[number].metrics.overall;
        (
            row.tasks,
            row.episodes,
            row.compiled.count,
            row.correct.count,
        )
    };
    assert_eq!((counts(0), counts(1)), ((4, 4, 3, 2), (3, 6, 5, 3)));
    let cheating = &report.runs[0].metrics.cheating;
    assert_eq!((cheating.attempts, cheating.cheating), (5, 1));
    let pass: Vec<(u32, f64)> = report.runs[1]
        .metrics
        .pass_at_k
        .iter()
        .map(|one| (one.k, one.value))
        .collect();
    // Of two samples each, 1, 0 and 2 are correct.
    assert_eq!(pass, [(1, 0.5), (2, 2.0 / 3.0)]);
    let change = |task: &str| {
        let found = report.comparisons[0]
            .tasks
            .iter()
            .find(|one| one.task == task);
        found.unwrap().change
    };
    assert!(matches!(
        change("level1/1"),
        Change::Quicker { .. } | Change::Slower { .. } | Change::Same
    ));
    assert_eq!(
        ["level1/2", "level2/3", "level3/4"].map(change),
        [Change::Lost, Change::Gained, Change::Missing]
    );
    // Every row of a table is as long as its head.
    for table in tables(&report) {
        assert!(
            table.rows.iter().all(|row| row.len() == table.head.len()),
            "{}",
            table.title
        );
    }
}

#[test]
fn the_page_is_whole_and_alone() {
    let runs = both();
    let page = html(&Report::of(&runs, None, 0));
    assert_balanced(&page);
    for outside in [
        "http://", "https://", " src=", "@import", "url(", "<script", "<link",
    ] {
        assert!(!page.contains(outside), "{outside}");
    }
    let all = |attribute: &str| -> Vec<&str> {
        let begin = format!(" {attribute}=\"");
        page.split(&begin)
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
            .collect()
    };
    let ids = all("id");
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(ids.len(), unique.len());
    for target in all("href") {
        assert!(
            unique.contains(target.strip_prefix('#').unwrap()),
            "{target} leads nowhere"
        );
    }
    assert!(unique.contains("task-level1-2"));
    for shown in [
        "kernels/softmax.cpp",
        "Attempt 1 to 2",
        "forbidden-operator",
        "warpsmith replay runs/first/attempts/",
    ] {
        assert!(page.contains(shown), "{shown}");
    }
}

/// What is being judged writes most of what the page shows.
#[test]
fn hostile_text_stays_text() {
    let text = episodes("first");
    let mut trajectory: Trajectory = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let hostile = "</code></pre><script>alert(1)</script><img src=x onerror='1'>\" x=\"";
    trajectory.task.id = hostile.to_owned();
    trajectory.task.name = hostile.to_owned();
    trajectory.policy.name = hostile.to_owned();
    for attempt in &mut trajectory.attempts {
        attempt.verdict.reason = Some(hostile.to_owned());
        attempt.verdict.evidence = Some(hostile.to_owned());
        attempt.files.insert(hostile.to_owned(), hostile.to_owned());
    }
    let line = serde_json::to_string(&trajectory).unwrap();
    let folder = folder(&[("events.jsonl", &log([line.as_str()]))]);
    let runs = [read(folder.path()).unwrap()];
    let page = html(&Report::of(&runs, None, 0));
    assert!(!page.contains("<script") && !page.contains("<img"));
    assert_balanced(&page);
    // The dashboard's overview is in it, with a link to the task.
    assert!(page.contains("The best episode of each"), "{page}");
    assert!(page.contains("<li class=\"h-"), "{page}");
}

/// A log holds more than the ends of episodes.
#[test]
fn every_kind_of_event_that_is_shown_is_read() {
    let lines = episodes("second");
    let tasks = json!([
        { "id": "level1/1", "name": "1_Softmax", "level": 1, "part": "train" },
        { "id": "level1/2", "name": "2_LayerNorm", "level": 1, "part": "test" },
        { "id": "level2/3", "name": "3_Matmul_Epilogue", "level": 2, "part": null },
    ]);
    let why =
        json!({ "kind": "task", "code": "too_large", "message": "it needs 90 GB", "hint": null });
    let any: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    let head = json!({
        "verb": "bench", "resumed": false, "policy": any["policy"], "target": any["target"], "device": "a processor",
        "mode": any["mode"], "profile": "full", "compile_mode": null, "tasks": tasks, "samples": 1, "counts": "final",
        "scale": 4, "settings": {},
    });
    let mut events = event(&json!({ "kind": "run_started", "run": head }));
    events += &event(&json!({ "kind": "task_skipped", "task": "level3/9", "reason": why }));
    events += &event(&json!({ "kind": "task_accepted", "task": "level1/1" }));
    events += &log(lines.lines());
    // A resumed run measures again: the later measurement counts.
    let passed: Trajectory = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    for mode in ["max-autotune", "max-autotune", "reduce-overhead"] {
        let verdict = &passed.attempts[0].verdict;
        let compared = json!({ "kind": "compile_mode_compared", "task": "level1/1", "mode": mode, "verdict": verdict });
        events += &event(&compared);
    }
    // Being written just now.
    events += "{\"format\":2,\"at";
    let folder = folder(&[("events.jsonl", &events)]);
    let runs = [read(folder.path()).unwrap()];
    assert_eq!(runs[0].trajectories, kept("second").trajectories);
    let report = Report::of(&runs, None, 0);
    let parts: Vec<(&str, usize)> = (report.runs[0].by_part.iter())
        .map(|part| (part.name.as_str(), part.summary.episodes))
        .collect();
    assert_eq!(parts, [("test", 2), ("train", 2)]);
    let beside: Vec<(&str, usize)> = (report.runs[0].compared.iter())
        .map(|beside| (beside.mode.as_str(), beside.faster.of))
        .collect();
    assert_eq!(beside, [("max-autotune", 1), ("reduce-overhead", 1)]);
    let titles: Vec<String> = tables(&report)
        .into_iter()
        .map(|table| table.title)
        .collect();
    assert!(
        titles.iter().any(|title| title.contains("other modes")),
        "{titles:?}"
    );
    let notes = [
        "1 task could not be judged: see the list",
        "shapes were divided by 4: not to be compared with KernelBench",
    ];
    assert_eq!(report.runs[0].notes, notes);
    assert!(html(&report).contains("it needs 90 GB"));
    // What the run was started with decides which attempt counts, unless the reader says otherwise.
    let said = |counts| Report::of(&runs, counts, 0).runs[0].metrics.counted;
    assert_eq!(said(None), CountedAttempt::Final);
    assert_eq!(said(Some(CountedAttempt::Best)), CountedAttempt::Best);
}

#[test]
fn what_was_not_timed_has_no_empty_table() {
    let lines = episodes("first");
    let untimed = lines.lines().map(|line| {
        let mut one: Value = serde_json::from_str(line).unwrap();
        for attempt in one["attempts"].as_array_mut().unwrap() {
            attempt["verdict"]["profile"] = "verify".into();
            for name in ["times_us", "speedup", "matched_precision"] {
                attempt["verdict"][name] = Value::Null;
            }
        }
        one.to_string()
    });
    let untimed: Vec<String> = untimed.collect();
    let folder = folder(&[("events.jsonl", &log(untimed.iter().map(String::as_str)))]);
    let runs = [read(folder.path()).unwrap()];
    let found = tables(&Report::of(&runs, None, 0));
    let titles: Vec<&str> = found.iter().map(|table| table.title.as_str()).collect();
    assert!(
        found.iter().all(|table| !table.rows.is_empty()),
        "{titles:?}"
    );
    assert!(
        !titles.iter().any(|title| title.contains("fast_p")),
        "{titles:?}"
    );
}

#[test]
fn of_two_ends_of_one_episode_the_first_counts() {
    let lines = episodes("first");
    let first = lines.lines().next().unwrap();
    let later = first.replace("\"kind\": \"finished\"", "\"kind\": \"looping\"");
    assert_ne!(first, later);
    let folder = folder(&[("events.jsonl", &log([first, &later]))]);
    let run = read(folder.path()).unwrap();
    assert_eq!(
        run.trajectories,
        [serde_json::from_str::<Trajectory>(first).unwrap()]
    );
}

#[test]
fn what_is_not_a_run_is_refused() {
    let empty = folder(&[("config.json", "{}")]);
    assert!(matches!(
        read(empty.path()),
        Err(ReportError::NotARun { .. })
    ));
    let missing = read(&empty.path().join("none")).unwrap_err();
    assert!(missing.to_string().contains("none"), "{missing}");
    let broken = folder(&[("events.jsonl", "{\n{}\n")]);
    let error = read(broken.path()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("events.jsonl:1: not a line of this log"),
        "{error}"
    );
    let old = folder(&[("trajectories.jsonl", &episodes("first"))]);
    let error = read(old.path()).unwrap_err();
    assert!(
        error.to_string().contains("is of an earlier version"),
        "{error}"
    );
}

#[test]
fn a_run_that_only_trains_has_curves() {
    let metrics = "{\"step\":1,\"loss\":2.5}\n{\"step\":2,\"loss\":2.0}\n";
    let folder = folder(&[
        ("metrics.jsonl", metrics),
        ("config.json", "{\"scale\":0.5}"),
    ]);
    let runs = [read(folder.path()).unwrap()];
    let report = Report::of(&runs, None, 0);
    // Nobody expects episodes of it.
    assert_eq!(report.runs[0].notes, [""; 0]);
    let page = html(&report);
    assert_balanced(&page);
    assert!(page.contains("id=\"training-loss\"") && page.contains("loss: loss by step"));

    let logs = tempfile::tempdir().unwrap();
    write_tensorboard(&report, logs.path(), 1234.5).unwrap();
    let found = tfevents::read(&logs.path().join(report.runs[0].name));
    assert_eq!(found.version, "brain.Event:2");
    let loss = |step, value| ("training/loss".to_owned(), step, value);
    assert_eq!(found.scalars, [loss(1, 2.5), loss(2, 2.0)]);
}

/// Whoever looks after any step finds whole records of all steps so far.
#[test]
fn curves_grow_while_a_run_trains() {
    let run = tempfile::tempdir().unwrap();
    let line = |step: u32, loss: f64| {
        format!("{{\"step\":{step},\"steps\":3,\"at\":\"2026-01-01T00:00:00Z\",\"loss\":{loss}}}\n")
    };
    let metrics = run.path().join("metrics.jsonl");
    fs_err::write(&metrics, line(1, 2.5) + &line(2, 2.0)).unwrap();
    let loss = |step, value| ("training/loss".to_owned(), step, value);
    let seen = || tfevents::read(&run.path().join("tensorboard"));
    let mut curves = LiveCurves::begin(run.path()).unwrap();
    assert_eq!(seen().scalars, [loss(1, 2.5), loss(2, 2.0)]);
    let numbers = [("loss", 1.5), ("reward", f64::NAN)];
    curves.add(3, numbers.into_iter()).unwrap();
    assert_eq!(seen().scalars, [loss(1, 2.5), loss(2, 2.0), loss(3, 1.5)]);
    // A process that goes on from a checkpoint begins with what the metrics still have.
    fs_err::write(&metrics, line(1, 2.5)).unwrap();
    LiveCurves::begin(run.path()).unwrap();
    assert_eq!(seen().scalars, [loss(1, 2.5)]);
    assert_eq!(seen().version, "brain.Event:2");
}

#[test]
fn event_files_hold_the_main_numbers() {
    let runs = both();
    let report = Report::of(&runs, None, 0);
    let logs = tempfile::tempdir().unwrap();
    // The second time replaces the first.
    write_tensorboard(&report, logs.path(), 1.0).unwrap();
    write_tensorboard(&report, logs.path(), 2.0).unwrap();
    let found = tfevents::read(&logs.path().join("first"));
    let one = |name: &str, step: u64| {
        let scalar = found
            .scalars
            .iter()
            .find(|(tag, at, _)| tag == name && *at == step);
        scalar.map(|(_, _, value)| *value)
    };
    assert_eq!(one("report/correct", 0), Some(0.5));
    assert_eq!(one("fast_p/eager", 0), Some(0.5));
    assert_eq!(
        one("fast_p/eager", 300).is_some(),
        one("fast_p/compile", 300).is_some()
    );
    assert_eq!(found.wall_time_s, Some(2.0));
}

/// Every tag is closed in its order; what is shown has no `<` of its own.
fn assert_balanced(page: &str) {
    let mut open: Vec<&str> = Vec::new();
    for piece in page.split('<').skip(1) {
        let name = piece
            .split(|letter: char| letter.is_whitespace() || letter == '>')
            .next()
            .unwrap();
        match name.strip_prefix('/') {
            Some(closed) => assert_eq!(open.pop(), Some(closed), "before {piece}"),
            None if name == "!DOCTYPE" || name == "meta" => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn runs_of_different_rules_are_not_reported_together() {
    let mut runs = both();
    assert!(same_rules(&runs).is_ok());
    let attempts = runs[1]
        .trajectories
        .iter_mut()
        .flat_map(|one| &mut one.attempts);
    for attempt in attempts {
        attempt.verdict.rules = Rules::Mixed;
    }
    let failure = same_rules(&runs).unwrap_err();
    assert_eq!(failure.code, "two_rules");
    assert!(same_rules(&runs[1..]).is_ok());
    let report = Report::of(&runs[1..], None, 0);
    assert!(
        report.runs[0]
            .notes
            .iter()
            .any(|note| note.contains("`mixed`"))
    );
}
