//! Numbers worked out by hand, and what must hold of any.

mod by_hand;
mod parts;
mod properties;

use std::collections::BTreeMap;

use super::Share;
use warpsmith_schema::{
    Attempt, EpisodeEnding, EpisodeMode, MatchedPrecision, Number, PolicyVersion, Precision,
    Profile, Rule, Speedup, StageSeconds, Status, Target, Task, Times, Trajectory, Usage, Verdict,
};

/// An id such as `level1/19` says the level and the number.
fn task(id: &str, name: &str) -> Task {
    let (level, number) = id.split_once('/').unwrap_or(("", ""));
    Task {
        id: id.to_owned(),
        name: name.to_owned(),
        source: format!("# {name}"),
        level: level
            .strip_prefix("level")
            .and_then(|level| level.parse().ok()),
        problem_id: number.parse().ok(),
        origin: String::new(),
        graph: None,
    }
}

fn failed(status: Status, compiled: bool) -> Verdict {
    let mut verdict =
        Verdict::unreached(status, Target::Cpu, Profile::Full, "a processor".to_owned());
    verdict.compiled = compiled;
    verdict
}

fn broken(status: Status, rule: Rule) -> Verdict {
    Verdict {
        rule: Some(rule),
        ..failed(status, true)
    }
}

fn passed(runtime: f64, eager: f64, compile: Option<f64>) -> Verdict {
    let compile = compile.map(Number);
    Verdict {
        compiled: true,
        correct: true,
        times_us: Some(Times {
            candidate: Number(runtime),
            eager: Number(eager),
            compile,
            spread: Number(0.01),
            samples: 100,
            single: Number(runtime),
            burst: None,
            constant: Number(1.0),
        }),
        ..failed(Status::Passed, true)
    }
}

/// With baselines in TF32 that differ from those in fp32.
fn in_tf32(verdict: Verdict, eager: f64, compile: Option<f64>) -> Verdict {
    let compile = compile.map(Number);
    Verdict {
        matched_precision: Some(MatchedPrecision {
            mode: Precision::Tf32,
            eager_us: Number(eager),
            compile_us: compile,
            // Not looked at: it follows from the times.
            speedup: Speedup {
                eager: Number(0.0),
                compile: None,
            },
        }),
        ..verdict
    }
}

fn lasting(verdict: Verdict, seconds: [f64; 4]) -> Verdict {
    let [compile, verify, time, total] = seconds;
    Verdict {
        seconds: StageSeconds {
            compile,
            verify,
            time,
            total,
        },
        ..verdict
    }
}

fn episode(task: Task, sample: u32, verdicts: Vec<Verdict>) -> Trajectory {
    let quickest = (verdicts.iter().zip(0..))
        .filter_map(|(verdict, place)| Some((verdict.times_us.as_ref()?.candidate.0, place)))
        .min_by(|one, other| one.0.total_cmp(&other.0));
    Trajectory {
        format: 1,
        id: format!("{}-{sample}", task.id),
        task,
        target: Target::Cpu,
        policy: PolicyVersion {
            name: "script:x.jsonl".to_owned(),
            hash: None,
            step: None,
        },
        sample,
        mode: EpisodeMode::Single,
        messages: Vec::new(),
        elisions: Vec::new(),
        best: quickest.map(|(_, place)| place),
        attempts: verdicts
            .into_iter()
            .map(|verdict| Attempt {
                message: 0,
                files: BTreeMap::new(),
                verdict,
            })
            .collect(),
        ending: EpisodeEnding::Finished,
        usage: Usage {
            prompt_tokens: 100,
            completion_tokens: 10,
            cached_tokens: 0,
        },
        seconds: 20.0,
        tokens: None,
    }
}

/// Four tasks: one twice as fast, one by 2 %, one wrong, one that does not compile.
fn four() -> Vec<Trajectory> {
    vec![
        episode(
            task("level3/1", "1_MLP"),
            1,
            vec![failed(Status::CompileFailed, false)],
        ),
        episode(
            task("level2/9", "9_Matmul_ReLU"),
            1,
            vec![failed(Status::Mismatch, true)],
        ),
        episode(
            task("level1/19", "19_ReLU"),
            1,
            vec![passed(98.0, 100.0, Some(90.0))],
        ),
        episode(
            task("level1/1", "1_Square_matrix"),
            1,
            vec![passed(50.0, 100.0, Some(80.0))],
        ),
    ]
}

fn close(found: Option<f64>, expected: f64) {
    let found = found.unwrap();
    assert!((found - expected).abs() < 1e-9, "{found} is not {expected}");
}

fn share(count: usize, of: usize) -> Share {
    Share { count, of }
}
