//! Raw samples as evidence keeps them.

use serde_json::Value;

use crate::baseline::Baselines;
use crate::timing::TimingSamples;

pub(crate) fn samples(candidate: &[TimingSamples], baselines: Option<&Baselines>) -> Value {
    serde_json::json!({ "candidate": candidate, "baselines": baselines })
}
