//! How long reads of a large run take: `reads [EPISODES [CLIENTS [SECONDS]]]`
//!
//! Writes a run with so many episodes, serves it on loopback and asks for it with so many clients at once, each on one
//! connection. Prints milliseconds by kind of read.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warpsmith_schema::Target;
use warpsmith_serve::judging::{JudgeService, ServedTasks};
use warpsmith_serve::{ApiKeys, Offer, serve};

const RUN: &str = "20260101T000000Z-bench-large";

fn main() -> Result<(), Box<dyn Error>> {
    let mut given = std::env::args().skip(1).map(|one| one.parse::<usize>());
    let mut next = |usual: usize| given.next().unwrap_or(Ok(usual));
    let (episodes, clients, seconds) = (next(100_000)?, next(16)?, next(20)?);
    let folder = tempfile::tempdir()?;
    let bytes = write_run(&folder.path().join(RUN), episodes)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let runs = folder.path().to_owned();
    thread::spawn(move || serve(listener, offer(runs)));
    let begun = Instant::now();
    Client::connect(address)?.get(&format!("/v1/runs/{RUN}"))?;
    let first = begun.elapsed().as_secs_f64();

    let until = Instant::now() + Duration::from_secs(seconds as u64);
    let ask = move |number| ask(address, number, episodes, until).map_err(|e| e.to_string());
    let threads: Vec<_> = (0..clients)
        .map(|number| thread::spawn(move || ask(number)))
        .collect();
    let mut times: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for thread in threads {
        for (kind, ms) in thread.join().map_err(|_| "a client panicked")?? {
            times.entry(kind).or_default().push(ms);
        }
    }
    let (mut out, megabytes) = (std::io::stdout().lock(), bytes as f64 / 1e6);
    writeln!(
        out,
        "{episodes} episodes, {megabytes:.0} MB of log, first look {first:.1} s; {clients} clients for {seconds} s\n"
    )?;
    writeln!(
        out,
        "| read | count | p50 ms | p99 ms | most |\n|---|---|---|---|---|"
    )?;
    for (kind, mut ms) in times {
        ms.sort_by(f64::total_cmp);
        let at = |share: f64| ms[((ms.len() - 1) as f64 * share) as usize];
        let (count, middle, late, most) = (ms.len(), at(0.5), at(0.99), at(1.0));
        writeln!(
            out,
            "| {kind} | {count} | {middle:.1} | {late:.1} | {most:.1} |"
        )?;
    }
    Ok(())
}

fn offer(runs: PathBuf) -> Offer {
    Offer {
        #[cfg(feature = "local-models")]
        model: None,
        judge: JudgeService {
            judges: Vec::new(),
            tasks: ServedTasks {
                tasks: Vec::new(),
                client_tasks: false,
                instructions: String::new(),
            },
            target: Target::Cpu,
        },
        runs,
        look_at_machine: Arc::new(|| json!({})),
        examine: Arc::new(|_, _, _| unreachable!("nobody asks for it here")),
        keys: ApiKeys::default(),
        sockets: 512,
        draining: || false,
        interrupted: || false,
    }
}

/// Its kind, and milliseconds.
type Timed = (&'static str, f64);

/// One client's reads, in turn.
fn ask(
    address: SocketAddr,
    number: usize,
    episodes: usize,
    until: Instant,
) -> Result<Vec<Timed>, Box<dyn Error>> {
    let mut client = Client::connect(address)?;
    let mut found = Vec::new();
    let mut turn = number * 7919;
    while Instant::now() < until {
        turn += 1;
        let task = turn * 31 % episodes;
        let (kind, path) = match turn % 5 {
            0 => ("all runs", "/v1/runs".to_owned()),
            1 => ("one run", format!("/v1/runs/{RUN}")),
            2 => (
                "fifty episodes",
                format!("/v1/runs/{RUN}/episodes?offset={task}"),
            ),
            3 => (
                "one episode, whole",
                format!("/v1/runs/{RUN}/episode?task=level1/{task}"),
            ),
            _ => (
                "a page of the run",
                format!("/runs/{RUN}?page={}", task / 50),
            ),
        };
        let begun = Instant::now();
        client.get(&path)?;
        found.push((kind, begun.elapsed().as_secs_f64() * 1e3));
    }
    Ok(found)
}

/// A connection that stays.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    fn get(&mut self, path: &str) -> Result<(), Box<dyn Error>> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes())?;
        let (mut line, mut length, mut good) = (String::new(), 0, false);
        while {
            line.clear();
            self.0.read_line(&mut line)?;
            !line.trim().is_empty()
        } {
            good |= line.starts_with("HTTP/1.1 200");
            if let Some(count) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = count.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        if good {
            Ok(())
        } else {
            Err(format!("{path}: {}", String::from_utf8_lossy(&body)).into())
        }
    }
}

/// Episodes as those of one reply are, of a few kilobytes. Gives the log's length.
fn write_run(folder: &Path, episodes: usize) -> Result<u64, Box<dyn Error>> {
    fs_err::create_dir_all(folder)?;
    fs_err::write(folder.join("config.json"), "{}")?;
    let path = folder.join("events.jsonl");
    let mut log = BufWriter::new(fs_err::File::create(&path)?);
    for number in 0..episodes {
        let ended = json!({ "kind": "episode_ended", "trajectory": trajectory(number) });
        let event = json!({ "format": 2, "at": "2026-01-01T00:00:00Z", "event": ended });
        writeln!(log, "{event}")?;
    }
    log.flush()?;
    Ok(fs_err::metadata(path)?.len())
}

fn trajectory(number: usize) -> Value {
    let passed = !number.is_multiple_of(3);
    let kernel = "__global__ void scale(float* out, const float* in, int count);\n".repeat(12);
    let if_passed = |value: Value| if passed { value } else { Value::Null };
    let speedup = json!({ "eager": 1.5, "compile": 1.25 });
    let verdict = json!({
        "format": 1, "status": if passed { "passed" } else { "mismatch" }, "rule": null, "reason": null,
        "compiled": true, "correct": passed,
        "progress": {
            "parsed": true, "compiled": true, "loaded": true, "ran": true, "shape_ok": true, "share_within_tolerance": 1.0,
        },
        "profile": "rl", "target": "cuda", "device": "a device",
        "times_us": if_passed(json!({ "candidate": 20.0, "eager": 30.0, "compile": 25.0, "spread": 0.02, "samples": 40, "single": 20.0, "burst": 20.0, "constant": 400.0 })),
        "speedup": if_passed(speedup.clone()),
        "matched_precision": if_passed(json!({ "mode": "fp32", "eager_us": 30.0, "compile_us": 25.0, "speedup": speedup })),
        "numerics": null, "reward": { "robust": 3.0, "raw": 1.25, "composite": 3.0, "ladder": 3.0 },
        "seconds": { "compile": 1.0, "verify": 0.1, "time": 1.0, "total": 2.1 }, "isolation": null,
        "trust": {
            "contained": true, "degenerate_inputs": false, "deferred_work": false, "fp64": "all", "excluded_share": 0.0,
            "checks": {},
        },
        "notes": [], "evidence": null,
    });
    json!({
        "format": 2, "id": format!("{number:016x}"),
        "task": {
            "id": format!("level1/{number}"), "name": format!("task {number}"), "source": "class Model: ...\n", "level": 1,
            "problem_id": number, "origin": "made",
        },
        "target": "cuda", "policy": { "name": "local:made", "hash": null, "step": null }, "sample": 1, "mode": "single",
        "messages": [
            { "role": "user", "text": "Write `ModelNew` for this `model.py`." },
            { "role": "assistant", "text": kernel, "calls": [] },
        ],
        "elisions": [], "attempts": [{ "message": 1, "files": { "kernels/scale.cu": kernel }, "verdict": verdict }],
        "best": if_passed(json!(0)), "ending": { "kind": "finished" },
        "usage": { "prompt_tokens": 1000, "completion_tokens": 300, "cached_tokens": 0 }, "seconds": 12.5, "tokens": null,
    })
}
