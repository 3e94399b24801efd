//! The whole server under the load of a training run: real connections, and judges that cost nothing but time.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use warpsmith_judge::Judge;
use warpsmith_schema::{Target, Task};

use crate::judging::timed::Timed;
use crate::judging::{JudgeService, ServedTasks};
use crate::{ApiKeys, Offer, serve};

const IN_FLIGHT: usize = 2000;
const REQUESTS: usize = 3000;
const JUDGES: usize = 4;
/// 800 verdicts a second in all.
const TAKES: Duration = Duration::from_millis(5);
/// A thread that others keep from running on a busy machine is no cost of the server.
const TRIES: usize = 3;

static ENDED: AtomicBool = AtomicBool::new(false);

fn offer() -> Offer {
    let (seen, _) = channel();
    let judge = |_| -> Box<dyn Judge> {
        Box::new(Timed {
            takes: TAKES,
            seen: seen.clone(),
            until: None,
        })
    };
    let task = Task {
        id: "task".to_owned(),
        name: "task".to_owned(),
        source: String::new(),
        level: None,
        problem_id: None,
        origin: "test".to_owned(),
        graph: None,
    };
    Offer {
        #[cfg(feature = "local-models")]
        model: None,
        judge: JudgeService {
            judges: (0..JUDGES).map(judge).collect(),
            tasks: ServedTasks {
                tasks: vec![Arc::new(task)],
                client_tasks: false,
                instructions: String::new(),
            },
            target: Target::Cpu,
        },
        runs: PathBuf::from("none"),
        look_at_machine: Arc::new(|| Value::Null),
        examine: Arc::new(|_, _, _| unreachable!("nobody asks for it here")),
        keys: ApiKeys::default(),
        sockets: 4096,
        draining: || ENDED.load(Ordering::Relaxed),
        interrupted: || false,
    }
}

/// One answer's body.
async fn ask(stream: &TcpStream, head: &str, body: &str) -> io::Result<String> {
    let request = format!(
        "{head} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.writable().await?;
    // It is small and nothing stands before it.
    assert_eq!(stream.try_write(request.as_bytes())?, request.len());
    let mut found = Vec::new();
    loop {
        if let Some(end) = found.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&found[..end]).to_lowercase();
            let (_, length) = head.split_once("content-length: ").unwrap();
            let length: usize = length.lines().next().unwrap().parse().unwrap();
            if found.len() >= end + 4 + length {
                assert!(head.starts_with("http/1.1 200"), "{head}");
                return Ok(String::from_utf8_lossy(&found[end + 4..]).into_owned());
            }
        }
        stream.readable().await?;
        let mut piece = [0; 16384];
        match stream.try_read(&mut piece) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => found.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn client(address: SocketAddr, left: Arc<AtomicUsize>) -> io::Result<()> {
    let stream = TcpStream::connect(address).await?;
    let body = json!({ "task": { "id": "task" }, "reply": "I cannot." }).to_string();
    let taken = || {
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
            left.checked_sub(1)
        })
    };
    while taken().is_ok() {
        let job = ask(&stream, "POST /v1/judge?wait=600", &body).await?;
        assert!(job.contains("\"status\":\"judged\""), "{job}");
    }
    Ok(())
}

/// Of how many jobs the queue cost at most 20 ms, and of how many it is known.
async fn overhead(address: SocketAddr) -> io::Result<(u64, u64)> {
    let metrics = ask(&TcpStream::connect(address).await?, "GET /metrics", "").await?;
    let within = |bound: &str| -> u64 {
        let head = format!("warpsmith_queue_overhead_seconds_bucket{{le=\"{bound}\"}} ");
        let found = metrics.lines().find_map(|line| line.strip_prefix(&head));
        found.unwrap().parse().unwrap()
    };
    Ok((within("0.02"), within("+Inf")))
}

#[test]
fn over_http_the_queue_costs_less_than_20_ms_with_2000_requests_in_flight() {
    let files = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: files.maximum,
        ..files
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || serve(listener, offer()));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (mut before, mut shares) = ((0, 0), Vec::new());
    for _ in 0..TRIES {
        let left = Arc::new(AtomicUsize::new(REQUESTS));
        let now = runtime.block_on(async {
            let clients: Vec<_> = (0..IN_FLIGHT)
                .map(|_| tokio::spawn(client(address, left.clone())))
                .collect();
            for client in clients {
                client.await.unwrap().unwrap();
            }
            overhead(address).await.unwrap()
        });
        let (within, all) = (now.0 - before.0, now.1 - before.1);
        assert!(all >= IN_FLIGHT as u64, "{all}");
        shares.push(within as f64 / all as f64);
        if shares.iter().any(|share| *share >= 0.99) {
            break;
        }
        before = now;
    }
    ENDED.store(true, Ordering::Relaxed);
    serving.join().unwrap().unwrap();
    assert!(shares.iter().any(|share| *share >= 0.99), "{shares:?}");
}
