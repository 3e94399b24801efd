use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use warpsmith_tasks::submission_from_text;

use super::*;
use crate::judging::timed::Timed;

fn task(name: &str) -> Arc<Task> {
    Arc::new(Task {
        id: name.to_owned(),
        name: name.to_owned(),
        source: String::new(),
        level: None,
        problem_id: None,
        origin: "test".to_owned(),
        graph: None,
    })
}

fn received() -> Received {
    Received::of(submission_from_text(&BTreeMap::new()))
}

fn submit(jobs: &Jobs, client: &Client, name: &str) -> String {
    jobs.submit(client, task(name), received()).unwrap()
}

/// Jobs with one judge, which goes on by one judgement with each message.
fn stepping() -> (
    Arc<Jobs>,
    Receiver<String>,
    Sender<()>,
    thread::JoinHandle<()>,
) {
    let jobs = Arc::new(Jobs::default());
    let ((seen, looked), (go, until)) = (channel(), channel());
    let judge = Timed {
        takes: Duration::ZERO,
        seen,
        until: Some(until),
    };
    let ours = jobs.clone();
    let judging = thread::spawn(move || ours.serve(Box::new(judge)));
    (jobs, looked, go, judging)
}

#[tokio::test]
async fn a_client_with_few_jobs_does_not_wait_behind_one_with_many() {
    let (jobs, seen, go, judging) = stepping();
    let (many, few) = (Client::named("many"), Client::named("few"));
    submit(&jobs, &many, "first");
    assert_eq!(seen.recv().unwrap(), "first");
    for _ in 0..1000 {
        submit(&jobs, &many, "many");
    }
    let two = [submit(&jobs, &few, "few"), submit(&jobs, &few, "few")];
    for _ in 0..5 {
        go.send(()).unwrap();
    }
    let order: Vec<String> = (0..5).map(|_| seen.recv().unwrap()).collect();
    assert_eq!(order, ["many", "few", "many", "few", "many"]);
    for id in two {
        let job = jobs.wait(&few, &id, Duration::from_secs(20)).await.unwrap();
        assert_eq!(job.status, JobStatus::Judged);
        // What is one's own is nobody else's business.
        assert!(jobs.get(&many, &id).is_none());
        assert_eq!(jobs.cancel(&many, &id), Err(JobRefusal::Unknown));
    }
    assert_eq!(jobs.list(&few, 100).1.len(), 2);
    assert_eq!(jobs.list(&Client::default(), 5000).1.len(), 1003);
    drop(go);
    jobs.drain();
    judging.join().unwrap();
}

#[tokio::test]
async fn a_drain_ends_what_is_judged_and_sends_away_what_waits() {
    let (jobs, seen, go, judging) = stepping();
    let one = Client::default();
    let running = submit(&jobs, &one, "running");
    seen.recv().unwrap();
    let waiting = submit(&jobs, &one, "waiting");
    let wait = Duration::from_secs(20);
    let (sent_away, ()) = tokio::join!(jobs.wait(&one, &waiting, wait), async {
        tokio::task::yield_now().await;
        jobs.drain();
    });
    let failure = sent_away.unwrap().failure.unwrap();
    assert_eq!(
        (failure.kind, &*failure.code),
        (FailureKind::Infrastructure, DRAINING)
    );
    let refused = jobs.submit(&one, task("late"), received());
    assert_eq!(refused, Err(JobRefusal::Draining));
    jobs.until_draining().await;
    assert_eq!(jobs.get(&one, &running).unwrap().status, JobStatus::Judging);
    go.send(()).unwrap();
    judging.join().unwrap();
    assert_eq!(jobs.get(&one, &running).unwrap().status, JobStatus::Judged);
    let metrics = jobs.metrics(Vec::new());
    for line in [
        "warpsmith_verdicts_total{status=\"passed\"} 1",
        "warpsmith_failures_total{kind=\"infrastructure\",code=\"draining\"} 1",
        "warpsmith_refused_total{reason=\"draining\"} 1",
        "warpsmith_draining 1",
        "warpsmith_judges 0",
        "warpsmith_jobs_judging 0",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line}:\n{metrics}");
    }
}

/// 2,000 requests that wait for their verdicts at once, and judges that take a millisecond each.
#[test]
fn the_queue_costs_less_than_20_ms_with_2000_requests_in_flight() {
    let jobs = Arc::new(Jobs::default());
    let (seen, _looked) = channel();
    for _ in 0..2 {
        let judge = Timed {
            takes: Duration::from_millis(1),
            seen: seen.clone(),
            until: None,
        };
        let ours = jobs.clone();
        thread::spawn(move || ours.serve(Box::new(judge)));
    }
    let clients: Vec<Client> = (0..8).map(|one| Client::named(&one.to_string())).collect();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut overhead: Vec<f64> = runtime.block_on(async {
        let tasks: Vec<_> = (0..2000)
            .map(|number| {
                let (jobs, client) = (jobs.clone(), clients[number % clients.len()].clone());
                tokio::spawn(async move {
                    let begun = Instant::now();
                    let id = submit(&jobs, &client, "task");
                    let job = jobs.wait(&client, &id, Duration::from_mins(5)).await;
                    let job = job.unwrap();
                    assert_eq!(job.status, JobStatus::Judged);
                    // Waiting behind others is no cost of the queue; taking a job in and telling of its end are.
                    begun.elapsed().as_secs_f64() - job.waited_seconds - job.judging_seconds
                })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.push(task.await.unwrap());
        }
        all
    });
    overhead.sort_by(f64::total_cmp);
    let p99 = overhead[overhead.len() * 99 / 100];
    assert!(p99 < 0.02, "{:.1} ms", p99 * 1e3);
    jobs.drain();
    // The same as the server tells it, in which a free judge that was slow to take a job counts too.
    let metrics = jobs.metrics(Vec::new());
    let within = |bound: &str| -> u64 {
        let head = format!("warpsmith_queue_overhead_seconds_bucket{{le=\"{bound}\"}} ");
        let found = metrics.lines().find_map(|line| line.strip_prefix(&head));
        found.unwrap().parse().unwrap()
    };
    assert_eq!(within("+Inf"), 2000);
    assert!(within("0.02") >= 1980, "{metrics}");
}
