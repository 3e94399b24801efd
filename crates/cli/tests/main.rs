//! One binary for all files: what they link is linked once.
#![allow(clippy::unwrap_used, reason = "a failed expectation is a failed test")]

mod agent;
mod common;
mod crates;
mod docs;
mod endpoint;
mod evolve;
mod explain;
mod exploits;
mod isolation;
mod judge_service;
mod judging;
mod kill_rate;
mod llama_server;
mod mcp;
mod names;
mod optimize;
mod package;
mod parquet;
mod pipeline;
mod profile_report;
mod refusals;
#[path = "../../model/tests/replay/mod.rs"]
mod replay;
mod report;
mod rollout;
mod serve;
mod shipped_set;
mod start;
mod synth;
mod teacher;
#[cfg(feature = "local-models")]
#[path = "../../train/tests/tiny/mod.rs"]
mod tiny;
mod train;
mod usage;
