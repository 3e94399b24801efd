//! One file a verb.

pub(crate) mod bench;
pub(crate) mod bench_judge;
pub(crate) mod cache;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod evolve;
pub(crate) mod explain;
pub(crate) mod exploits;
pub(crate) mod export;
pub(crate) mod graph;
pub(crate) mod judge;
pub(crate) mod mcp;
#[cfg(feature = "local-models")]
pub(crate) mod models;
pub(crate) mod new;
pub(crate) mod optimize;
pub(crate) mod profile;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod rollout;
pub(crate) mod schema;
pub(crate) mod serve;
pub(crate) mod setup;
pub(crate) mod synth;
#[cfg(feature = "local-models")]
pub(crate) mod train;
