//! How much the scheduler itself costs: many episodes with a script and a judge that stands in, on this machine. Prints a
//! table; asserts nothing.
//!
//!     cargo run --release -p warpsmith-rollout --example scheduler [EPISODES]
#![allow(
    clippy::print_stdout,
    reason = "a measurement for whoever runs it by hand"
)]

#[path = "../tests/common/mod.rs"]
#[allow(clippy::unwrap_used, reason = "the tests' own")]
mod common;

use std::error::Error;
use std::time::{Duration, Instant};

use common::{StandIn, plan, script, scripted, task};
use serde_json::json;
use warpsmith_rollout::{History, run};
use warpsmith_store::RunFolder;

const SAMPLES: u32 = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let episodes: u32 = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 10_000,
    };
    let tasks = episodes.div_ceil(SAMPLES);
    let place = tempfile::tempdir()?;
    let script = script(place.path(), tasks, SAMPLES);
    println!(
        "| episodes | at once | judges | seconds | episodes/s | judgements/min | log | resumed in | peak memory |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (concurrency, judges) in [(8, 1), (32, 4), (128, 4)] {
        let path = place.path().join(format!("run-{concurrency}"));
        let folder = RunFolder::at(&path, &json!({}))?;
        let judge = || StandIn {
            takes: Duration::ZERO,
            notes: None,
            ..StandIn::default()
        };
        let mut resources = scripted(&script, (0..judges).map(|_| judge()).collect());
        let plan = plan((1..=tasks).map(task).collect(), SAMPLES, concurrency);
        let begun = Instant::now();
        let outcome = run(&folder, plan, resources.lend(), &mut |_, _| {})?;
        let seconds = begun.elapsed().as_secs_f64();
        assert_eq!(outcome.unfinished, 0);
        let begun = Instant::now();
        let history = History::read(&path)?;
        let resumed = begun.elapsed().as_secs_f64();
        let episodes = outcome.tally.episodes;
        assert_eq!(history.tally.episodes, episodes);
        let log = fs_err::metadata(path.join("events.jsonl"))?.len();
        println!(
            "| {episodes} | {concurrency} | {judges} | {seconds:.1} | {:.0} | {:.0} | {} MB | {resumed:.1} s | {} MB |",
            f64::from(episodes) / seconds,
            outcome.gauges.judgements_per_minute,
            log / 1_000_000,
            peak_memory_mb()?,
        );
        fs_err::remove_dir_all(&path)?;
    }
    Ok(())
}

fn peak_memory_mb() -> Result<u64, Box<dyn Error>> {
    let status = fs_err::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kb = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(kb.ok_or("no peak memory in /proc")?.parse::<u64>()? / 1000)
}
