//! Everything needed to judge again, in memory; the caller decides where it is kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use warpsmith_schema::{Profile, Submission, Target};

use crate::baseline::Baselines;
use crate::timing::Raw;

/// What stands behind one verdict. Written after the run: the seed in it is worthless to the candidate it judged.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Evidence {
    pub task_name: String,
    pub task_source: String,
    pub submission: Submission,
    /// The master seed; every input and weight follows from it.
    pub seed: u64,
    pub target: Target,
    pub profile: Profile,
    /// Versions, device, clocks and temperature before and after.
    pub environment: BTreeMap<String, Value>,
    /// Raw intervals of candidate and baselines.
    pub samples: Value,
    pub compile_log: String,
    /// What the candidate printed, clipped; for people, never parsed.
    pub printed: String,
}

pub(crate) fn samples(candidate: &[Raw], baselines: Option<&Baselines>) -> Value {
    serde_json::json!({ "candidate": candidate, "baselines": baselines })
}
