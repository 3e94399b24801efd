//! How much the scheduler itself costs: many episodes with a script and a judge that stands in, on this machine. Prints a
//! table; asserts nothing.
//!
//!     cargo run --release -p warpsmith-rollout --example scheduler [EPISODES]
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a measurement for whoever runs it by hand"
)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{StandIn, plan, script, scripted, task};
use serde_json::json;
use warpsmith_rollout::{History, run};
use warpsmith_store::RunFolder;

const SAMPLES: u32 = 10;

fn main() {
    let wanted = std::env::args().nth(1).map(|text| text.parse().unwrap());
    let tasks = wanted.unwrap_or(10_000_u32).div_ceil(SAMPLES);
    let place = tempfile::tempdir().unwrap();
    let script = script(place.path(), tasks, SAMPLES);
    println!(
        "| episodes | at once | judges | seconds | episodes/s | judgements/min | log | resumed in | peak memory |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (at_once, judges) in [(8, 1), (32, 4), (128, 4)] {
        let path = place.path().join(format!("run-{at_once}"));
        let folder = RunFolder::at(&path, &json!({})).unwrap();
        let judge = || StandIn {
            takes: Duration::ZERO,
            notes: None,
        };
        let means = scripted(&script, (0..judges).map(|_| judge()).collect());
        let plan = plan((1..=tasks).map(task).collect(), SAMPLES, at_once);
        let begun = Instant::now();
        let outcome = run(&folder, plan, means, &mut |_, _| {}).unwrap();
        let seconds = begun.elapsed().as_secs_f64();
        assert_eq!(outcome.unfinished, 0);
        let begun = Instant::now();
        let history = History::read(&path).unwrap();
        let resumed = begun.elapsed().as_secs_f64();
        let episodes = outcome.tally.episodes;
        assert_eq!(history.tally.episodes, episodes);
        let log = fs_err::metadata(path.join("events.jsonl")).unwrap().len();
        println!(
            "| {episodes} | {at_once} | {judges} | {seconds:.1} | {:.0} | {:.0} | {} MB | {resumed:.1} s | {} MB |",
            f64::from(episodes) / seconds,
            outcome.gauges.judgements_per_minute,
            log / 1_000_000,
            peak_memory_mb(),
        );
        fs_err::remove_dir_all(&path).unwrap();
    }
}

fn peak_memory_mb() -> u64 {
    let status = fs_err::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kb = line.and_then(|line| line.split_whitespace().nth(1));
    kb.unwrap().parse::<u64>().unwrap() / 1000
}
