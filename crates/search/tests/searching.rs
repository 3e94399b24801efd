use std::collections::BTreeSet;

use warpsmith_schema::SearchMove;
use warpsmith_search::{SearchError, SearchLimit, SearchStart};

use crate::stand_in::{StandIn, plan, run, script, whole};

#[test]
fn tuning_alone_finds_the_best_parameters_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let judge = StandIn::default();
    let outcome = run(&folder.path().join("run"), &plan(60), Vec::new(), &judge).unwrap();
    assert_eq!(outcome.limit, SearchLimit::Judgements);
    assert_eq!(outcome.spent.judgements, 60);
    assert_eq!(judge.judged.lock().unwrap().len(), 60);
    let best = outcome.archive.best().unwrap();
    // 100 x 0.7 x 0.85 x 0.8
    assert!((best.us - 47.6).abs() < 1e-9, "{best:?}");
    let winner = outcome.finals.as_ref().unwrap().winner.as_ref().unwrap();
    assert!(winner.improves());
    let over = winner.speedup_start.unwrap();
    assert!(over.low > 2.0 && over.high < 2.2, "{over:?}");
    // No source was judged twice.
    let judged = judge.judged.lock().unwrap();
    assert_eq!(judged.iter().collect::<BTreeSet<_>>().len(), judged.len());
    // Both islands have something, and every stage is counted.
    assert!(
        outcome
            .archive
            .islands
            .iter()
            .all(|island| island.best().is_some())
    );
    let shares: f64 = outcome.cascade.stages.iter().map(|stage| stage.share).sum();
    assert!((shares - 1.0).abs() < 1e-9);
    assert_eq!(outcome.cascade.stages[4].entered, 60);
}

#[test]
fn policies_write_what_tuning_cannot_and_duplicates_are_not_judged() {
    let folder = tempfile::tempdir().unwrap();
    let judge = StandIn::default();
    // One policy always writes the same, apart from a comment; the other has an idea that nobody else has.
    let dull = script(folder.path(), "dull", |number| {
        whole("same").replace("// same", &format!("// version {number}"))
    });
    let clever = script(folder.path(), "clever", |number| {
        whole(&format!("float4 version{number}"))
    });
    let outcome = run(
        &folder.path().join("run"),
        &plan(40),
        vec![dull, clever],
        &judge,
    )
    .unwrap();
    let by = |name: &str| outcome.arms.arms[name];
    assert!(by("clever").tries > by("dull").tries, "{:#?}", outcome.arms);
    assert!((outcome.archive.best().unwrap().us - 50.0).abs() < 1e-9);
    let dull: Vec<_> = outcome
        .candidates
        .iter()
        .filter(|one| one.proposed.policy.as_deref() == Some("dull"))
        .collect();
    assert!(dull.len() > 1);
    let judged = dull.iter().filter(|one| one.verdict.is_some()).count();
    // Those of the same batch may be asked before either is known; later ones name the first.
    assert!(
        dull.iter()
            .skip(3)
            .all(|one| one.proposed.duplicate_of.is_some())
    );
    assert!(judged <= 3, "{judged}");
}

#[test]
fn near_misses_are_mended_and_a_failing_policy_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let judge = StandIn::default();
    let policy = script(folder.path(), "broken", |number| {
        whole(&format!("broken version{number}"))
    });
    // Nothing to tune: only the policy writes.
    let mut untunable = plan(30);
    for (_, files) in &mut untunable.start.solutions {
        files.insert("kernels/k.cpp".to_owned(), "int a;\n".to_owned());
    }
    let outcome = run(&folder.path().join("run"), &untunable, vec![policy], &judge).unwrap();
    let repairs: Vec<_> = outcome
        .candidates
        .iter()
        .filter(|one| one.proposed.made_by == SearchMove::Repair)
        .collect();
    assert!(!repairs.is_empty());
    for one in &repairs {
        let parent = &outcome.candidates[one.proposed.parents[0] as usize - 1];
        assert!(!parent.verdict.as_ref().unwrap().passed());
    }
    // A script that is at its end is a policy that fails.
    let path = folder.path().join("short.jsonl");
    fs_err::write(&path, "").unwrap();
    let mut short = script(folder.path(), "other", |_| String::new());
    short.policy = std::sync::Arc::new(warpsmith_model::policy::ScriptPolicy::open(&path).unwrap());
    let judge = StandIn::default();
    let second = folder.path().join("second");
    let outcome = run(&second, &untunable, vec![short], &judge).unwrap();
    let asked = outcome.candidates.iter();
    let asked = asked.filter(|one| one.proposed.policy.is_some());
    // A batch of three fails, and nobody else is left.
    assert_eq!(asked.count(), 3);
    assert_eq!(outcome.limit, SearchLimit::Exhausted);
    assert_eq!(outcome.spent.judgements, 1);
}

#[test]
fn what_cannot_be_shown_to_be_faster_is_not_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(1);
    let judge = StandIn::default();
    let outcome = run(&folder.path().join("one"), &plan, Vec::new(), &judge).unwrap();
    let winner = outcome.finals.unwrap().winner.unwrap();
    assert_eq!(winner.number, 1);
    assert!(winner.speedup_start.is_none());
    // Afresh it is slower than the original: the first measurement is shown, the second counts.
    let judge = StandIn {
        afresh: 2.0,
        ..StandIn::default()
    };
    let outcome = run(&folder.path().join("two"), &plan, Vec::new(), &judge).unwrap();
    let winner = outcome.finals.unwrap().winner.unwrap();
    assert!(!winner.improves());
    assert!((winner.first_us - 100.0).abs() < 1e-9 && winner.us.mean > 199.0);
    // Nothing to start from and nobody who writes.
    plan.start = SearchStart::default();
    let refused = run(&folder.path().join("three"), &plan, Vec::new(), &judge);
    assert!(matches!(refused, Err(SearchError::NothingToStartFrom)));
}

#[test]
fn a_search_ends_when_nothing_is_left_to_try() {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = plan(100);
    for (_, files) in &mut plan.start.solutions {
        files.insert(
            "kernels/k.cpp".to_owned(),
            "#pragma GCC unroll 1\nint a;\n".to_owned(),
        );
    }
    let outcome = run(
        folder.path().join("run").as_path(),
        &plan,
        Vec::new(),
        &StandIn::default(),
    )
    .unwrap();
    assert_eq!(outcome.limit, SearchLimit::Exhausted);
    // The start and the four other values.
    assert_eq!(outcome.spent.judgements, 5);
}
