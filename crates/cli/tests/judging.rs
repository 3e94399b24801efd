//! Judgements by the real binary. These need torch: the binary finds or fetches it, and nothing is skipped.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::processes::{assert_gone, descendants};
use crate::common::{Context, code, files, json, judged};
use crate::snapshot;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Quick, and quiet about what must be fetched or built first.
const QUICK: [&str; 6] = ["--target", "cpu", "--profile", "rl", "--no-compile", "-q"];

fn with<'a>(first: &[&'a str]) -> Vec<&'a str> {
    [first, &QUICK].concat()
}

fn assert_keys(value: &Value, place: &str, keys: &str) {
    for key in keys.split(' ') {
        assert!(
            value[place].get(key).is_some(),
            "no `{place}.{key}` in {value:#}"
        );
    }
}

#[test]
fn an_example_passes_leaves_evidence_and_can_be_replayed() {
    let context = Context::new();
    let output = judged(|| context.command(&with(&["judge", "--json", "--out", "evidence"])));
    let verdict = json(&output);
    assert_eq!(code(&output), 0, "{verdict:#}");
    assert_eq!(verdict["status"], "passed");
    assert_eq!(verdict["format"], 1);
    for key in "rule reason compiled correct target device isolation".split(' ') {
        assert!(verdict.get(key).is_some(), "no `{key}`");
    }
    assert_keys(
        &verdict,
        "progress",
        "parsed compiled loaded ran shape_ok share_within_tolerance",
    );
    assert_keys(
        &verdict,
        "times_us",
        "candidate eager compile spread samples",
    );
    assert_keys(&verdict, "speedup", "eager compile");
    assert_keys(
        &verdict,
        "matched_precision",
        "mode eager_us compile_us speedup",
    );
    assert_keys(&verdict, "numerics", "candidate_vs_fp64 eager_vs_fp64");
    assert_keys(&verdict, "reward", "robust raw composite ladder");
    assert_keys(&verdict, "seconds", "compile verify time total");
    assert_keys(&verdict, "trust", "contained degenerate_inputs moved");
    let draws = "plain scaled negated far mixed uneven outliers faint";
    let draws: Vec<&str> = draws.split(' ').collect();
    assert_eq!(verdict["trust"]["draws"], serde_json::json!(draws));

    let place = context.path("evidence");
    assert!(verdict["evidence"].as_str().unwrap().ends_with("/evidence"));
    insta::assert_snapshot!(files(&place).join("\n"), @"
    compile.log
    environment.json
    manifest.json
    printed.log
    samples.json
    seeds.json
    submission/kernels/softmax.cpp
    submission/model_new.py
    task.py
    verdict.json
    ");
    let written: Value =
        serde_json::from_slice(&fs_err::read(place.join("verdict.json")).unwrap()).unwrap();
    assert_eq!(written, verdict);

    // No assertion on the times: whether they agree is the machine's mood. The status is not.
    let output = judged(|| context.command(&["replay", "evidence", "--json", "-q"]));
    let replay = json(&output);
    assert_eq!(replay["same_status"], true);
    assert_eq!(replay["not_comparable"], Value::Null);
    assert_eq!(replay["recorded"], verdict);
    assert_eq!(replay["replayed"]["status"], "passed");
    assert_eq!(code(&output), i32::from(replay["agrees"] == false));

    context.edit(
        "evidence/task.py",
        "import torch",
        "import torch  # changed",
    );
    snapshot!(context.shown(&context.command(&["replay", "evidence"]).output().unwrap()), @"
    exit_code: 2
    ----- stdout -----
    ----- stderr -----
    error: `task.py` of the bundle `evidence` is not what was written: its hash differs
    hint: judge the submission again: this evidence proves nothing
    ");
}

#[test]
fn a_new_task_passes_as_it_is_but_not_every_bar() {
    let context = Context::new();
    assert_eq!(
        code(&context.command(&["new", "gate"]).output().unwrap()),
        0
    );
    let arguments = with(&["judge", "gate", "--min-speedup", "1000000"]);
    let output = judged(|| {
        let _ = fs_err::remove_dir_all(context.path("evidence"));
        context.command(&[&arguments[..], &["--out", "evidence"]].concat())
    });
    snapshot!(context.shown(&output), @"
    exit_code: 1
    ----- stdout -----
    passed  gate on cpu, [DEVICE]

      candidate [TIME]   +-[SPREAD] over [N] calls
      eager [TIME]   [RATIO] speed-up
      torch.compile  not measured
      precision      fp32, as the baselines above
      numerics       [ERROR] from float64 (eager [ERROR])
      reward         robust [REWARD], raw [REWARD], composite [REWARD], ladder [REWARD]
      seconds        compile [SECONDS], verify [SECONDS], time [SECONDS], total [SECONDS]
      isolation      contained, [N] of [N] protections hold
      trust          all checks held
      evidence       [HERE]/evidence
    ----- stderr -----
    ");
}

/// A solution that packs its weights when they are loaded is told why it is wrong.
#[test]
fn weights_that_went_stale_are_named() {
    let context = Context::new();
    let case = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../exploits/own/packed_at_load"
    );
    let task = format!("{case}/model.py");
    let arguments = with(&["judge", &task, case, "--json"]);
    let output = context.command(&arguments).output().unwrap();
    let verdict = json(&output);
    assert_eq!(code(&output), 1, "{verdict:#}");
    assert_eq!(verdict["status"], "mismatch");
    assert_eq!(verdict["rule"], "stale-weights", "{verdict:#}");
    let reason = verdict["reason"].as_str().unwrap();
    assert!(reason.contains("belongs in `forward`"), "{reason}");
}

#[test]
fn a_kernel_that_does_not_compile_is_shown_with_its_log() {
    let context = Context::new();
    assert_eq!(
        code(&context.command(&["new", "gate"]).output().unwrap()),
        0
    );
    context.edit("gate/kernels/gate.cpp", "return 0;", "return zero;");
    let output = context
        .command(&with(&["judge", "gate", "--out", "evidence"]))
        .output()
        .unwrap();
    snapshot!(context.shown(&output), @"
    exit_code: 1
    ----- stdout -----
    compile_failed  gate on cpu, [DEVICE]

      reason [LOG]
      next           mend the first error above; `compile.log` in the evidence has the rest
      reward         robust [REWARD], raw [REWARD], composite [REWARD], ladder [REWARD]
      seconds        compile [SECONDS], verify [SECONDS], time [SECONDS], total [SECONDS]
      isolation      contained, [N] of [N] protections hold
      evidence       [HERE]/evidence
    ----- stderr -----
    ");
    let log = fs_err::read_to_string(context.path("evidence/compile.log")).unwrap();
    assert!(log.contains("'zero' was not declared"), "{log}");
}

/// What is wrong stands in the reason, in the words of who wrote it: no frame of this program.
#[test]
fn a_broken_module_is_shown_where_it_is_broken() {
    let context = Context::new();
    let made = context.command(&["new", "gate"]).output().unwrap();
    assert_eq!(code(&made), 0);
    let whole = context.read("gate/model_new.py");
    let judge = || {
        let arguments = ["judge", "gate", "--json"];
        let output = context.command(&with(&arguments)).output().unwrap();
        json(&output)["reason"].as_str().unwrap().to_owned()
    };
    context.write("gate/model_new.py", &format!("{whole}\nx = = 1\n"));
    let reason = judge();
    assert!(reason.contains("SyntaxError"), "{reason}");
    assert!(
        reason.contains("model_new.py") && !reason.contains("worker.py"),
        "{reason}"
    );
    context.write(
        "gate/model_new.py",
        &whole.replace("return ", "undefined()\n        return "),
    );
    let reason = judge();
    assert!(reason.contains("NameError"), "{reason}");
    assert!(!reason.contains("worker.py"), "{reason}");
    // An element is named as whoever indexes the output names it.
    context.write("gate/model_new.py", &whole);
    let kernel = context.read("gate/kernels/gate.cpp");
    let last = kernel.rfind("return 0;").unwrap();
    let spoilt = format!("{}out[7] = 1e6f; {}", &kernel[..last], &kernel[last..]);
    context.write("gate/kernels/gate.cpp", &spoilt);
    let reason = judge();
    assert!(reason.contains("output 0 at [0, 7] of ["), "{reason}");
}

#[test]
fn a_broken_task_is_no_verdict() {
    let context = Context::new();
    assert_eq!(
        code(&context.command(&["new", "gate"]).output().unwrap()),
        0
    );
    context.edit(
        "gate/model.py",
        "import torch\n",
        "import torch\nraise ValueError('broken')\n",
    );
    let output = context
        .command(&with(&["judge", "gate", "--json"]))
        .output()
        .unwrap();
    snapshot!(context.shown(&output), @r#"
    exit_code: 2
    ----- stdout -----
    {
      "format": 1,
      "failure": {
        "kind": "task",
        "code": "model_raised",
        "message": "the task cannot be judged (model_raised): importing model.py raised ValueError: broken",
        "hint": "fix model.py; a task needs deterministic, finite, input-dependent outputs"
      }
    }
    ----- stderr -----
    error: the task cannot be judged (model_raised): importing model.py raised ValueError: broken
    hint: fix model.py; a task needs deterministic, finite, input-dependent outputs
    "#);
}

#[test]
fn a_profile_covers_the_task_and_the_solution() {
    let context = Context::new();
    let arguments = ["profile", "softmax", "softmax", "--target", "cpu"];
    let output = context
        .command(&[&arguments[..], &["--json", "-q"]].concat())
        .output()
        .unwrap();
    let report = json(&output);
    assert_eq!(code(&output), 0, "{report:#}");
    assert_eq!(report["format"], 1);
    assert_keys(
        &report,
        "reference",
        "operators total_us bytes flops bound roofline",
    );
    assert_keys(&report, "solution", "untrusted kernels total_us");
    assert_eq!(report["solution"]["failure"], Value::Null);
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let context = Context::new();
    // Early, while processes start, and late, in the middle of a judgement.
    for wait in [Duration::from_millis(300), Duration::from_secs(6)] {
        let child = context
            // Loud: without the last flag, `-q`.
            .command(&[&["judge", "--json", "--out", "evidence"], &QUICK[..5]].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while descendants(child.id()).len() < 2 {
            assert!(
                begun.elapsed() < Duration::from_mins(10),
                "nothing was started"
            );
            thread::sleep(Duration::from_millis(50));
        }
        thread::sleep(wait);
        let started = descendants(child.id());
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 130);
        assert_eq!(json(&output)["failure"]["code"], "interrupted");
        // At once, and before whatever has to be taken down is.
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("interrupted: stopping\n"), "{said}");
        assert!(!context.path("evidence").exists());
        assert_gone(&started);
    }
}
