//! What tuning tries, what it keeps, and that every variant still computes the same.

use std::collections::BTreeSet;

use serde_json::json;
use warpsmith_compiler::{
    CompileOptions, MeasureVariant, MeasuredTime, NotCovered, Strategy, TuningProgress,
    TuningVariant, compile, compile_with, tune,
};
use warpsmith_schema::{Target, Task};

use super::cpu::outputs;
use super::kernels::chain;

/// Measures by what the kernels say.
struct Scripted<'a> {
    time: &'a dyn Fn(&str) -> MeasuredTime,
    measured: Vec<TuningVariant>,
    /// After so many measurements there is no time.
    most: usize,
    last: Option<TuningProgress>,
}

impl MeasureVariant for Scripted<'_> {
    type Error = NotCovered;

    fn measure(&mut self, variant: &TuningVariant) -> Result<MeasuredTime, NotCovered> {
        if self.measured.len() >= self.most {
            return Ok(MeasuredTime::Stopped);
        }
        self.measured.push(variant.clone());
        let kernels = variant
            .files
            .iter()
            .find(|(path, _)| path.starts_with("kernels/"));
        Ok((self.time)(kernels.unwrap().1))
    }

    fn expect(&mut self, _: &[&TuningVariant]) {}

    fn progressed(&mut self, progress: &TuningProgress) {
        self.last = Some(progress.clone());
    }
}

fn scripted(time: &dyn Fn(&str) -> MeasuredTime, most: usize) -> Scripted<'_> {
    Scripted {
        time,
        measured: Vec::new(),
        most,
        last: None,
    }
}

fn softmax() -> Task {
    let shape: &[u64] = &[512, 2048];
    chain(&[shape], &[("softmax", &[0], json!({ "dim": -1 }), shape)])
}

/// Vectors, and twice as many threads as usual.
fn is_quick(text: &str) -> bool {
    text.contains("float4") && text.contains("block_sum<256>")
}

#[test]
fn the_fastest_is_found_and_nothing_is_measured_twice() {
    // And no values in registers.
    let time = |text: &str| {
        let us = if is_quick(text) { 50.0 } else { 100.0 };
        MeasuredTime::Us(if text.contains("_kept") {
            us
        } else {
            us - 10.0
        })
    };
    let mut measurer = scripted(&time, usize::MAX);
    let found = tune(
        &softmax(),
        Target::Cuda,
        &Strategy::Tuned.into(),
        &mut measurer,
    );
    let found = found.unwrap().unwrap();
    assert!(found.exhausted);
    assert!(found.best_us < found.usual_us, "{found:#?}");
    let changes = &found.best.changes;
    assert!(
        changes
            .iter()
            .any(|change| change.ends_with("threads of a row 128 -> 256")),
        "{changes:?}"
    );
    assert_eq!(found.tried + 1, measurer.measured.len());
    let texts: BTreeSet<_> = measurer.measured.iter().map(|one| &one.files).collect();
    assert_eq!(texts.len(), measurer.measured.len());
    let last = measurer.last.unwrap();
    assert_eq!((last.left, last.best_us), (0, found.best_us));
}

#[test]
fn what_fails_is_dropped_and_a_small_gain_is_noise() {
    let usual = compile(&softmax(), Target::Cuda, Strategy::Tuned)
        .unwrap()
        .files;
    let time = |text: &str| {
        if usual.values().any(|known| known == text) {
            return MeasuredTime::Us(100.0);
        }
        if is_quick(text) {
            MeasuredTime::Failed {
                reason: "mismatch".to_owned(),
            }
        } else {
            MeasuredTime::Us(99.5)
        }
    };
    let mut measurer = scripted(&time, usize::MAX);
    let found = tune(
        &softmax(),
        Target::Cuda,
        &Strategy::Tuned.into(),
        &mut measurer,
    );
    let found = found.unwrap().unwrap();
    assert_eq!(found.best, found.usual);
    assert!(found.failed > 0 && found.tried > found.failed, "{found:#?}");
}

#[test]
fn time_that_ends_leaves_the_best_so_far() {
    let time = |text: &str| MeasuredTime::Us(if is_quick(text) { 50.0 } else { 100.0 });
    let whole = |most: usize| {
        let mut measurer = scripted(&time, most);
        let found = tune(
            &softmax(),
            Target::Cuda,
            &Strategy::Tuned.into(),
            &mut measurer,
        );
        (found.unwrap(), measurer.measured)
    };
    assert_eq!(whole(0).0, None);
    let (all, measured) = whole(usize::MAX);
    let first = measured
        .iter()
        .position(|one| one.changes.iter().any(|change| change.ends_with("-> 256")));
    let (cut, before) = whole(first.unwrap() + 1);
    // The same way as far as it goes.
    assert_eq!(before, measured[..before.len()]);
    let (cut, all) = (cut.unwrap(), all.unwrap());
    assert!(!cut.exhausted && all.exhausted);
    assert!((cut.best_us - 50.0).abs() < 1e-9, "{cut:#?}");
}

#[test]
fn nothing_is_another_solution_without_a_configuration() {
    for target in [Target::Cuda, Target::Cpu] {
        let options = CompileOptions::from(Strategy::Tuned);
        let plain = compile(&softmax(), target, Strategy::Tuned).unwrap();
        assert_eq!(compile_with(&softmax(), target, &options).unwrap(), plain);
        assert!(!plain.knobs.is_empty());
    }
}

/// Everything that is tried on a CPU, built as the judge builds it.
#[test]
fn every_variant_computes_the_same() {
    let rows: &[u64] = &[64, 640];
    let columns: &[u64] = &[4, 512, 96];
    let image: &[u64] = &[2, 6, 17, 20];
    let heads: &[u64] = &[2, 3, 70, 24];
    let nothing = || json!({});
    let tasks = [
        chain(&[rows], &[("softmax", &[0], json!({ "dim": -1 }), rows)]),
        chain(
            &[columns],
            &[
                (
                    "sum",
                    &[0],
                    json!({ "dim": 1, "keepdim": true }),
                    &[4, 1, 96],
                ),
                ("sub", &[0, 1], nothing(), columns),
                ("gelu", &[2], nothing(), columns),
            ],
        ),
        chain(
            &[&[4, 70_000]],
            &[("mean", &[0], json!({ "dim": -1 }), &[4])],
        ),
        chain(
            &[image, &[5, 6, 3, 3]],
            &[(
                "conv2d",
                &[0, 1],
                json!({ "padding": [1, 1] }),
                &[2, 5, 17, 20],
            )],
        ),
        chain(
            &[heads, heads, heads],
            &[("scaled_dot_product_attention", &[0, 1, 2], nothing(), heads)],
        ),
        chain(
            &[&[48, 40], &[40, 56], &[56, 24]],
            &[
                ("mm", &[0, 1], nothing(), &[48, 56]),
                ("softmax", &[3], json!({ "dim": -1 }), &[48, 56]),
                ("mm", &[4, 2], nothing(), &[48, 24]),
            ],
        ),
        chain(
            &[columns],
            &[("cumsum", &[0], json!({ "dim": 1 }), columns)],
        ),
    ];
    for task in tasks {
        let usual = compile(&task, Target::Cpu, Strategy::Tuned).unwrap();
        let expected = outputs(&task, &usual.files);
        let time = |_: &str| MeasuredTime::Us(1.0);
        let mut measurer = scripted(&time, usize::MAX);
        tune(&task, Target::Cpu, &Strategy::Tuned.into(), &mut measurer).unwrap();
        // Hints change no meaning; what the compiler makes of them is not ours.
        let structural = |one: &&TuningVariant| {
            let hints = ["unroll: ", "schedule: ", "num_threads: ", "simdlen: "];
            let is_hint = |change: &String| hints.iter().any(|hint| change.starts_with(hint));
            !one.changes.is_empty() && !one.changes.iter().any(is_hint)
        };
        // Every third: each is compiled.
        let variants = measurer.measured.iter().filter(structural);
        let variants: Vec<_> = variants.step_by(3).collect();
        assert!(!variants.is_empty(), "{:?}", usual.knobs);
        for variant in variants {
            let found = outputs(&task, &variant.files);
            assert_eq!(found.len(), expected.len());
            for (place, (one, other)) in found.iter().zip(&expected).enumerate() {
                let apart = (one - other).abs();
                assert!(
                    apart <= 2e-5 * (1.0 + other.abs()),
                    "{:?} at {place}: {one} instead of {other}\n{:#?}",
                    variant.changes,
                    variant.files
                );
            }
        }
    }
}
