use warpsmith_model::policy::ScriptPolicy;
use warpsmith_schema::{
    Attempt, EpisodeEnding, EpisodeMode, PolicyVersion, Profile, Status, Target, Task, Verdict,
};

use super::*;

#[test]
fn a_score_is_the_last_object_that_is_one() {
    let all = |text: &str| LlmScore::read(text).map(LlmScore::mean);
    let fine = r#"{"reasoning": "{}", "correctness": 1, "compilability": 0.5, "speed": 0}"#;
    assert_eq!(all(fine), Some(0.5));
    let aloud = r#"First {"correctness": 0, "compilability": 0, "speed": 0}, but rather ```json
        {"correctness": 0.9, "compilability": 0.9, "speed": 0.9} ``` {or so}"#;
    assert_eq!(all(aloud), Some(0.9));
    for text in [
        "",
        "very good",
        r#"{"correctness": 1, "compilability": 1}"#,
        r#"{"correctness": 1, "compilability": 1, "speed": 1.01}"#,
        r#"{"correctness": -1, "compilability": 1, "speed": 1}"#,
        r#"{"correctness": "1", "compilability": 1, "speed": 1}"#,
        r#"{"correctness": 1, "compilability": 1, "speed": 1"#,
    ] {
        assert_eq!(all(text), None, "{text}");
    }
}

#[test]
fn a_missing_score_neither_pays_nor_costs() {
    let scored = [("a", Some(0.2)), ("a", None), ("a", Some(0.6)), ("b", None)];
    let scored = scored.map(|(task, score)| (task.to_owned(), score));
    assert_eq!(filled(&scored), [0.2, 0.4, 0.6, 0.0]);
}

fn trajectory(sample: u32, status: Status, files: &[(&str, &str)]) -> Trajectory {
    let task = Task {
        id: "level1/1".into(),
        name: "one".into(),
        source: "class Model: pass".into(),
        level: Some(1),
        problem_id: Some(1),
        origin: String::new(),
        graph: None,
    };
    let policy = PolicyVersion {
        name: "local:m".into(),
        hash: None,
        step: None,
    };
    let mut one = Trajectory::begin(&task, Target::Cpu, &policy, sample, EpisodeMode::Single);
    one.ending = EpisodeEnding::Finished;
    let files = files.iter();
    one.attempts = vec![Attempt {
        message: 1,
        files: files
            .map(|(name, text)| ((*name).into(), (*text).into()))
            .collect(),
        verdict: Verdict::unreached(status, Target::Cpu, Profile::Rl, String::new()),
    }];
    one
}

/// Sample 1 is answered at once, sample 2 at the third time, sample 3 never. Sample 4 cheated and 5 submitted nothing:
/// nobody is asked about them.
fn script(folder: &Path) -> ScriptPolicy {
    let scores = |score: f64| {
        format!(
            r#"{{\"reasoning\": \"\", \"correctness\": {score}, \"compilability\": {score}, \"speed\": {score}}}"#
        )
    };
    let line =
        |sample: u32, text: &str| format!("{{\"sample\": {sample}, \"text\": \"{text}\"}}\n");
    let mut text = line(1, &scores(0.5));
    for said in ["no idea", "still none", &scores(1.0)] {
        text += &line(2, said);
    }
    text += &line(3, "pass").repeat(3);
    let path = folder.join("script.jsonl");
    fs_err::write(&path, text).unwrap();
    ScriptPolicy::open(&path).unwrap()
}

fn llm_judge(policy: ScriptPolicy) -> LlmJudge {
    LlmJudge {
        policy: Arc::new(policy),
        weight: 0.5,
        concurrency: 2,
    }
}

#[test]
fn submissions_are_asked_about_once_and_those_who_cheat_get_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let files = [("kernels/k.cpp", "void f();")];
    let all = [
        trajectory(1, Status::Passed, &files),
        trajectory(2, Status::Mismatch, &files),
        trajectory(3, Status::Passed, &files),
        trajectory(4, Status::Cheating, &files),
        trajectory(5, Status::Passed, &[]),
    ];
    let ask = |policy: ScriptPolicy| {
        llm_judge(policy).bonuses(folder.path(), &all, CountedAttempt::Final, || {
            StopRequest::Continue
        })
    };
    let found = ask(script(folder.path())).unwrap();
    // The third is taken to be like the other four.
    assert_eq!(found.each, [0.25, 0.5, 0.1875, 0.0, 0.0]);
    let numbers = Numbers::from([("llm_judge_score", 0.375), ("llm_judge_missing", 1.0 / 3.0)]);
    assert_eq!(found.numbers, Some(numbers));
    // Nobody is there any more, and nobody is asked.
    let empty = folder.path().join("empty.jsonl");
    fs_err::write(&empty, "").unwrap();
    assert_eq!(ask(ScriptPolicy::open(&empty).unwrap()).unwrap(), found);
}

#[test]
fn an_llm_judge_that_is_gone_is_told_and_what_was_heard_stays() {
    let folder = tempfile::tempdir().unwrap();
    let files = [("kernels/k.cpp", "void f();")];
    let all = [
        trajectory(1, Status::Passed, &files),
        trajectory(7, Status::Passed, &files),
    ];
    let found = llm_judge(script(folder.path())).bonuses(
        folder.path(),
        &all,
        CountedAttempt::Final,
        || StopRequest::Continue,
    );
    let Err(TrainError::Collect(failure)) = found else {
        panic!("{found:?}");
    };
    assert_eq!(failure.code, "llm_judge");
    let log = fs_err::read_to_string(folder.path().join(LOG)).unwrap();
    assert!(
        log.contains("\"sample\":1") && !log.contains("\"sample\":7"),
        "{log}"
    );
}

#[test]
fn whoever_wants_to_stop_stops() {
    let folder = tempfile::tempdir().unwrap();
    let all = [trajectory(1, Status::Passed, &[("k.cpp", "")])];
    let found = llm_judge(script(folder.path())).bonuses(
        folder.path(),
        &all,
        CountedAttempt::Final,
        || StopRequest::Drain,
    );
    assert!(matches!(found, Err(TrainError::Interrupted)), "{found:?}");
}
