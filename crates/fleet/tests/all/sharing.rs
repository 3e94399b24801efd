//! Several controllers on one fleet.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use warpsmith_fleet::FleetJudge;
use warpsmith_judge::Judge;

use super::jobs::{TestWorker, client};
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

/// With the queue alone, whoever came first would be served whole: 600 jobs of 10 ms on 2 slots are 3 s.
#[test]
fn a_small_run_does_not_wait_for_a_large_one() {
    let fleet = TestFleet::start();
    let worker = TestWorker::start(
        &fleet.servers,
        "w",
        2,
        StandIn::taking(Duration::from_millis(10)),
    );
    let large = ask(&fleet, "large", 100, 600);
    thread::sleep(Duration::from_millis(300));
    let small = ask(&fleet, "small", 10, 30);
    let small = small.join().unwrap();
    assert!(
        !large.is_finished(),
        "the small run waited for the large one: {small:?}"
    );
    large.join().unwrap();
    assert_eq!(worker.drained().answered, 630);
}
