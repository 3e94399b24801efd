//! Compositions, executed: each module runs, and its graph computes the same by PyTorch's functional forms alone.
//!
//! The oracle is PyTorch (`interpret` in `python/filter.py`). Runs with the Python of `WARPSMITH_PYTHON` or one on the
//! PATH that has torch.

use std::collections::BTreeSet;

use warpsmith_sandbox::Isolation;
use warpsmith_schema::{OpGraph, Target, ValueSource};
use warpsmith_synth::{
    Composition, Containment, FilterEnvironment, FilterWorker, MAX_OPS, SeedCatalogue, TaskSize,
};

use super::python;

const SEED: u64 = 20_26;
/// How many are executed.
const SAMPLE: u64 = 200;

fn composed(count: u64) -> Vec<Composition> {
    let seeds = SeedCatalogue::torch().unwrap();
    (0..)
        .filter_map(|index| {
            let ops = 1 + index as usize % MAX_OPS;
            Composition::new(&seeds, SEED, index, ops)
        })
        .take(count as usize)
        .collect()
}

#[test]
fn modules_run_and_graphs_compute_the_same() {
    let seeds = SeedCatalogue::torch().unwrap();
    let workshop = FilterEnvironment::new(python(), Target::Cpu, 0, &seeds).unwrap();
    let mut worker = FilterWorker::new(&workshop, Containment::None, Isolation::Strict, 0);
    let mut wrong = Vec::new();
    let mut kept = 0;
    for composition in composed(SAMPLE) {
        let code = composition.code(TaskSize::REDUCED);
        let graph = serde_json::to_value(composition.graph(TaskSize::REDUCED)).unwrap();
        match worker.screen(&code, Some(&graph)).unwrap() {
            Ok(_) => kept += 1,
            // The grammar promises that it runs and what it computes, not that the result is worth having.
            Err(dropped)
                if ["graph", "does_not_run", "does_not_build", "crashed"]
                    .contains(&dropped.reason.as_str()) =>
            {
                wrong.push(format!("{dropped:?}\n{code}"));
            }
            Err(_) => {}
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(
        kept > SAMPLE / 2,
        "only {kept} of {SAMPLE} are worth having"
    );
}

#[test]
fn the_same_seed_gives_the_same_text() {
    let texts = |compositions: Vec<Composition>| -> Vec<String> {
        let text = |composition: &Composition| {
            composition.code(TaskSize::USUAL_ON_CPU)
                + &serde_json::to_string(&composition.graph(TaskSize::USUAL_ON_CPU)).unwrap()
        };
        compositions.iter().map(text).collect()
    };
    assert_eq!(texts(composed(200)), texts(composed(200)));
    let seeds = SeedCatalogue::torch().unwrap();
    let other = Composition::new(&seeds, SEED + 1, 0, 1).unwrap();
    assert_ne!(
        other.code(TaskSize::REDUCED),
        composed(1)[0].code(TaskSize::REDUCED)
    );
}

#[test]
fn every_value_stands_after_those_it_is_made_of() {
    for composition in composed(500) {
        let graph: OpGraph = composition.graph(TaskSize::USUAL_ON_GPU);
        let mut applied = 0;
        for (place, value) in graph.values.iter().enumerate() {
            if let ValueSource::Applied { inputs, .. } = &value.from {
                applied += 1;
                assert!(inputs.iter().flatten().all(|input| *input < place));
            }
        }
        assert_eq!(applied, composition.ops().len());
        assert!(
            graph
                .returns
                .iter()
                .all(|place| *place < graph.values.len())
        );
    }
}

#[test]
fn the_seeds_are_many_and_the_grammar_uses_many_of_them() {
    let seeds = SeedCatalogue::torch().unwrap();
    assert!(seeds.all().len() >= 230, "{} seeds", seeds.all().len());
    let used: BTreeSet<String> = composed(4000)
        .iter()
        .flat_map(|composition| composition.ops().to_vec())
        .collect();
    assert!(used.len() >= 150, "{} operators: {used:?}", used.len());
}

#[test]
fn sizes_grow() {
    for composition in composed(100) {
        let bytes: Vec<u64> = (0..TaskSize::COUNT)
            .map(|size| composition.bytes(TaskSize::new(size).unwrap()))
            .collect();
        assert!(
            bytes.is_sorted(),
            "{bytes:?}\n{}",
            composition.code(TaskSize::REDUCED)
        );
    }
}

#[test]
fn a_broken_seed_is_named_by_its_line() {
    let error = SeedCatalogue::read("\n{\"path\": 1}\n").unwrap_err();
    assert_eq!(error.to_string(), "seed 2 is broken");
}
