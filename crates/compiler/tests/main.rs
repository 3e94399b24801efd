//! One binary for all files: what they link is linked once.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed expectation is a failed test"
)]

use warpsmith_schema::{OpGraph, Task};

mod calls;
mod cpu;
mod explain;
mod kernels;
mod regular;
mod tuning;

fn task(name: &str, number: u64, source: &str, graph: Option<OpGraph>) -> Task {
    Task {
        id: format!("{number}-{name}"),
        name: name.to_owned(),
        source: source.to_owned(),
        level: None,
        problem_id: None,
        origin: "composed".to_owned(),
        graph,
    }
}
