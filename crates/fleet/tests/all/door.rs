//! The address that `fleet up` prints.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use warpsmith_fleet::{FleetAddress, FleetError, FleetStatus, RunningFleet, UpPlan};
use warpsmith_judge::Judge;
use warpsmith_machine::{NoProgress, http_agent};

use super::jobs::{TestWorker, judge};
use crate::common::{StandIn, free_port, submission, task};

/// A fleet as `fleet up` starts it.
struct Up {
    address: String,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), FleetError>>,
}

impl Up {
    fn start(folder: &Path) -> Self {
        let fleet = RunningFleet::start(Self::plan(folder), None, &NoProgress).unwrap();
        let (address, stop) = (fleet.address(), Arc::new(AtomicBool::new(false)));
        let asked = stop.clone();
        let thread = thread::spawn(move || fleet.run(|| !asked.load(Ordering::SeqCst)));
        Self {
            address,
            stop,
            thread,
        }
    }

    fn plan(folder: &Path) -> UpPlan {
        UpPlan {
            folder: folder.to_path_buf(),
            listen: "127.0.0.1".to_owned(),
            door_port: 0,
            server_port: free_port(),
            tls: None,
            authority: None,
            cluster: None,
            other_servers: Vec::new(),
            replicas: 1,
            offline: false,
        }
    }

    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap().unwrap();
    }

    /// The token, and `host:port`.
    fn parts(&self) -> (&str, &str) {
        let rest = self.address.strip_prefix("http://").unwrap();
        rest.split_once('@').unwrap()
    }

    fn get(&self, path: &str, authorization: &str) -> (u16, String) {
        let agent = http_agent(Duration::from_secs(10)).unwrap();
        let request = agent.get(format!("http://{}{path}", self.parts().1));
        let mut answer = request
            .header("authorization", authorization)
            .call()
            .unwrap();
        let status = answer.status().as_u16();
        (status, answer.body_mut().read_to_string().unwrap())
    }
}

#[test]
fn the_address_leads_to_the_servers_and_shows_what_they_do() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(folder.path());
    let servers = up
        .address
        .parse::<FleetAddress>()
        .unwrap()
        .servers()
        .unwrap();
    let worker = TestWorker::start(&servers, "w", 2, StandIn::taking(Duration::ZERO));
    let verdict = judge(&servers, "run")
        .judge(&task("t"), &submission("x"))
        .unwrap();

    let second = RunningFleet::start(Up::plan(folder.path()), None, &NoProgress);
    let refused = second.err().unwrap().to_string();
    assert!(refused.contains("another `fleet up` works"), "{refused}");

    let (token, host) = up.parts();
    let wrong = format!("http://{}@{host}", "f".repeat(token.len()));
    let refused = wrong
        .parse::<FleetAddress>()
        .unwrap()
        .servers()
        .unwrap_err();
    assert!(matches!(refused, FleetError::Refused { .. }), "{refused}");
    for path in ["/", "/join", "/status"] {
        for authorization in ["", "Bearer ", "Bearer wrong", "Basic Og=="] {
            assert_eq!(up.get(path, authorization).0, 401, "{path} {authorization}");
        }
    }
    let bearer = format!("Bearer {token}");
    let status: FleetStatus = serde_json::from_str(&up.get("/status", &bearer).1).unwrap();
    assert_eq!((status.workers.len(), status.results), (1, 1));
    let (code, page) = up.get("/", &bearer);
    assert_eq!(code, 200);
    assert!(page.contains("stand-in") && !page.contains(token), "{page}");
    worker.drained();

    // The same folder goes on: the same token, and what was judged is known.
    let (address, token) = (up.address.clone(), token.to_owned());
    up.end();
    let up = Up::start(folder.path());
    assert_eq!(up.parts().0, token, "{address}");
    let servers = up
        .address
        .parse::<FleetAddress>()
        .unwrap()
        .servers()
        .unwrap();
    let again = judge(&servers, "run")
        .judge(&task("t"), &submission("x"))
        .unwrap();
    assert_eq!(again, verdict);
    up.end();
}
