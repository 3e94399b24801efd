//! The report on the machine that runs the tests.

use warpsmith_machine::{Caches, PythonChoice, gpu_clocks, inspect_machine};

#[test]
fn every_gap_comes_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let caches = Caches {
        root: folder.path().join("cache"),
    };
    let report = inspect_machine(
        &PythonChoice::Auto,
        &caches,
        Some(serde_json::json!({"landlock": true})),
    );
    println!("{}", serde_json::to_string_pretty(&report).unwrap());

    let advised = |name: &str| {
        report
            .advice
            .iter()
            .any(|advice| advice.missing.starts_with(name))
    };
    assert_eq!(report.cxx.is_none(), advised("C++ compiler"));
    assert_eq!(report.gpus.is_empty(), advised("GPU"));
    assert_eq!(
        report.nvcc.is_none() && !report.gpus.is_empty(),
        advised("nvcc")
    );
    assert!(report.python.is_some() || advised("PyTorch"));
    assert!(
        report
            .advice
            .iter()
            .all(|advice| !advice.what_to_do.is_empty())
    );
    assert_eq!(report.isolation.unwrap()["landlock"], true);
    assert!(!caches.root.exists(), "looking changes nothing");

    for gpu in &report.gpus {
        let clocks = gpu_clocks(gpu.index).unwrap();
        println!("{clocks:?}");
        assert!(clocks.sm_mhz.is_some() && gpu.memory_bytes > 1 << 30);
    }
}
