//! The set in `sets/`: no benchmark has its tasks, and no task of one part has a relative in the other.
#![cfg(feature = "parquet")]

use std::path::{Path, PathBuf};

use serde_json::Value;
use warpsmith_decontaminate::{FAMILY_THRESHOLD, FingerprintIndex, Structure};
use warpsmith_schema::Task;
use warpsmith_tasks::load_all;

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../sets/h200")
        .join(name)
}

fn structure(task: &Task) -> Structure {
    Structure::of(&task.source).unwrap_or_else(|error| panic!("{}: {error}", task.id))
}

#[test]
fn tasks_are_of_no_benchmark_and_parts_do_not_know_each_other() {
    let summary = fs_err::read_to_string(shipped("summary.json")).unwrap();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    let [train, validation] = ["train", "validation"].map(|part| {
        let tasks = load_all(&shipped(part).with_extension("parquet")).unwrap();
        assert_eq!(summary[part], tasks.len(), "{part}");
        tasks
    });

    let kernelbench = FingerprintIndex::kernelbench().unwrap();
    for task in train.iter().chain(&validation) {
        let near = kernelbench.near_duplicate(&structure(task));
        assert!(near.is_none(), "{}: {near:?}", task.id);
        // Layers of transformers are what they are; the rest was composed, and says how.
        assert_ne!(task.graph.is_some(), task.id.starts_with("transformers"));
    }

    let learnt = FingerprintIndex::of(&train).unwrap();
    for task in &validation {
        let near = learnt.nearest(&structure(task)).unwrap();
        assert!(near.similarity <= FAMILY_THRESHOLD, "{}: {near:?}", task.id);
    }
}
