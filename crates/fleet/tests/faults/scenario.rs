//! What is killed when, and what must hold in the end.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use warpsmith_fleet::{ClusterPlan, FleetServer, FleetServers, ServerPlan, fleet_status, set_up};

use crate::common::{TOKEN, free_port, plan, server_program};
use crate::proxy::Proxy;
use crate::roles::{ask, connect, judge};

const JOBS: usize = 5000;
const ASKING_THREADS: &str = "64";
const SLOTS: &str = "12";
const TAKES_US: &str = "30000";
const LEASE_MS: &str = "1500";
/// Faults are many here; in life five are enough.
const MAX_TRIES: &str = "30";
const LIMIT: Duration = Duration::from_mins(3);

pub(crate) fn times(times: u64) -> ExitCode {
    for time in 1..=times {
        let begun = Instant::now();
        let Ok(told) = std::panic::catch_unwind(|| once(time)) else {
            println!("test faults ... FAILED");
            println!(
                "test result: FAILED. {} passed; 1 failed; 0 ignored",
                time - 1
            );
            return ExitCode::FAILURE;
        };
        println!("{time}: {told} in {:.1} s", begun.elapsed().as_secs_f64());
    }
    println!("test faults ... ok\ntest result: ok. {times} passed; 0 failed; 0 ignored");
    ExitCode::SUCCESS
}

/// A process of this binary, killed without a word when it is dropped.
struct Killed(Child);

impl Killed {
    fn start(words: &[&str]) -> Self {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(program);
        command.args(words).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some_and(|status| {
            assert!(status.success(), "the controller failed: {status}");
            true
        })
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn once(seed: u64) -> String {
    let folder = tempfile::tempdir().unwrap();
    let plans = cluster(folder.path());
    let program = server_program();
    let start = |plan: &ServerPlan| FleetServer::start(&program, plan).unwrap();
    let mut servers: Vec<Option<FleetServer>> =
        plans.iter().map(|plan| Some(start(plan))).collect();
    let all: Vec<String> = plans
        .iter()
        .map(|plan| plan.local().urls[0].clone())
        .collect();
    let reachable = FleetServers {
        urls: all.clone(),
        token: Some(TOKEN.to_owned()),
        authority: None,
    };
    set_up(&reachable, 3).unwrap();

    // Two of five workers are behind a network that is cut for a while.
    let proxies: Vec<Proxy> = plans.iter().map(|plan| Proxy::to(plan.port)).collect();
    let through: Vec<String> = proxies
        .iter()
        .map(|proxy| format!("nats://127.0.0.1:{}", proxy.port))
        .collect();
    let (all, through) = (all.join(","), through.join(","));
    let mut started = 0;
    let mut worker = |number: usize| {
        started += 1;
        let urls = if number < 2 { &through } else { &all };
        let name = format!("worker-{number}-{started}");
        Killed::start(&["worker", urls, &name, SLOTS, TAKES_US, LEASE_MS, MAX_TRIES])
    };
    let mut workers: Vec<Killed> = (0..5).map(&mut worker).collect();
    let log = folder.path().join("counted");
    let jobs = JOBS.to_string();
    let controller = || {
        Killed::start(&[
            "controller",
            &all,
            &jobs,
            ASKING_THREADS,
            log.to_str().unwrap(),
        ])
    };
    let mut asking = controller();

    let mut random = Random(seed);
    let (begun, mut killed) = (Instant::now(), BTreeMap::<&str, u32>::new());
    let mut next_worker = Duration::from_secs(2);
    let mut plan_of_faults = vec![
        (3, "controller killed"),
        (5, "server killed"),
        (6, "network cut"),
        (9, "controller killed"),
        (10, "network whole"),
        (11, "server back"),
    ]
    .into_iter()
    .peekable();
    let chosen_server = random.below(plans.len());
    while plan_of_faults.peek().is_some() || !asking.ended() {
        let now = begun.elapsed();
        assert!(
            now < LIMIT,
            "after {LIMIT:?}: {:?}",
            fleet_status(&reachable)
        );
        if now >= next_worker {
            let number = random.below(workers.len());
            workers[number] = worker(number);
            *killed.entry("workers").or_default() += 1;
            next_worker = now + Duration::from_millis(1000 + random.below(1500) as u64);
        }
        if let Some((_, fault)) = plan_of_faults.next_if(|(at, _)| now >= Duration::from_secs(*at))
        {
            match fault {
                "controller killed" => {
                    asking = {
                        drop(asking);
                        controller()
                    };
                    *killed.entry("controllers").or_default() += 1;
                }
                "server killed" => {
                    if let Some(server) = servers[chosen_server].take() {
                        server.kill();
                    }
                    *killed.entry("servers").or_default() += 1;
                }
                "server back" => servers[chosen_server] = Some(start(&plans[chosen_server])),
                cut => proxies
                    .iter()
                    .for_each(|proxy| proxy.cut(cut == "network cut")),
            }
        }
        thread::sleep(Duration::from_millis(20));
    }
    let took = begun.elapsed().as_secs_f64();

    // Every job is counted, once, with the one verdict that is stored.
    let text = fs_err::read_to_string(&log).unwrap();
    let mut counted = BTreeMap::new();
    for line in text.lines() {
        let (job, reason) = line.split_once(' ').unwrap();
        let twice = counted.insert(job.parse::<usize>().unwrap(), reason.to_owned());
        assert_eq!(twice, None, "job {job} was counted twice");
    }
    assert!(
        counted.keys().copied().eq(0..JOBS),
        "{} of {JOBS} jobs were counted",
        counted.len()
    );
    let client = connect(&all);
    for (job, reason) in counted.iter().step_by(50) {
        assert_eq!(
            &ask(&mut judge(&client), *job),
            reason,
            "job {job} has another verdict now"
        );
    }
    await_empty(&reachable);
    let killed: Vec<String> = killed
        .iter()
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    format!(
        "{JOBS} jobs counted once each in {took:.1} s, killed {}, one cut of 4 s;",
        killed.join(", ")
    )
}

/// No job is left over. A worker that was killed leaves its lease to run out.
fn await_empty(servers: &FleetServers) {
    let begun = Instant::now();
    loop {
        let status = fleet_status(servers).unwrap();
        if status
            .queues
            .iter()
            .all(|queue| queue.waiting == 0 && queue.under_way == 0)
        {
            assert_eq!(status.results as usize, JOBS, "one result for each job");
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{status:?}");
        thread::sleep(Duration::from_millis(200));
    }
}

fn cluster(folder: &Path) -> Vec<ServerPlan> {
    let ports: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let routes: Vec<String> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let server = |(number, port): (usize, &u16)| ServerPlan {
        name: format!("server-{number}"),
        cluster: Some(ClusterPlan {
            port: *port,
            routes: routes.clone(),
        }),
        ..plan(&folder.join(format!("server-{number}")), free_port())
    };
    ports.iter().enumerate().map(server).collect()
}

/// `SplitMix64`: the same faults for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}
