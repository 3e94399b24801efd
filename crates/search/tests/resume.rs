use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use warpsmith_schema::{Event, EventKind, ProposedCandidate, Verdict};
use warpsmith_search::{Archive, SearchOutcome, SearchPlan};
use warpsmith_store::{EventLog, event_log};

use crate::stand_in::{StandIn, plan, run, script, whole};

fn search(folder: &Path, plan: &SearchPlan, judge: &StandIn) -> Option<SearchOutcome> {
    let policy = script(folder, "script", |number| {
        match number % 4 {
        0 => whole(&format!("wrong version{number}")),
        1 => whole(&format!("version{number}")),
        2 => "kernels/k.cpp\n```\n<<<<<<< SEARCH\nfor (;;) {}\n=======\nfor (float4 x;;) {}\n>>>>>>> REPLACE\n```\n".to_owned(),
        _ => "I would rather not.".to_owned(),
    }
    });
    run(&folder.join("run"), plan, vec![policy], judge).ok()
}

/// Candidates and verdicts as the log has them.
fn logged(folder: &Path) -> (BTreeMap<u32, ProposedCandidate>, BTreeMap<u32, Verdict>) {
    let (mut proposed, mut verdicts) = (BTreeMap::new(), BTreeMap::new());
    let log = event_log(&folder.join("run")).unwrap();
    EventLog::for_each_document(&log, |event: Event| match event.event {
        EventKind::CandidateProposed { candidate } => {
            assert!(proposed.insert(candidate.number, *candidate).is_none());
        }
        EventKind::Judged {
            episode, verdict, ..
        } => {
            assert!(verdicts.insert(episode.sample, *verdict).is_none());
        }
        _ => {}
    })
    .unwrap();
    (proposed, verdicts)
}

/// The script's path is in no candidate, so that two folders can be compared.
fn candidates(outcome: &SearchOutcome) -> Vec<&ProposedCandidate> {
    outcome.candidates.iter().map(|one| &one.proposed).collect()
}

#[test]
fn a_killed_search_goes_on_to_the_same_archive() {
    let whole = tempfile::tempdir().unwrap();
    let untouched = search(whole.path(), &plan(40), &StandIn::default()).unwrap();
    for dies_after in [0, 1, 5, 17, 39] {
        let folder = tempfile::tempdir().unwrap();
        let judge = StandIn {
            dies_after: Some(dies_after),
            ..StandIn::default()
        };
        assert!(search(folder.path(), &plan(40), &judge).is_none());
        let (_, before) = logged(folder.path());
        let again = StandIn::default();
        let resumed = search(folder.path(), &plan(40), &again).unwrap();
        // Nothing that had a verdict was judged again.
        let (_, after) = logged(folder.path());
        assert_eq!(
            before.len() + again.judged.lock().unwrap().len(),
            after.len()
        );
        let all: Vec<String> = [&judge, &again]
            .iter()
            .flat_map(|judge| judge.judged.lock().unwrap().clone())
            .collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert_eq!(
            resumed.archive, untouched.archive,
            "killed after {dies_after}"
        );
        assert_eq!(candidates(&resumed), candidates(&untouched));
        assert_eq!(resumed.arms, untouched.arms);
    }
}

/// A process that is killed leaves any prefix of the log, perhaps with half a line.
#[test]
fn every_prefix_of_the_log_leads_to_the_same_archive() {
    let whole = tempfile::tempdir().unwrap();
    let untouched = search(whole.path(), &plan(12), &StandIn::default()).unwrap();
    let log = fs_err::read(whole.path().join("run/events.jsonl")).unwrap();
    let ends: Vec<usize> = log
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at + 1)
        .collect();
    for end in ends {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        fs_err::create_dir(&run).unwrap();
        let config = whole.path().join("run/config.json");
        fs_err::copy(config, run.join("config.json")).unwrap();
        let torn = (end + 30).min(log.len());
        fs_err::write(run.join("events.jsonl"), &log[..torn]).unwrap();
        let resumed = search(folder.path(), &plan(12), &StandIn::default()).unwrap();
        assert_eq!(resumed.archive, untouched.archive, "after {end} bytes");
        assert_eq!(candidates(&resumed), candidates(&untouched));
        logged(folder.path());
    }
}

#[test]
fn a_search_goes_on_with_a_larger_budget() {
    let folder = tempfile::tempdir().unwrap();
    search(folder.path(), &plan(9), &StandIn::default()).unwrap();
    let (before, _) = logged(folder.path());
    let outcome = search(folder.path(), &plan(25), &StandIn::default()).unwrap();
    assert_eq!(outcome.spent.judgements, 25);
    let (after, _) = logged(folder.path());
    assert!(before.iter().all(|(number, one)| after[number] == *one));
    let empty = Archive {
        islands: Vec::new(),
    };
    assert_ne!(outcome.archive, empty);
}

/// A failure of ours is no verdict: the search fails, and goes on once the machine is sound again.
#[test]
fn a_machine_that_cannot_judge_is_no_answer_about_the_task() {
    let folder = tempfile::tempdir().unwrap();
    let broken = StandIn {
        fails: true,
        ..StandIn::default()
    };
    let run = |judge: &StandIn| run(&folder.path().join("run"), &plan(6), Vec::new(), judge);
    let failure = run(&broken).unwrap_err().failure();
    assert_eq!(failure.code, "noisy_machine");
    let outcome = run(&StandIn::default()).unwrap();
    assert_eq!(outcome.spent.judgements, 6);
}

/// What followed a candidate without a verdict did not know it: judged later, it would lead to another archive.
#[test]
fn a_candidate_that_could_not_be_judged_stays_without_a_verdict() {
    let folder = tempfile::tempdir().unwrap();
    let policy = || {
        script(folder.path(), "script", |number| match number {
            2 => whole("machine fails"),
            _ => whole(&format!("version{number}")),
        })
    };
    let mut plan = plan(8);
    for (_, files) in &mut plan.start.solutions {
        files.insert("kernels/k.cpp".to_owned(), "int a;\n".to_owned());
    }
    let place = folder.path().join("run");
    let judge = StandIn::default();
    let first = run(&place, &plan, vec![policy()], &judge).unwrap();
    let left: Vec<u32> = first
        .candidates
        .iter()
        .filter(|one| one.verdict.is_none())
        .map(|one| one.proposed.number)
        .collect();
    assert_eq!(left, [2]);
    let again = StandIn::default();
    let second = run(&place, &plan, vec![policy()], &again).unwrap();
    assert_eq!(again.judged.lock().unwrap().len(), 0);
    assert_eq!(second.archive, first.archive);
    assert_eq!(second.spent.judgements, 8);
}
