//! Pages over runs as their folders leave them.

use std::path::Path;

use serde_json::json;
use warpsmith_schema::{
    Attempt, CountedAttempt, EVENT_FORMAT, EpisodeEnding, EpisodeMode, EventKind, Message,
    PolicyVersion, Profile, RunHeader, StartAuthor, Status, Submission, SubmissionForm, Target,
    Task, Trajectory, Verdict,
};

use super::*;

mod large;

fn write(folder: &Path, name: &str, text: &str) {
    let place = folder.join(name);
    fs_err::create_dir_all(place.parent().unwrap()).unwrap();
    fs_err::write(place, text).unwrap();
}

fn line(step: u32, second: u32, loss: f64) -> String {
    format!(
        "{{\"step\":{step},\"steps\":3,\"at\":\"2026-01-02T03:04:{second:02}Z\",\"loss\":{loss}}}\n"
    )
}

fn shelf_with(metrics: &str) -> (tempfile::TempDir, Shelf) {
    let runs = tempfile::tempdir().unwrap();
    let config = r#"{"verb":"train sft","model":"tiny"}"#;
    write(runs.path(), "a/config.json", config);
    write(runs.path(), "a/metrics.jsonl", metrics);
    let shelf = Shelf::new(runs.path().to_path_buf());
    (runs, shelf)
}

fn run_page(shelf: &Shelf, name: &str) -> String {
    let page = run::page(shelf, name, &run::Asked::default());
    page.unwrap().into_string()
}

#[test]
fn a_run_that_trains_shows_its_curves_and_how_far_it_is() {
    let two = line(1, 1, 2.5) + &line(2, 3, 2.0);
    let (runs, shelf) = shelf_with(&two);
    let list = runs::page(&shelf, &runs::Asked::default()).into_string();
    for words in [
        "train sft",
        "tiny",
        "2 of 3 steps",
        "unfinished",
        "2.0000 loss",
    ] {
        assert!(list.contains(words), "{words}: {list}");
    }
    let page = run_page(&shelf, "a");
    assert!(page.contains("id=\"training-loss\""), "{page}");
    assert!(
        page.contains("the loss in training fell from 2.500 at step 1 to 2.000 at step 2"),
        "{page}"
    );
    assert!(!page.contains("Nothing has ended yet"), "{page}");

    // The last step makes it a finished run. A page looks again after half a second.
    write(runs.path(), "a/metrics.jsonl", &(two + &line(3, 5, 1.5)));
    std::thread::sleep(std::time::Duration::from_millis(600));
    let list = runs::page(&shelf, &runs::Asked::default()).into_string();
    assert!(
        list.contains("3 of 3 steps, ") && list.contains(">done<"),
        "{list}"
    );
}

#[test]
fn stages_of_a_pipeline_lie_over_each_other() {
    let runs = tempfile::tempdir().unwrap();
    write(runs.path(), "p/config.json", r#"{"verb":"train pipeline"}"#);
    for stage in ["sft", "rft"] {
        write(runs.path(), &format!("p/{stage}/config.json"), "{}");
        write(
            runs.path(),
            &format!("p/{stage}/metrics.jsonl"),
            &line(1, 1, 2.5),
        );
    }
    let shelf = Shelf::new(runs.path().to_path_buf());
    let page = run_page(&shelf, "p");
    assert!(
        page.contains("sft: 2.5 at 1") && page.contains("rft: 2.5 at 1"),
        "{page}"
    );
}

#[test]
fn a_run_without_a_step_says_so() {
    let (_runs, shelf) = shelf_with("");
    assert!(run_page(&shelf, "a").contains("No step has ended yet."));
}

const KERNEL: &str = "int f() {\n    return zero;\n}\n";

fn task(id: &str) -> Task {
    Task {
        id: id.to_owned(),
        name: id.to_owned(),
        source: "class Model:\n    pass\n".to_owned(),
        level: Some(1),
        problem_id: None,
        origin: String::new(),
        graph: None,
    }
}

fn verdict(us: Option<f64>, status: Status, compile: Option<f64>) -> Verdict {
    let mut verdict = Verdict::unreached(status, Target::Cpu, Profile::Rl, "a processor".into());
    verdict.compiled = true;
    let Some(us) = us else { return verdict };
    let speedup = json!({ "eager": 400.0 / us, "compile": compile.map(|compile| compile / us) });
    let set = |value: Value| serde_json::from_value(value).unwrap();
    verdict.times_us = Some(serde_json::from_value(json!({
        "candidate": us, "eager": 400.0, "compile": compile, "spread": 0.0, "samples": 9, "single": us, "burst": null, "constant": 0,
    })).unwrap());
    verdict.speedup = Some(serde_json::from_value(speedup.clone()).unwrap());
    verdict.matched_precision = set(json!({
        "mode": "fp32", "eager_us": 400.0, "compile_us": compile, "speedup": speedup,
    }));
    verdict
}

fn ended(id: &str, verdicts: Vec<Verdict>) -> Trajectory {
    let policy = PolicyVersion {
        name: "openai:m".into(),
        hash: None,
        step: None,
    };
    let mut trajectory = Trajectory::begin(&task(id), Target::Cpu, &policy, 1, EpisodeMode::Single);
    trajectory.ending = EpisodeEnding::Finished;
    trajectory.messages = vec![Message::Assistant {
        text: "Here.".into(),
        calls: Vec::new(),
    }];
    let passed = verdicts.iter().rposition(Verdict::passed);
    trajectory.best = passed.map(|place| place as u32);
    let attempts = verdicts.into_iter().enumerate();
    trajectory.attempts = attempts
        .map(|(number, verdict)| Attempt {
            message: 0,
            files: [("kernels/f.cpp".to_owned(), format!("// {number}\n{KERNEL}"))].into(),
            verdict,
        })
        .collect();
    trajectory
}

fn header(verb: &str) -> RunHeader {
    RunHeader {
        verb: verb.into(),
        resumed: false,
        policy: ended("t", Vec::new()).policy,
        target: Target::Cpu,
        device: "a processor".into(),
        mode: EpisodeMode::Single,
        profile: Profile::Rl,
        compile_mode: None,
        tasks: Vec::new(),
        samples: 1,
        counts: CountedAttempt::Best,
        scale: None,
        settings: [].into(),
    }
}

fn events(kinds: &[EventKind]) -> String {
    let line = |(second, event): (usize, &EventKind)| {
        let at = format!("2026-01-02T03:04:{second:02}Z");
        json!({ "format": EVENT_FORMAT, "at": at, "event": event }).to_string() + "\n"
    };
    kinds.iter().enumerate().map(line).collect()
}

fn run_of(kinds: &[EventKind], name: &str, runs: &Path) {
    let verb = name.split('-').next().unwrap_or_default();
    let config = json!({ "verb": verb, "policy": "openai:m" }).to_string();
    write(runs, &format!("{name}/config.json"), &config);
    write(runs, &format!("{name}/events.jsonl"), &events(kinds));
}

fn episode_ended(id: &str, verdicts: Vec<Verdict>) -> EventKind {
    EventKind::EpisodeEnded {
        trajectory: Box::new(ended(id, verdicts)),
    }
}

#[test]
fn what_was_not_measured_is_no_line_at_zero() {
    let runs = tempfile::tempdir().unwrap();
    let started = EventKind::RunStarted {
        run: Box::new(header("rollout")),
    };
    let passed =
        |us, compile| episode_ended("level1/1", vec![verdict(us, Status::Passed, compile)]);
    run_of(
        &[started.clone(), passed(Some(200.0), None)],
        "rollout-a",
        runs.path(),
    );
    run_of(
        &[started.clone(), passed(Some(200.0), Some(300.0))],
        "rollout-b",
        runs.path(),
    );
    run_of(&[started, passed(None, None)], "rollout-c", runs.path());
    let shelf = Shelf::new(runs.path().to_path_buf());
    let page = run_page(&shelf, "rollout-a");
    assert!(
        page.contains("<dt>5 % faster than torch.compile</dt><dd>not measured</dd>"),
        "{page}"
    );
    assert!(
        page.contains("<dt>5 % faster than eager</dt><dd>100 %</dd>"),
        "{page}"
    );
    assert!(
        page.contains("Speed-ups over torch.compile were not measured."),
        "{page}"
    );
    assert_eq!(page.matches("class=\"curve s").count(), 1, "{page}");
    let page = run_page(&shelf, "rollout-b");
    assert!(!page.contains("not measured"), "{page}");
    assert!(page.contains("over torch.compile</li>"), "{page}");
    let page = run_page(&shelf, "rollout-c");
    assert!(
        page.contains("Speed-ups were not measured: nothing was timed."),
        "{page}"
    );
    assert!(!page.contains("class=\"curve s"), "{page}");
}

#[test]
fn an_optimize_run_shows_the_numbers_that_optimize_said() {
    let runs = tempfile::tempdir().unwrap();
    let trajectory = ended("t", vec![verdict(Some(100.0), Status::Passed, None)]);
    let files = trajectory.attempts[0].files.iter();
    let submission = Submission {
        form: SubmissionForm::Plain,
        files: files
            .map(|(path, text)| (path.clone(), text.clone().into_bytes()))
            .collect(),
    };
    let kinds = [
        EventKind::StartJudged {
            task: "t".into(),
            author: StartAuthor::Compiler,
            submission: "s".into(),
            verdict: Box::new(verdict(Some(800.0), Status::Passed, None)),
        },
        EventKind::RunStarted {
            run: Box::new(header("optimize")),
        },
        EventKind::EpisodeEnded {
            trajectory: Box::new(trajectory),
        },
        EventKind::Remeasured {
            task: "t".into(),
            submission: submission.content_hash(),
            round: 1,
            verdict: Box::new(verdict(Some(10_000.0), Status::Passed, None)),
        },
    ];
    run_of(&kinds, "optimize-t", runs.path());
    let shelf = Shelf::new(runs.path().to_path_buf());
    let list = runs::page(&shelf, &runs::Asked::default()).into_string();
    assert!(list.contains("0.04x over eager"), "{list}");
    assert!(
        list.contains("openai:m") && list.contains("a processor"),
        "{list}"
    );
    let page = run_page(&shelf, "optimize-t");
    assert!(
        page.contains("10.00 ms") && !page.contains("100.0 us"),
        "{page}"
    );
    assert!(
        page.contains("the compiler&#39;s solution") || page.contains("the compiler's solution"),
        "{page}"
    );
    let report = warpsmith_report::read(&runs.path().join("optimize-t")).unwrap();
    let times = report.trajectories[0].attempts[0].verdict.times_us.as_ref();
    assert!((times.unwrap().candidate.0 - 10_000.0).abs() < 1e-9);
    assert_eq!(
        report.remeasured.reported().unwrap().times_us.as_ref(),
        times
    );
}

#[test]
fn a_run_whose_policy_never_answered_counts_apart() {
    let runs = tempfile::tempdir().unwrap();
    let failure = serde_json::from_value(json!({
        "kind": "infrastructure", "code": "policy", "message": "`http://x` does not answer", "hint": null,
    }));
    let kinds = [
        EventKind::RunStarted {
            run: Box::new(header("optimize")),
        },
        EventKind::RunEnded {
            unfinished: 1,
            interrupted: false,
            failure: Some(failure.unwrap()),
        },
    ];
    run_of(&kinds, "optimize-t", runs.path());
    let shelf = Shelf::new(runs.path().to_path_buf());
    let list = runs::page(&shelf, &runs::Asked::default()).into_string();
    assert!(
        list.contains("no result: </span>`http://x` does not answer"),
        "{list}"
    );
    assert!(!list.contains("0 % passed"), "{list}");
    let page = run_page(&shelf, "optimize-t");
    assert!(
        page.contains("nothing here counts as passed or failed"),
        "{page}"
    );
    assert!(page.contains("<dt>passed</dt><dd>–</dd>"), "{page}");
}

#[test]
fn runs_are_filtered_sorted_and_searched() {
    let runs = tempfile::tempdir().unwrap();
    let started = |verb: &str| EventKind::RunStarted {
        run: Box::new(header(verb)),
    };
    let passed = || vec![verdict(Some(200.0), Status::Passed, None)];
    let failed = || vec![verdict(None, Status::Mismatch, None)];
    run_of(
        &[started("rollout"), episode_ended("x", passed())],
        "rollout-good",
        runs.path(),
    );
    run_of(
        &[started("rollout"), episode_ended("x", failed())],
        "rollout-bad",
        runs.path(),
    );
    run_of(
        &[started("bench"), episode_ended("x", passed())],
        "bench-one",
        runs.path(),
    );
    let shelf = Shelf::new(runs.path().to_path_buf());
    let list = |query: &str| {
        let uri: axum::http::Uri = format!("/?{query}").parse().unwrap();
        let Query(asked) = Query::<runs::Asked>::try_from_uri(&uri).unwrap();
        let page = runs::page(&shelf, &asked).into_string();
        let places = ["rollout-good", "rollout-bad", "bench-one"]
            .map(|name| page.find(&format!("/runs/{name}\"")));
        let mut order: Vec<usize> = (0..3).filter(|number| places[*number].is_some()).collect();
        order.sort_by_key(|number| places[*number]);
        order
    };
    assert_eq!(list("verb=bench"), [2]);
    assert_eq!(list("q=GOOD"), [0]);
    assert_eq!(list("q=good+bench"), [] as [usize; 0]);
    assert_eq!(list("state=running"), [] as [usize; 0]);
    assert_eq!(list("sort=name"), [2, 1, 0]);
    assert_eq!(list("sort=-name"), [0, 1, 2]);
    assert_eq!(list("verb=rollout&sort=-result"), [0, 1]);
    assert_eq!(list("verb=rollout&sort=result"), [1, 0]);
    // One policy is one row, whatever verbs ran it.
    let board = leaderboard::page(&shelf).into_string();
    assert_eq!(board.matches("openai:m").count(), 1, "{board}");
}

#[test]
fn an_episode_shows_why_it_failed_at_the_line_and_what_changed() {
    let runs = tempfile::tempdir().unwrap();
    let mut broken = verdict(None, Status::CompileFailed, None);
    let error = "kernels/f.cpp:3:12: error: 'zero' was not declared";
    broken.reason = Some(format!("== kernels/f.cpp\n{error}"));
    let passed = verdict(Some(200.0), Status::Passed, None);
    run_of(
        &[episode_ended("t", vec![broken, passed])],
        "rollout-a",
        runs.path(),
    );
    let shelf = Shelf::new(runs.path().to_path_buf());
    let uri: axum::http::Uri = "/?task=t".parse().unwrap();
    let Query(asked) = Query::<episode::Asked>::try_from_uri(&uri).unwrap();
    let page = episode::page(&shelf, &idle(), "rollout-a", &asked).unwrap();
    let page = page.into_string();
    let places = [
        "✗ compile_failed",
        "attempt-2\">attempt 2</a> ★",
        "✓ passed",
    ]
    .map(|text| page.find(text));
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{page}"
    );
    let line = page.find("return</span> zero;").unwrap();
    let note = page
        .find("error: 'zero'")
        .or(page.find("error: &#39;zero&#39;"));
    assert!(
        page[line..].contains("was not declared") && note.is_some(),
        "{page}"
    );
    assert!(
        page.contains("since the attempt before: 1 added, 1 removed"),
        "{page}"
    );
}

/// Examines nothing.
fn idle() -> Examiner {
    Examiner::new(Arc::new(|_, _, _| {
        Err(warpsmith_schema::Failure::panicked())
    }))
}

#[test]
fn two_runs_are_compared_with_an_answer() {
    let runs = tempfile::tempdir().unwrap();
    let one = |passed: bool| {
        let verdict = if passed {
            verdict(Some(200.0), Status::Passed, None)
        } else {
            verdict(None, Status::Mismatch, None)
        };
        vec![verdict]
    };
    let log = |share: usize| -> Vec<EventKind> {
        (0..20)
            .map(|number| episode_ended(&format!("level1/{number}"), one(number < share)))
            .collect()
    };
    run_of(&log(2), "rollout-a", runs.path());
    run_of(&log(18), "rollout-b", runs.path());
    let shelf = Shelf::new(runs.path().to_path_buf());
    let compared = |names: [&str; 2]| {
        let page = compare::page(&shelf, &names.map(str::to_owned)).unwrap();
        page.into_string()
    };
    let page = compared(["rollout-a", "rollout-b"]);
    assert!(
        page.contains("correct: better</strong>, +80.0 points (95 % of resamples: +"),
        "{page}"
    );
    let page = compared(["rollout-b", "rollout-a"]);
    assert!(
        page.contains("correct: worse</strong>, -80.0 points"),
        "{page}"
    );
}

#[test]
fn the_replies_of_a_step_are_sorted_by_reward() {
    let line = line(1, 1, 2.5);
    let (runs, shelf) = shelf_with(&line);
    let mut good = verdict(Some(200.0), Status::Passed, None);
    good.reward.robust = 2.0;
    let mut bad = verdict(None, Status::Mismatch, None);
    bad.reward.robust = -1.0;
    let kinds = [
        episode_ended("bad", vec![bad]),
        episode_ended("good", vec![good]),
    ];
    let place = "a/rollouts/step-000001-0/events.jsonl";
    write(runs.path(), place, &events(&kinds));
    let page = run_page(&shelf, "a");
    assert!(
        page.contains("href=\"/runs/a/step?stage=&amp;step=1\""),
        "{page}"
    );
    let uri: axum::http::Uri = "/?stage=&step=1".parse().unwrap();
    let Query(asked) = Query::<step::Asked>::try_from_uri(&uri).unwrap();
    let page = step::page(&shelf, "a", &asked).unwrap().into_string();
    let places = ["2 replies", "reward 2.0", "reward -1.0"].map(|text| page.find(text));
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{page}"
    );
}

#[test]
fn a_run_in_which_no_group_taught_says_so() {
    let line = |step: u32, groups: u32| {
        format!("{{\"step\":{step},\"steps\":3,\"reward\":-1.0,\"groups\":{groups}}}\n")
    };
    let (runs, shelf) = shelf_with(&(line(1, 0) + &line(2, 0)));
    let warning = "no group has taught the policy anything";
    assert!(run_page(&shelf, "a").contains(warning));
    let log = line(1, 0) + &line(2, 1) + &line(3, 0);
    write(runs.path(), "a/metrics.jsonl", &log);
    let shelf = Shelf::new(runs.path().to_path_buf());
    assert!(!run_page(&shelf, "a").contains(warning));
}
