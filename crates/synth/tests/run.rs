//! Whole runs on the CPU with PyTorch: stopped, gone on with, and read back.

use std::sync::atomic::{AtomicBool, Ordering};

use warpsmith_decontaminate::FingerprintIndex;
use warpsmith_sandbox::Isolation;
use warpsmith_schema::{Target, Task};
use warpsmith_synth::{
    CandidateOutcome, CandidateRecord, DecontaminationSummary, FilterEnvironment, GrammarComposer,
    SeedCatalogue, SynthError, SynthPlan, SynthResources, SynthStopRequest, SynthSummary, TaskMix,
    TaskSet, run, transformer_layers,
};
use warpsmith_tasks::load_all;

use super::python;

/// Tasks of a whole run; the first of them ends the one that is stopped.
const WANTED: usize = 2;

fn plan() -> SynthPlan {
    SynthPlan {
        seed: 5,
        count: WANTED,
        mix: "1:1,2:2".parse::<TaskMix>().unwrap(),
        // Wide: a test has no say in how busy the machine is.
        window_ms: (0.05, 2000.0),
        memory_bytes: 1 << 27,
        target: Target::Cpu,
        device: "a test".into(),
        workers: 2,
    }
}

static STOP: AtomicBool = AtomicBool::new(false);

fn stop_request() -> SynthStopRequest {
    if STOP.load(Ordering::SeqCst) {
        SynthStopRequest::Abandon
    } else {
        SynthStopRequest::GoOn
    }
}

#[test]
fn a_run_that_was_stopped_goes_on_where_it_was() {
    let seeds = SeedCatalogue::torch().unwrap();
    let layers = transformer_layers().unwrap();
    let workshop = FilterEnvironment::new(python(), Target::Cpu, 0, &seeds).unwrap();
    let plan = plan();
    let mut records: Vec<CandidateRecord> = Vec::new();
    for stop in [true, false] {
        let mut grammar = GrammarComposer {
            seeds: &seeds,
            layers: &layers,
            seed: plan.seed,
        };
        let resources = SynthResources {
            composer: &mut grammar,
            environment: &workshop,
            isolation: Isolation::Strict,
            judges: Vec::new(),
            excluded: FingerprintIndex::kernelbench().unwrap(),
            lease: "cpu".into(),
            stop_requested: stop_request,
        };
        let before = records.clone();
        STOP.store(false, Ordering::SeqCst);
        let ended = run(&plan, resources, &before, &mut |record, progress| {
            records.push(record.clone());
            if stop && progress.kept() >= 1 {
                STOP.store(true, Ordering::SeqCst);
            }
            Ok(())
        });
        assert_eq!(
            matches!(ended, Err(SynthError::Interrupted)),
            stop,
            "{ended:?}"
        );
        let kept = |record: &&CandidateRecord| matches!(record.outcome, CandidateOutcome::Kept(_));
        let so_far = records.iter().filter(kept).count();
        assert_eq!(so_far, if stop { 1 } else { WANTED });
    }

    let mut indices: Vec<u64> = records.iter().map(|record| record.index).collect();
    indices.sort_unstable();
    let count = indices.len();
    indices.dedup();
    assert_eq!(indices.len(), count, "a candidate was tried twice");

    let set = TaskSet::new(&records, 0.25, plan.seed);
    assert_eq!(set.rows.len(), WANTED);
    let folder = tempfile::tempdir().unwrap();
    set.write(folder.path()).unwrap();
    let loaded = load_all(&folder.path().join("tasks.jsonl")).unwrap();
    let read = |task: &Task| (task.id.clone(), task.source.clone(), task.graph.clone());
    let expected: Vec<_> = set
        .rows
        .iter()
        .map(|row| {
            (
                row.task.id.clone(),
                row.task.code.clone(),
                row.task.graph.clone(),
            )
        })
        .collect();
    assert_eq!(loaded.iter().map(read).collect::<Vec<_>>(), expected);

    let quotas = plan.mix.quotas(plan.count);
    let decontamination = DecontaminationSummary {
        done: true,
        excluded: 1,
    };
    let summary = SynthSummary::new(&records, &quotas, &set, decontamination);
    assert_eq!(
        summary.kept + summary.dropped.values().sum::<usize>(),
        summary.tried
    );
    assert_eq!(summary.train + summary.validation, summary.kept);
    assert_eq!(
        summary
            .eager_ms
            .iter()
            .map(|(_, count)| count)
            .sum::<usize>(),
        WANTED
    );
}
