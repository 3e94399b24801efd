//! Filters by execution: a task is run before it is kept, and what is dropped says why.
//!
//! Cheap ones come first. On the CPU and in the smallest size: does it run, twice the same, finite, with outputs that tell
//! inputs apart, and does its graph compute the same. Then, on the target's device and still small: does `torch.compile`
//! agree. Only what is left is timed on the target, in the size that fits the window, and surveyed by the judge.

mod stages;
mod worker;

pub use stages::{FilterSeconds, FilterStage, FilterStageSummary};
pub use worker::{Containment, FilterEnvironment, FilterError, FilterWorker};

use serde::{Deserialize, Serialize};

/// Why a task was dropped: a stable word and what was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRejection {
    pub reason: String,
    pub detail: String,
}

impl FilterRejection {
    pub(crate) fn new(reason: &str, detail: impl Into<String>) -> Self {
        Self {
            reason: reason.to_owned(),
            detail: detail.into(),
        }
    }
}

/// What the filters learnt of a task that is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskMeasurements {
    /// The most memory that was in use, where the device tells; else what all values together take.
    pub bytes: u64,
    /// How far `torch.compile` was from eager, as a share of the output's spread, in the smallest size.
    pub compile_error: f64,
    pub compile_seconds: f64,
    /// Whether the judge has tried it out.
    pub surveyed: bool,
}
