//! Tuning with a judge that follows a script: what is kept of it, and what another process makes of that.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{StandIn, task};
use serde_json::json;
use tempfile::TempDir;
use warpsmith_compiler::Strategy;
use warpsmith_judge::JudgeError;
use warpsmith_rollout::{
    RolloutError, TuningEvent, TuningKey, TuningLog, TuningOutcome, TuningRequest, tune_by_judge,
};
use warpsmith_schema::{Submission, Target, Task};

const SOURCE: &str = "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, -1)\n";

fn softmax() -> Task {
    let value = |from| json!({ "shape": [512, 2048], "dtype": "float32", "from": from });
    let applied = json!({ "kind": "applied", "op": "softmax", "inputs": [0], "arguments": { "dim": -1 }, "result": 0 });
    let values = [
        value(json!({ "kind": "input", "position": 0 })),
        value(applied),
    ];
    let graph = json!({ "values": values, "returns": [1] });
    Task {
        source: SOURCE.to_owned(),
        graph: Some(serde_json::from_value(graph).unwrap()),
        ..task(1)
    }
}

fn kernels(submission: &Submission) -> String {
    let kernels = submission
        .files
        .iter()
        .find(|(path, _)| path.ends_with(".cu"));
    String::from_utf8_lossy(kernels.unwrap().1).into_owned()
}

/// Twice as many threads as usual are twice as quick.
fn quick_with_256(submission: &Submission) -> f64 {
    let text = kernels(submission);
    if text.contains("float4") && text.contains("block_sum<256>") {
        50.0
    } else {
        100.0
    }
}

/// Judges by these times, and counts.
fn judge(times: fn(&Submission) -> f64) -> (StandIn, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let judge = StandIn {
        times: Some(Arc::new(times)),
        on_judge: Some(Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })),
        ..StandIn::default()
    };
    (judge, count)
}

fn log(folder: &Path, task: &Task, device: &str) -> TuningLog {
    let key = TuningKey {
        graph: task.graph.as_ref().unwrap(),
        target: Target::Cuda,
        device,
        torch: "2.11",
    };
    TuningLog::open(folder, key).unwrap()
}

fn tuned(
    folder: &Path,
    judge: &mut StandIn,
    budget: Option<Duration>,
    dropped: &mut Vec<String>,
) -> Result<Option<TuningOutcome>, RolloutError> {
    let task = softmax();
    tune_by_judge(TuningRequest {
        task: &task,
        target: Target::Cuda,
        options: Strategy::Tuned.into(),
        budget,
        log: log(folder, &task, "device"),
        judge,
        stop: &|| false,
        watch: &mut |event| {
            if let TuningEvent::Dropped { reason, .. } = event {
                dropped.push(reason.to_owned());
            }
        },
    })
}

const HOUR: Option<Duration> = Some(Duration::from_hours(1));

#[test]
fn what_is_faster_in_turn_is_kept_for_others() {
    let place = TempDir::new().unwrap();
    let (mut first, count) = judge(quick_with_256);
    let found = tuned(place.path(), &mut first, HOUR, &mut Vec::new());
    let found = found.unwrap().unwrap();
    assert!(found.found.exhausted);
    let files = found.faster().unwrap();
    assert!(files.values().any(|text| text.contains("block_sum<256>")));
    let all = count.load(Ordering::SeqCst);
    // Each once, then the two in turn.
    assert_eq!(all, found.found.tried + 1 + 4);
    assert!((found.baselines.unwrap().eager_us - 100.0).abs() < 1e-9);
    // Nobody asks a judge for what is known, with a budget or without.
    for budget in [HOUR, None] {
        let (mut second, count) = judge(|_| 1.0);
        let again = tuned(place.path(), &mut second, budget, &mut Vec::new());
        let again = again.unwrap().unwrap();
        assert_eq!(again.found, found.found);
        assert_eq!(again.faster(), Some(files));
        assert_eq!(count.load(Ordering::SeqCst), 0);
    }
    assert!(log(place.path(), &softmax(), "device").is_known());
    assert!(!log(place.path(), &softmax(), "another").is_known());
}

#[test]
fn a_process_that_dies_loses_only_what_it_was_at() {
    let whole = TempDir::new().unwrap();
    let (mut all, count) = judge(quick_with_256);
    let expected = tuned(whole.path(), &mut all, HOUR, &mut Vec::new());
    let expected = expected.unwrap().unwrap();
    let needed = count.load(Ordering::SeqCst);

    let place = TempDir::new().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    for dies_at in [1, 4, usize::MAX] {
        let (counted, own) = (count.clone(), AtomicUsize::new(0));
        let mut judge = StandIn {
            times: Some(Arc::new(quick_with_256)),
            on_judge: Some(Arc::new(move || {
                if own.fetch_add(1, Ordering::SeqCst) >= dies_at {
                    return Err(JudgeError::cancelled());
                }
                counted.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })),
            ..StandIn::default()
        };
        let _ = tuned(place.path(), &mut judge, HOUR, &mut Vec::new());
        // Cut off in the middle of a line.
        for file in fs_err::read_dir(place.path()).unwrap() {
            let path = file.unwrap().path();
            let text = fs_err::read_to_string(&path).unwrap();
            fs_err::write(&path, text + "{\"kind\": \"measured\", \"kern").unwrap();
        }
    }
    assert_eq!(count.load(Ordering::SeqCst), needed);
    let (mut nobody, count) = judge(|_| 1.0);
    let found = tuned(place.path(), &mut nobody, None, &mut Vec::new());
    assert_eq!(found.unwrap().unwrap().found, expected.found);
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

/// The fastest of many measurements is the luckiest of them.
#[test]
fn noise_is_no_gain() {
    static SEEN: AtomicUsize = AtomicUsize::new(0);
    let place = TempDir::new().unwrap();
    let (mut judge, _) = judge(|_| {
        let seen = SEEN.fetch_add(1, Ordering::SeqCst);
        if seen == 3 { 80.0 } else { 100.0 }
    });
    let found = tuned(place.path(), &mut judge, HOUR, &mut Vec::new());
    let found = found.unwrap().unwrap();
    assert_ne!(found.found.best, found.found.usual);
    assert_eq!(found.faster(), None);
}

#[test]
fn without_a_budget_nothing_is_measured() {
    let place = TempDir::new().unwrap();
    let (mut judge, count) = judge(quick_with_256);
    let found = tuned(place.path(), &mut judge, None, &mut Vec::new()).unwrap();
    assert!(found.is_none());
    assert_eq!(count.load(Ordering::SeqCst), 0);
}
