//! Several controllers on one fleet.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use warpsmith_fleet::{FleetJudge, WorkerPlan};
use warpsmith_judge::Judge;

use super::jobs::{TestWorker, await_that, client, plan};
use crate::common::{StandIn, TestFleet, judging, pool, submission, task};

/// Asks for so many jobs from so many threads, and says how long that took.
fn ask(
    fleet: &TestFleet,
    scope: &'static str,
    threads: usize,
    jobs: usize,
) -> thread::JoinHandle<Duration> {
    let client = client(&fleet.servers);
    thread::spawn(move || {
        let begun = Instant::now();
        let asking: Vec<_> = (0..threads)
            .map(|number| {
                let mut judge = FleetJudge::new(Arc::clone(&client), pool(), judging(), scope);
                thread::spawn(move || {
                    for job in 0..jobs / threads {
                        let solution = submission(&format!("{scope} {number} {job}"));
                        judge.judge(&task("t"), &solution).unwrap();
                    }
                })
            })
            .collect();
        for thread in asking {
            thread.join().unwrap();
        }
        begun.elapsed()
    })
}

/// With the queue alone, whoever came first would be served whole: all 400 jobs are asked for before the first of the others.
#[test]
fn a_small_run_does_not_wait_for_a_large_one() {
    let fleet = TestFleet::start();
    let worker = TestWorker::start(
        &fleet.servers,
        "w",
        2,
        StandIn::taking(Duration::from_millis(10)),
    );
    let large = ask(&fleet, "large", 400, 400);
    thread::sleep(Duration::from_millis(300));
    let small = ask(&fleet, "small", 10, 30);
    let small = small.join().unwrap();
    assert!(
        !large.is_finished(),
        "the small run waited for the large one: {small:?}"
    );
    large.join().unwrap();
    assert_eq!(worker.drained().answered, 430);
}

/// In the files of the judge's cache.
#[test]
fn what_one_worker_has_measured_the_others_have() {
    let fleet = TestFleet::start();
    let folder = tempfile::tempdir().unwrap();
    let worker = |name: &str| {
        let baselines = folder.path().join(name);
        fs_err::create_dir_all(&baselines).unwrap();
        let plan = WorkerPlan {
            baselines: Some(baselines),
            ..plan(name, 1, StandIn::taking(Duration::ZERO))
        };
        TestWorker::with(&fleet.servers, plan)
    };
    let file = |worker: &str, name: &str| folder.path().join(worker).join(name);
    let measured = format!("{}.json", "0123456789abcdef".repeat(2));
    let (first, second) = (worker("first"), worker("second"));
    fs_err::write(file("first", &measured), "12.5 us").unwrap();
    fs_err::write(file("first", "unfinished.tmp7"), "").unwrap();
    let arrived = |worker| fs_err::read_to_string(file(worker, &measured)).ok();
    await_that("it arrives", || {
        arrived("second").as_deref() == Some("12.5 us")
    });
    // One that joins later has it too, and keeps what it measured itself.
    let third = worker("third");
    await_that("it arrives later", || arrived("third").is_some());
    assert!(!file("second", "unfinished.tmp7").exists());
    for worker in [first, second, third] {
        worker.drained();
    }
}
