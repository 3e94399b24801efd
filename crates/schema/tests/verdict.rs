//! The JSON of verdicts and failures, byte for byte: others script against it.

use std::collections::BTreeMap;

use warpsmith_schema::{
    AttemptProgress, Failure, FailureKind, FailureReport, MatchedPrecision, Number, Numerics,
    Precision, Profile, Reward, Rule, Speedup, StageSeconds, Status, Target, Times, TrustCheck,
    Verdict,
};

/// The names of `trust.checks` that the judge fills in, in a fixed state.
fn checks(state: TrustCheck) -> BTreeMap<String, TrustCheck> {
    [
        "floor",
        "imports",
        "inputs_intact",
        "outputs_stable",
        "own_code",
        "timed_outputs",
        "values",
    ]
    .iter()
    .map(|name| ((*name).to_owned(), state))
    .collect()
}

#[test]
fn a_passed_verdict_is_written_byte_for_byte() {
    let mut verdict = Verdict::unreached(
        Status::Passed,
        Target::Cuda,
        Profile::Full,
        "NVIDIA H200".to_owned(),
    );
    verdict.compiled = true;
    verdict.correct = true;
    verdict.progress = AttemptProgress {
        parsed: true,
        compiled: true,
        loaded: true,
        ran: true,
        shape_ok: true,
        share_within_tolerance: Some(1.0),
    };
    let speedup = Speedup {
        eager: Number(2.5),
        compile: Some(Number(1.25)),
    };
    verdict.times_us = Some(Times {
        candidate: Number(40.0),
        eager: Number(100.0),
        compile: Some(Number(50.0)),
        spread: Number(0.015),
        samples: 296,
        single: Number(42.0),
        burst: Some(Number(40.0)),
        constant: Number(172.5),
    });
    verdict.speedup = Some(speedup);
    verdict.matched_precision = Some(MatchedPrecision {
        mode: Precision::Tf32,
        eager_us: Number(100.0),
        compile_us: Some(Number(50.0)),
        speedup,
    });
    verdict.numerics = Some(Numerics {
        candidate_vs_fp64: Number(1.5e-7),
        eager_vs_fp64: Number(1.25e-7),
    });
    verdict.seconds = StageSeconds {
        compile: 1.5,
        verify: 0.5,
        time: 0.75,
        total: 2.75,
    };
    verdict.isolation = Some(BTreeMap::from([
        (
            "looks".to_owned(),
            "missing: perf events are refused".to_owned(),
        ),
        (
            "network".to_owned(),
            "network namespace, seccomp".to_owned(),
        ),
    ]));
    verdict.trust.contained = true;
    verdict.trust.fp64 = Some("all".to_owned());
    verdict.trust.draws = vec!["plain".to_owned(), "uneven".to_owned()];
    verdict.trust.moved = Some("state".to_owned());
    verdict.trust.kill_rate = Some(0.98);
    verdict.trust.checks = checks(TrustCheck::Held);
    verdict.notes =
        vec!["the candidate's calls differ widely among themselves: a slow one counts".to_owned()];
    verdict.evidence = Some("/cache/evidence/one".to_owned());
    verdict.reward = Reward::of(&verdict);
    let written = serde_json::to_string(&verdict).unwrap();
    assert_eq!(
        written,
        concat!(
            r#"{"format":1,"status":"passed","rule":null,"reason":null,"compiled":true,"correct":true,"#,
            r#""progress":{"parsed":true,"compiled":true,"loaded":true,"ran":true,"shape_ok":true,"share_within_tolerance":1.0},"#,
            r#""profile":"full","rules":"own","target":"cuda","device":"NVIDIA H200","#,
            r#""times_us":{"candidate":40.0,"eager":100.0,"compile":50.0,"spread":0.015,"samples":296,"single":42.0,"burst":40.0,"constant":172.5},"#,
            r#""speedup":{"eager":2.5,"compile":1.25},"#,
            r#""matched_precision":{"mode":"tf32","eager_us":100.0,"compile_us":50.0,"speedup":{"eager":2.5,"compile":1.25}},"#,
            r#""numerics":{"candidate_vs_fp64":1.5e-7,"eager_vs_fp64":1.25e-7},"torch_operators":null,"#,
            r#""reward":{"robust":3.0,"raw":1.25,"composite":5.25,"ladder":3.0},"#,
            r#""seconds":{"compile":1.5,"verify":0.5,"time":0.75,"total":2.75},"#,
            r#""isolation":{"looks":"missing: perf events are refused","network":"network namespace, seccomp"},"#,
            r#""trust":{"contained":true,"degenerate_inputs":false,"deferred_work":false,"fp64":"all","excluded_share":0.0,"#,
            r#""draws":["plain","uneven"],"moved":"state","kill_rate":0.98,"checks":{"floor":"held","imports":"held","inputs_intact":"held","outputs_stable":"held","own_code":"held","timed_outputs":"held","values":"held"}},"#,
            r#""notes":["the candidate's calls differ widely among themselves: a slow one counts"],"evidence":"/cache/evidence/one"}"#,
        )
    );
    assert_eq!(serde_json::from_str::<Verdict>(&written).unwrap(), verdict);
}

#[test]
fn a_rejected_verdict_is_written_byte_for_byte() {
    let mut verdict = Verdict::unreached(
        Status::Rejected,
        Target::Cpu,
        Profile::Rl,
        "a machine".to_owned(),
    );
    verdict.rule = Some(Rule::ForbiddenImport);
    verdict.reason =
        Some("the built library may not be run: it imports the C function `dlopen`".to_owned());
    verdict.compiled = true;
    verdict.progress.parsed = true;
    verdict.progress.compiled = true;
    verdict.seconds.compile = 0.25;
    verdict.seconds.total = 0.5;
    verdict.trust.checks = BTreeMap::from([("imports".to_owned(), TrustCheck::Failed)]);
    verdict.reward = Reward::of(&verdict);
    let written = serde_json::to_string(&verdict).unwrap();
    assert_eq!(
        written,
        concat!(
            r#"{"format":1,"status":"rejected","rule":"forbidden-import","#,
            r#""reason":"the built library may not be run: it imports the C function `dlopen`","compiled":true,"correct":false,"#,
            r#""progress":{"parsed":true,"compiled":true,"loaded":false,"ran":false,"shape_ok":false,"share_within_tolerance":null},"#,
            r#""profile":"rl","rules":"own","target":"cpu","device":"a machine","times_us":null,"speedup":null,"matched_precision":null,"numerics":null,"torch_operators":null,"#,
            r#""reward":{"robust":-1.0,"raw":0.0,"composite":0.0,"ladder":-1.0},"#,
            r#""seconds":{"compile":0.25,"verify":0.0,"time":0.0,"total":0.5},"isolation":null,"#,
            r#""trust":{"contained":false,"degenerate_inputs":false,"deferred_work":false,"fp64":null,"excluded_share":0.0,"draws":[],"moved":null,"kill_rate":null,"checks":{"imports":"failed"}},"#,
            r#""notes":[],"evidence":null}"#,
        )
    );
    assert_eq!(serde_json::from_str::<Verdict>(&written).unwrap(), verdict);
}

/// Every word that a verdict may use for a status, a rule and a check.
#[test]
fn the_words_of_a_verdict_stay() {
    let word = |value: serde_json::Value| value.as_str().unwrap().to_owned();
    let statuses = [
        Status::Passed,
        Status::Rejected,
        Status::CompileFailed,
        Status::Crashed,
        Status::TimedOut,
        Status::Mismatch,
        Status::Cheating,
    ]
    .map(|status| word(serde_json::to_value(status).unwrap()));
    assert_eq!(
        statuses.join(" "),
        "passed rejected compile_failed crashed timed_out mismatch cheating"
    );
    let rules = [
        Rule::ForbiddenImport,
        Rule::ForbiddenLanguage,
        Rule::Form,
        Rule::ForbiddenOperator,
        Rule::DecoyTouched,
        Rule::OutputChanged,
        Rule::InputChanged,
        Rule::Protocol,
        Rule::BackgroundWork,
        Rule::BelowFloor,
        Rule::WrongWhenTimed,
        Rule::StaleWeights,
        Rule::SharedOutput,
        Rule::OutputType,
        Rule::StateDict,
        Rule::MemoryLimit,
        Rule::NothingReplaced,
    ]
    .map(|rule| word(serde_json::to_value(rule).unwrap()));
    assert_eq!(
        rules.join(" "),
        "forbidden-import forbidden-language form forbidden-operator decoy-touched output-changed input-changed protocol \
         background-work below-floor wrong-when-timed stale-weights shared-output output-type state-dict memory-limit \
         nothing-replaced"
    );
    let checks = [TrustCheck::Held, TrustCheck::Failed, TrustCheck::NotReached]
        .map(|check| word(serde_json::to_value(check).unwrap()));
    assert_eq!(checks.join(" "), "held failed not_reached");
}

#[test]
fn a_failure_is_written_byte_for_byte() {
    let failure = Failure {
        kind: FailureKind::Infrastructure,
        code: "noisy_machine".to_owned(),
        message: "the spread of timed calls stayed at 40 % in three runs".to_owned(),
        hint: None,
    };
    assert_eq!(
        serde_json::to_string(&FailureReport::new(failure)).unwrap(),
        concat!(
            r#"{"format":1,"failure":{"kind":"infrastructure","code":"noisy_machine","#,
            r#""message":"the spread of timed calls stayed at 40 % in three runs","hint":null}}"#,
        )
    );
}
