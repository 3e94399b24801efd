//! One job from its question to its answer, and what can become of it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use warpsmith_fleet::{
    FleetClient, FleetError, FleetJudge, FleetServer, FleetServers, PoolChoice, WorkerPlan,
    WorkerSummary, fleet_status, work,
};
use warpsmith_judge::{Cancellation, CheckDepth, Judge, JudgeError};
use warpsmith_rollout::StopRequest;
use warpsmith_schema::FailureKind;

use crate::common::{StandIn, TestFleet, judging, pool, server_program, submission, task};

pub(crate) const LEASE: Duration = Duration::from_millis(900);

/// A worker in a thread, which drains when it is told to.
pub(crate) struct TestWorker {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<WorkerSummary, FleetError>>,
}

impl TestWorker {
    pub(crate) fn start(servers: &FleetServers, name: &str, slots: usize, judge: StandIn) -> Self {
        Self::with(servers, plan(name, slots, judge))
    }

    pub(crate) fn with(servers: &FleetServers, plan: WorkerPlan) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (joined, has_joined) = mpsc::channel();
        let asked = stop.clone();
        let plan = WorkerPlan {
            stop: Arc::new(move || {
                if asked.load(Ordering::SeqCst) {
                    StopRequest::Drain
                } else {
                    StopRequest::Continue
                }
            }),
            ..plan
        };
        let servers = servers.clone();
        let thread = thread::spawn(move || work(&servers, plan, move || joined.send(()).unwrap()));
        has_joined.recv_timeout(Duration::from_secs(30)).unwrap();
        Self { stop, thread }
    }

    pub(crate) fn ask_to_stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    pub(crate) fn drained(self) -> WorkerSummary {
        self.ask_to_stop();
        self.thread.join().unwrap().unwrap()
    }
}

pub(crate) fn plan(name: &str, slots: usize, judge: StandIn) -> WorkerPlan {
    WorkerPlan {
        name: name.to_owned(),
        host: "here".to_owned(),
        pool: pool(),
        slots,
        lease: LEASE,
        max_tries: 3,
        make_judge: Arc::new(move |_| Ok(Box::new(judge.clone()) as Box<dyn Judge>)),
        baselines: None,
        stop: Arc::new(|| StopRequest::Continue),
    }
}

pub(crate) fn client(servers: &FleetServers) -> Arc<FleetClient> {
    FleetClient::connect(servers, "a test").unwrap()
}

pub(crate) fn judge(servers: &FleetServers, scope: &str) -> FleetJudge {
    FleetJudge::new(client(servers), pool(), judging(), scope)
}

#[test]
fn what_was_asked_before_has_the_same_answer_and_another_scope_another() {
    let fleet = TestFleet::start();
    let worker = TestWorker::start(&fleet.servers, "w", 2, StandIn::taking(Duration::ZERO));
    let mut one = judge(&fleet.servers, "run a");
    let (task, solution) = (task("t"), submission("x"));
    let first = one.judge(&task, &solution).unwrap();
    assert_eq!(one.judge(&task, &solution).unwrap(), first);
    // A controller that was started again asks for the same job.
    let mut restarted = judge(&fleet.servers, "run a");
    assert_eq!(restarted.judge(&task, &solution).unwrap(), first);
    let mut other = judge(&fleet.servers, "run b");
    assert_ne!(other.judge(&task, &solution).unwrap(), first);
    assert_ne!(one.judge_afresh(&task, &solution).unwrap(), first);
    assert_ne!(one.judge(&task, &submission("y")).unwrap(), first);
    one.survey(&task).unwrap();
    assert_eq!(
        one.check(&task, &solution, CheckDepth::Verify).unwrap(),
        None
    );
    assert_eq!(worker.drained().answered, 6);
}

#[test]
fn a_refusal_is_an_answer_and_is_not_tried_again() {
    let fleet = TestFleet::start();
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let stand_in = StandIn::doing(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Err(JudgeError::Task {
            code: "random".to_owned(),
            message: "it is random".to_owned(),
        })
    });
    let worker = TestWorker::start(&fleet.servers, "w", 1, stand_in);
    let mut judge = judge(&fleet.servers, "run");
    for _ in 0..2 {
        let failure = judge.survey(&task("t")).unwrap_err().failure();
        assert_eq!(
            (failure.kind, failure.code.as_str()),
            (FailureKind::Task, "random")
        );
    }
    assert_eq!(tries.load(Ordering::SeqCst), 1);
    worker.drained();
}

#[test]
fn what_fails_again_and_again_is_a_dead_letter_with_its_reason_and_a_later_call_tries_anew() {
    let fleet = TestFleet::start();
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let stand_in = StandIn::doing(move |_| match counted.fetch_add(1, Ordering::SeqCst) {
        0..3 => Err(JudgeError::Infrastructure {
            code: "harness",
            message: "the disk is full".to_owned(),
            hint: None,
        }),
        3 => panic!("a judge that panics is a failed try"),
        _ => Ok(()),
    });
    let worker = TestWorker::start(&fleet.servers, "w", 1, stand_in);
    let mut judge = judge(&fleet.servers, "run");
    let failure = judge
        .judge(&task("t"), &submission("x"))
        .unwrap_err()
        .failure();
    assert_eq!(failure.kind, FailureKind::Infrastructure);
    assert!(failure.message.contains("the disk is full"), "{failure:?}");
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    let status = fleet_status(&fleet.servers).unwrap();
    let tried: Vec<u32> = status
        .failed_tries
        .iter()
        .map(|failed| failed.tried)
        .collect();
    assert_eq!(tried, [1, 2, 3]);
    assert_eq!(status.failed_tries[2].task, "t");

    judge.judge(&task("t"), &submission("x")).unwrap();
    assert_eq!(tries.load(Ordering::SeqCst), 5);
    assert_eq!(
        worker.drained(),
        WorkerSummary {
            answered: 2,
            failed_tries: 4
        }
    );
}

#[test]
fn a_worker_that_drains_ends_its_job_and_takes_no_other() {
    let fleet = TestFleet::start();
    let takes = Duration::from_millis(1500);
    let worker = TestWorker::start(&fleet.servers, "first", 1, StandIn::taking(takes));
    let ask = |text: &str| {
        let (mut judge, solution) = (judge(&fleet.servers, "run"), submission(text));
        thread::spawn(move || judge.judge(&task("t"), &solution).unwrap())
    };
    let begun = ask("a");
    let busy = || fleet_status(&fleet.servers).unwrap().queues[0].under_way == 1;
    await_that("a job is under way", busy);
    worker.ask_to_stop();
    let later = ask("b");
    let summary = worker.drained();
    assert_eq!(summary.answered, 1);
    begun.join().unwrap();
    assert!(!later.is_finished());
    assert_eq!(fleet_status(&fleet.servers).unwrap().workers, []);
    let next = TestWorker::start(&fleet.servers, "second", 1, StandIn::taking(Duration::ZERO));
    later.join().unwrap();
    // The lease was renewed while the first worked: its job was done once.
    assert_eq!(next.drained().answered, 1);
}

#[test]
fn a_job_that_nobody_waits_for_is_taken_back() {
    let fleet = TestFleet::start();
    let cancellation = Cancellation::default();
    let mut judge = judge(&fleet.servers, "run").cancelled_by(cancellation.clone());
    let worker = TestWorker::start(&fleet.servers, "w", 1, StandIn::taking(Duration::ZERO));
    worker.drained();
    let asked = thread::spawn(move || judge.judge(&task("t"), &submission("x")));
    let waiting = || fleet_status(&fleet.servers).unwrap().queues[0].waiting;
    await_that("the job waits", || waiting() == 1);
    cancellation.request();
    let failure = asked.join().unwrap().unwrap_err().failure();
    assert_eq!(failure.code, warpsmith_judge::CANCELLED);
    await_that("the job is gone", || waiting() == 0);
}

#[test]
fn what_is_too_long_for_a_message_is_an_object() {
    let fleet = TestFleet::start();
    let worker = TestWorker::start(&fleet.servers, "w", 1, StandIn::taking(Duration::ZERO));
    let mut judge = judge(&fleet.servers, "run");
    let long = submission(&"# a long file\n".repeat(200_000));
    let verdict = judge.judge(&task("t"), &long).unwrap();
    assert!(verdict.reason.unwrap().contains(&long.content_hash()));
    worker.drained();
}

#[test]
fn without_the_token_nobody_comes_in() {
    let fleet = TestFleet::start();
    for token in [None, Some("another".to_owned())] {
        let servers = FleetServers {
            token,
            ..fleet.servers.clone()
        };
        let refused = FleetClient::connect(&servers, "a test").err().unwrap();
        assert!(matches!(refused, FleetError::Refused { .. }), "{refused}");
    }
}

#[test]
fn a_pool_is_chosen_only_where_there_is_no_doubt() {
    let fleet = TestFleet::start();
    let client = client(&fleet.servers);
    let choose = |choice: PoolChoice| client.choose(&choice, Duration::from_secs(3));
    let empty = client
        .choose(&PoolChoice::default(), Duration::ZERO)
        .unwrap_err();
    assert!(
        empty.to_string().contains("no worker has joined"),
        "{empty}"
    );
    let worker = TestWorker::start(&fleet.servers, "w", 3, StandIn::taking(Duration::ZERO));
    assert_eq!(choose(PoolChoice::default()).unwrap(), pool());
    assert_eq!(client.slots(&pool()).unwrap(), 3);
    let other = PoolChoice {
        device: Some("H200".to_owned()),
        ..PoolChoice::default()
    };
    let refused = choose(other).unwrap_err().to_string();
    assert!(refused.contains("stand-in"), "{refused}");
    worker.drained();
}

#[test]
fn a_server_that_is_started_again_has_its_jobs_still() {
    let mut fleet = TestFleet::start();
    let mut judge = judge(&fleet.servers, "run");
    let asked = thread::spawn(move || judge.judge(&task("t"), &submission("x")));
    let begun = Instant::now();
    // No worker has made the queue yet; the job is in the stream.
    thread::sleep(Duration::from_millis(500));
    let plan = fleet.plan.clone();
    drop(fleet.server);
    fleet.server = FleetServer::start(&server_program(), &plan).unwrap();
    let worker = TestWorker::start(&fleet.servers, "w", 1, StandIn::taking(Duration::ZERO));
    asked.join().unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(worker.drained().answered, 1);
}

/// As after a kill -9 of whoever started it.
#[test]
fn a_server_that_was_left_over_is_ended_and_another_goes_on() {
    let fleet = TestFleet::start();
    let worker = TestWorker::start(&fleet.servers, "w", 1, StandIn::taking(Duration::ZERO));
    let mut judge = judge(&fleet.servers, "run");
    let first = judge.judge(&task("t"), &submission("x")).unwrap();
    let left_over = fleet.server.pid();
    std::mem::forget(fleet.server);
    let server = FleetServer::start(&server_program(), &fleet.plan).unwrap();
    assert_ne!(server.pid(), left_over);
    assert_eq!(judge.judge(&task("t"), &submission("x")).unwrap(), first);
    judge.judge(&task("t"), &submission("y")).unwrap();
    assert_eq!(worker.drained().answered, 2);
}

pub(crate) fn await_that(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(30));
    }
}
