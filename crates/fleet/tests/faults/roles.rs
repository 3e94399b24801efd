//! The processes that are killed.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use warpsmith_fleet::{FleetClient, FleetJudge, FleetServers, WorkerPlan, work};
use warpsmith_judge::Judge;
use warpsmith_rollout::StopRequest;

use crate::common::{StandIn, TOKEN, judging, pool, submission, task};

/// Of a run: what it asked before it was killed is not judged again.
const SCOPE: &str = "faults";

fn servers(urls: &str) -> FleetServers {
    FleetServers {
        urls: urls.split(',').map(str::to_owned).collect(),
        token: Some(TOKEN.to_owned()),
        authority: None,
    }
}

/// `URLS NAME SLOTS TAKES_US LEASE_MS MAX_TRIES`
pub(crate) fn worker(words: &[&str]) {
    let [urls, name, slots, takes, lease, max_tries] = words else {
        panic!("a worker's words are {words:?}");
    };
    let stand_in = StandIn::taking(Duration::from_micros(takes.parse().unwrap()));
    let plan = WorkerPlan {
        name: (*name).to_owned(),
        host: "here".to_owned(),
        pool: pool(),
        slots: slots.parse().unwrap(),
        lease: Duration::from_millis(lease.parse().unwrap()),
        max_tries: max_tries.parse().unwrap(),
        make_judge: Arc::new(move |_| Ok(Box::new(stand_in.clone()) as Box<dyn Judge>)),
        baselines: None,
        stop: Arc::new(|| StopRequest::Continue),
    };
    work(&servers(urls), plan, || ()).unwrap();
}

/// `URLS JOBS THREADS LOG`: asks for every job that the log does not have, and logs each answer in a line.
pub(crate) fn controller(words: &[&str]) {
    let [urls, jobs, threads, log] = words else {
        panic!("a controller's words are {words:?}");
    };
    let (jobs, log) = (jobs.parse().unwrap(), Path::new(log));
    let counted = counted(log);
    let left: Vec<usize> = (0..jobs).filter(|job| !counted.contains(job)).collect();
    let file = fs_err::File::options()
        .create(true)
        .append(true)
        .open(log)
        .unwrap();
    let (file, next) = (Mutex::new(file), AtomicUsize::new(0));
    let client = connect(urls);
    thread::scope(|scope| {
        for _ in 0..threads.parse().unwrap() {
            scope.spawn(|| {
                let mut judge = judge(&client);
                while let Some(job) = left.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let reason = ask(&mut judge, *job);
                    // One write: killed here, the line is there or it is not.
                    let line = format!("{job} {reason}\n");
                    file.lock().unwrap().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

pub(crate) fn connect(urls: &str) -> Arc<FleetClient> {
    FleetClient::connect(&servers(urls), "a controller").unwrap()
}

pub(crate) fn judge(client: &Arc<FleetClient>) -> FleetJudge {
    FleetJudge::new(client.clone(), pool(), judging(), SCOPE)
}

/// The reason of the verdict, which no other judgement gives.
pub(crate) fn ask(judge: &mut FleetJudge, job: usize) -> String {
    loop {
        match judge.judge(&task("t"), &submission(&format!("job {job}"))) {
            Ok(verdict) => return verdict.reason.unwrap(),
            // As a rollout does: a failure of ours is asked again.
            Err(error) => eprintln!("job {job}: {error}"),
        }
    }
}

/// The jobs in a log.
pub(crate) fn counted(log: &Path) -> BTreeSet<usize> {
    let text = fs_err::read_to_string(log).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let number = |line: &str| line.split_once(' ').unwrap().0.parse().unwrap();
    whole.lines().map(number).collect()
}
