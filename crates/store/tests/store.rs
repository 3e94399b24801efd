//! Run folders, event logs and bundles as a run and its crashes leave them.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;

use serde_json::{Value, json};
use warpsmith_schema::{Event, Trajectory};
use warpsmith_store::{Bundle, EventLog, RunFolder, RunIndex, StoreError};

#[test]
fn a_run_has_its_folder_its_configuration_and_latest() {
    let base = tempfile::tempdir().unwrap();
    let runs = base.path().join("runs");
    let config = json!({"seed": 7, "judge": {"profile": "rl"}});
    let first = RunFolder::create_or_resume(&runs, "optimize", "level1/19 ReLU", &config).unwrap();
    let name = first
        .path()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned();
    assert!(name.ends_with("Z-optimize-level1-19-ReLU"), "{name}");
    assert!(!first.resumed());
    let kept: Value =
        serde_json::from_str(&fs_err::read_to_string(first.path().join("config.json")).unwrap())
            .unwrap();
    assert_eq!(kept, config);
    assert_eq!(
        fs_err::read_link(runs.join("latest")).unwrap(),
        Path::new(&name)
    );

    // Within the same second, and while the first one is still at work.
    let second = RunFolder::create_or_resume(&runs, "optimize", "level1/19 ReLU", &config).unwrap();
    assert_ne!(second.path(), first.path());
    assert_eq!(
        fs_err::canonicalize(runs.join("latest")).unwrap(),
        fs_err::canonicalize(second.path()).unwrap()
    );
}

#[test]
fn the_same_configuration_resumes_and_another_is_an_error() {
    let base = tempfile::tempdir().unwrap();
    let folder = base.path().join("out");
    let config = json!({"verb": "bench", "seed": 7, "samples": 4});
    let run = RunFolder::at(&folder, &config).unwrap();
    run.log("events").unwrap().append(&1).unwrap();
    drop(run);
    assert!(RunFolder::at(&folder, &config).unwrap().resumed());
    assert!(
        RunFolder::create_or_resume(&folder, "bench", "x", &config)
            .unwrap()
            .resumed()
    );

    let other = json!({"verb": "bench", "seed": 7, "samples": 8});
    let error = RunFolder::at(&folder, &other).unwrap_err();
    let StoreError::OtherConfig { differences, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(differences.len(), 1);
    assert!(
        error.to_string().contains("`samples` was 4, is 8"),
        "{error}"
    );
    assert!(error.hint().unwrap().contains("--out"));
    // The refusal let go of the folder.
    assert!(RunFolder::at(&folder, &config).is_ok());
    // Of a run of another kind only that is said.
    let error = RunFolder::at(&folder, &json!({"verb": "synth", "count": 8})).unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with("`verb` was \"bench\", is \"synth\""),
        "{text}"
    );
}

#[test]
fn a_run_that_did_nothing_yet_may_be_begun_anew() {
    let base = tempfile::tempdir().unwrap();
    let (folder, config) = (
        base.path().join("out"),
        |rate| json!({ "verb": "train", "rate": rate }),
    );
    let run = RunFolder::at(&folder, &config(1)).unwrap();
    drop(run.log("metrics").unwrap());
    fs_err::create_dir_all(folder.join("evidence/of/nothing")).unwrap();
    // A run within it that came no further.
    drop(RunFolder::at(&folder.join("stage"), &config(1)).unwrap());
    drop(run);
    let run = RunFolder::at(&folder, &config(2)).unwrap();
    assert!(!run.resumed());
    let kept: Value =
        serde_json::from_str(&fs_err::read_to_string(folder.join("config.json")).unwrap()).unwrap();
    assert_eq!(kept, config(2));
    fs_err::write(folder.join("evidence/of/something"), "x").unwrap();
    drop(run);
    assert!(RunFolder::at(&folder, &config(2)).unwrap().resumed());
    assert!(RunFolder::at(&folder, &config(1)).is_err());
    fs_err::write(folder.join("config.json"), "{").unwrap();
    let error = RunFolder::at(&folder, &config(2)).unwrap_err();
    assert_eq!(error.failure().code, "other_run", "{error}");
    // Somebody else's file of that name stays as it is.
    let theirs = base.path().join("theirs");
    fs_err::create_dir(&theirs).unwrap();
    fs_err::write(theirs.join("config.json"), "{\"my\": 1}").unwrap();
    let error = RunFolder::at(&theirs, &config(2)).unwrap_err();
    assert_eq!(error.failure().code, "other_run", "{error}");
    let kept = fs_err::read_to_string(theirs.join("config.json")).unwrap();
    assert_eq!(kept, "{\"my\": 1}");
}

#[test]
fn a_folder_of_something_else_is_left_alone() {
    let base = tempfile::tempdir().unwrap();
    fs_err::write(base.path().join("thesis.tex"), "x").unwrap();
    let error = RunFolder::at(base.path(), &json!({})).unwrap_err();
    assert!(matches!(error, StoreError::NotARun { .. }));
    assert_eq!(fs_err::read_dir(base.path()).unwrap().count(), 1);
}

#[test]
fn a_second_process_is_told_who_is_there() {
    let base = tempfile::tempdir().unwrap();
    let config = json!({});
    let held = RunFolder::at(base.path(), &config).unwrap();
    let error = RunFolder::at(base.path(), &config).unwrap_err();
    let StoreError::Locked { holder, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(holder.pid, std::process::id());
    assert!(
        error
            .to_string()
            .contains(&format!("process {}", std::process::id())),
        "{error}"
    );
    drop(held);
    assert!(RunFolder::at(base.path(), &config).is_ok());
}

#[test]
fn of_many_at_once_one_wins() {
    let base = tempfile::tempdir().unwrap();
    let barrier = std::sync::Barrier::new(8);
    let won = thread::scope(|scope| {
        let tries: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let run = RunFolder::at(base.path(), &json!({}));
                    // Nobody lets go before everybody tried.
                    barrier.wait();
                    run.is_ok()
                })
            })
            .collect();
        tries
            .into_iter()
            .map(|one| one.join().unwrap())
            .filter(|&won| won)
            .count()
    });
    assert_eq!(won, 1);
}

#[test]
fn the_lock_of_a_dead_process_is_stale() {
    let base = tempfile::tempdir().unwrap();
    drop(RunFolder::at(base.path(), &json!({})).unwrap());
    // What a killed process leaves: its signature without the kernel's lock.
    let left = json!({"pid": 4_194_305, "host": "anywhere", "since": "2025-01-01T00:00:00Z"});
    fs_err::write(base.path().join("lock"), left.to_string()).unwrap();
    let run = RunFolder::at(base.path(), &json!({})).unwrap();
    let signed: Value =
        serde_json::from_str(&fs_err::read_to_string(run.path().join("lock")).unwrap()).unwrap();
    assert_eq!(signed["pid"], std::process::id());
}

#[test]
fn a_torn_last_line_costs_only_itself() {
    let base = tempfile::tempdir().unwrap();
    let run = RunFolder::at(base.path(), &json!({})).unwrap();
    let path = run.path().join("events.jsonl");
    let mut log = run.log("events").unwrap();
    log.append(&json!({"n": 1})).unwrap();
    log.append(&json!({"n": 2, "text": "line\nbreak"})).unwrap();
    log.sync().unwrap();
    drop(log);
    let whole = fs_err::read(&path).unwrap();
    // Even a complete value does not count without its newline.
    fs_err::write(&path, [&whole[..], b"{\"n\": 3}"].concat()).unwrap();

    let read = EventLog::read_lines::<Value>(&path).unwrap();
    assert_eq!((read.lines.len(), read.torn_bytes), (2, 8));
    let mut log = run.log("events").unwrap();
    log.append(&json!({"n": 4})).unwrap();
    let read = EventLog::read_lines::<Value>(&path).unwrap();
    let numbers: Vec<i64> = read
        .lines
        .iter()
        .map(|event| event["n"].as_i64().unwrap())
        .collect();
    assert_eq!((numbers, read.torn_bytes), (vec![1, 2, 4], 0));
}

#[test]
fn a_long_torn_line_is_removed_whole() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("events.jsonl");
    fs_err::write(&path, format!("{{\"n\":1}}\n{}", "x".repeat(200_000))).unwrap();
    EventLog::open(&path)
        .unwrap()
        .append(&json!({"n": 2}))
        .unwrap();
    assert_eq!(
        fs_err::read_to_string(&path).unwrap(),
        "{\"n\":1}\n{\"n\":2}\n"
    );
    fs_err::write(&path, "x".repeat(200_000)).unwrap();
    EventLog::open(&path).unwrap();
    assert_eq!(fs_err::metadata(&path).unwrap().len(), 0);
}

#[test]
fn a_broken_line_in_the_middle_is_an_error() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("events.jsonl");
    assert_eq!(
        EventLog::read_lines::<Value>(&path).unwrap().lines,
        Vec::<Value>::new()
    );
    fs_err::write(&path, "{\"n\":1}\n{\"n\n{\"n\":3}\n").unwrap();
    let error = EventLog::read_lines::<Value>(&path).unwrap_err();
    assert!(error.to_string().contains("events.jsonl:2"), "{error}");
}

#[test]
fn a_log_of_another_format_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("events.jsonl");
    let line = |format: u32, kind: &str| {
        let event = json!({ "kind": kind, "task": "a" });
        json!({ "format": format, "at": "2026-01-01T00:00:00Z", "event": event }).to_string() + "\n"
    };
    fs_err::write(&path, line(2, "task_accepted") + &line(1, "surveyed")).unwrap();
    let error = EventLog::read_documents::<Event>(&path).unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with("events.jsonl:2: an event of format 1, and this program reads format 2"),
        "{text}"
    );
    let failure = error.failure();
    assert_eq!(failure.code, "other_format");
    assert!(failure.hint.unwrap().contains("--out"));
    assert!(
        failure.message.ends_with("reads format 2"),
        "{}",
        failure.message
    );

    let mut index = RunIndex::new(base.path());
    assert!(index.refresh().unwrap());
    assert_eq!(index.other_format.unwrap().found, Some(1));
    assert_eq!(index.broken, 0);
    fs_err::write(&path, line(2, "task_accepted")).unwrap();
    let mut index = RunIndex::new(base.path());
    assert!(index.refresh().unwrap());
    assert_eq!((index.other_format, index.broken), (None, 0));
}

#[test]
fn trajectories_of_another_format_are_refused() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("trajectories.jsonl");
    fs_err::write(&path, "{\"format\": 1, \"id\": \"x\"}\n").unwrap();
    let error = EventLog::read_documents::<Trajectory>(&path).unwrap_err();
    assert!(matches!(
        error,
        StoreError::OtherFormat { line: Some(1), .. }
    ));
    let mut index = RunIndex::new(base.path());
    index.refresh().unwrap();
    assert_eq!(index.other_format.unwrap().document, "a trajectory");
}

#[test]
fn a_run_folder_of_another_format_is_refused() {
    let base = tempfile::tempdir().unwrap();
    let config = |format: u32| json!({ "verb": "bench", "format": format, "seed": 7 });
    let run = RunFolder::at(base.path(), &config(1)).unwrap();
    run.log("events").unwrap().append(&1).unwrap();
    drop(run);
    let error = RunFolder::at(base.path(), &config(2)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.ends_with(
            "config.json`: a run configuration of format 1, and this program reads format 2"
        ),
        "{text}"
    );
    assert_eq!(error.failure().code, "other_format");
    assert!(error.hint().unwrap().contains("--out"));
    // The refusal let go of the folder.
    assert!(RunFolder::at(base.path(), &config(1)).unwrap().resumed());
}

#[test]
fn writers_at_the_same_time_do_not_mix_lines() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("events.jsonl");
    EventLog::open(&path).unwrap();
    thread::scope(|scope| {
        for writer in 0..4 {
            let path = &path;
            scope.spawn(move || {
                let mut log = EventLog::open(path).unwrap();
                for _ in 0..200 {
                    log.append(&json!({"writer": writer, "text": "y".repeat(3000)}))
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(
        EventLog::read_lines::<Value>(&path).unwrap().lines.len(),
        800
    );
}

fn bundle(place: &Path) -> Bundle {
    let mut writer = Bundle::create(place).unwrap();
    writer
        .write_json("verdict.json", &json!({"status": "passed"}))
        .unwrap();
    writer.write("task.py", b"class Model: ...").unwrap();
    writer
        .write("submission/model_new.py", b"class ModelNew: ...")
        .unwrap();
    writer.write("submission/kernels/a.cu", b"A").unwrap();
    assert!(!place.exists(), "nothing is there before it is whole");
    writer.finish().unwrap()
}

#[test]
fn a_bundle_reads_back() {
    let base = tempfile::tempdir().unwrap();
    let place = base.path().join("evidence/0001");
    let written = bundle(&place);
    let opened = Bundle::open(&place).unwrap();
    assert_eq!((&opened, opened.hash()), (&written, written.hash()));
    assert_eq!(opened.read("submission/kernels/a.cu").unwrap(), b"A");
    let names: Vec<&str> = opened.names().collect();
    assert_eq!(
        names,
        [
            "submission/kernels/a.cu",
            "submission/model_new.py",
            "task.py",
            "verdict.json"
        ]
    );
    assert_eq!(
        fs_err::read_dir(base.path().join("evidence"))
            .unwrap()
            .count(),
        1
    );
    assert!(matches!(
        Bundle::create(&place),
        Err(StoreError::Exists { .. })
    ));
    assert!(matches!(
        Bundle::open(base.path()),
        Err(StoreError::NotABundle { .. })
    ));
}

#[test]
fn an_abandoned_bundle_leaves_nothing() {
    let base = tempfile::tempdir().unwrap();
    let mut writer = Bundle::create(&base.path().join("b")).unwrap();
    writer.write("task.py", b"x").unwrap();
    drop(writer);
    assert_eq!(fs_err::read_dir(base.path()).unwrap().count(), 0);
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let base = tempfile::tempdir().unwrap();
    let mut writer = Bundle::create(&base.path().join("b")).unwrap();
    for name in [
        "../x",
        "submission/../../x",
        "/etc/passwd",
        "submission/",
        "submission//a",
        "manifest.json",
        "other.txt",
    ] {
        assert!(
            matches!(writer.write(name, b""), Err(StoreError::Name { .. })),
            "{name}"
        );
    }
    writer.write("task.py", b"x").unwrap();
    assert!(matches!(
        writer.write("task.py", b"y"),
        Err(StoreError::Exists { .. })
    ));
}

#[test]
fn tampering_names_the_file() {
    type Change = fn(&Path);
    let changes: [(&str, &str, Change); 5] = [
        ("task.py", "hash differs", |place| {
            fs_err::write(place.join("task.py"), "other").unwrap();
        }),
        ("verdict.json", "missing", |place| {
            fs_err::remove_file(place.join("verdict.json")).unwrap();
        }),
        ("submission/extra.cu", "added", |place| {
            fs_err::write(place.join("submission/extra.cu"), "").unwrap();
        }),
        ("task.py", "not a regular file", |place| {
            fs_err::rename(place.join("task.py"), place.with_file_name("moved.py")).unwrap();
            symlink(place.with_file_name("moved.py"), place.join("task.py")).unwrap();
        }),
        ("submission/link", "added", |place| {
            symlink("/", place.join("submission/link")).unwrap();
        }),
    ];
    for (file, what, change) in changes {
        let base = tempfile::tempdir().unwrap();
        let place = base.path().join("b");
        bundle(&place);
        change(&place);
        let error = Bundle::open(&place).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains(&format!("`{file}`")) && text.contains(what),
            "{text}"
        );
    }
    let base = tempfile::tempdir().unwrap();
    let place = base.path().join("b");
    bundle(&place);
    let manifest = fs_err::read_to_string(place.join("manifest.json")).unwrap();
    fs_err::write(
        place.join("manifest.json"),
        manifest.replace("task.py", "../task.py"),
    )
    .unwrap();
    assert!(matches!(Bundle::open(&place), Err(StoreError::Name { .. })));
}

#[test]
fn a_run_elsewhere_can_be_the_latest() {
    let place = tempfile::tempdir().unwrap();
    let base = place.path().join("runs");
    let latest = || fs_err::canonicalize(base.join("latest")).unwrap();
    let run = |folder: &str| {
        let run = RunFolder::at(&place.path().join(folder), &json!({ "verb": "x" })).unwrap();
        run.become_latest(&base).unwrap();
        assert_eq!(latest(), fs_err::canonicalize(run.path()).unwrap());
    };
    run("elsewhere");
    run("runs/named");
    // What lies there is linked relatively, so that all can be moved together.
    let link = fs_err::read_link(base.join("latest")).unwrap();
    assert_eq!(link, std::path::Path::new("named"));
    run("elsewhere");
}
