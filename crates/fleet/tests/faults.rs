//! A fleet whose parts are killed: three servers, workers and a controller as processes of their own.
//!
//! Without arguments it is the test, run once. `--times N` runs it N times in a row, each with another seed. `throughput`
//! measures. The other words are for the processes that it starts of itself.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "all of this is a test"
)]

mod common;
#[path = "faults/proxy.rs"]
mod proxy;
#[path = "faults/roles.rs"]
mod roles;
#[path = "faults/scenario.rs"]
mod scenario;
#[path = "faults/throughput.rs"]
mod throughput;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["worker", rest @ ..] => roles::worker(rest),
        ["controller", rest @ ..] => roles::controller(rest),
        ["throughput", rest @ ..] => throughput::measure(rest),
        ["--times", times, ..] => return scenario::times(times.parse().expect("a number")),
        // As cargo and its runners ask of every test binary.
        words if words.contains(&"--list") => {}
        _ => return scenario::times(1),
    }
    ExitCode::SUCCESS
}
