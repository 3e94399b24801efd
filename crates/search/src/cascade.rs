//! How far candidates came, and which stage the budget went to.

use serde::Serialize;
use warpsmith_schema::{Status, Verdict};

use crate::Candidate;

/// The stages in order, each with those that came so far.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cascade {
    pub stages: Vec<CascadeStage>,
}

/// One stage of judging.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CascadeStage {
    pub name: &'static str,
    /// Candidates that entered it.
    pub entered: u32,
    /// Of those, how many ended there.
    pub ended: u32,
    pub seconds: f64,
    /// Of the seconds of all stages.
    pub share: f64,
}

const NAMES: [&str; 6] = [
    "reply",
    "read",
    "compile",
    "verify",
    "time (rl)",
    "time (full)",
];

impl Cascade {
    /// Of the candidates of a search, and the verdicts of its finish.
    pub(crate) fn of<'a>(
        candidates: &[Candidate],
        finals: impl Iterator<Item = &'a Verdict>,
    ) -> Self {
        let mut stages: Vec<CascadeStage> = NAMES
            .into_iter()
            .map(|name| CascadeStage {
                name,
                entered: 0,
                ended: 0,
                seconds: 0.0,
                share: 0.0,
            })
            .collect();
        for one in candidates {
            let proposed = &one.proposed;
            if proposed.policy.is_some() {
                stages[0].entered += 1;
                stages[0].seconds += proposed.reply_seconds;
            }
            stages[1].entered += 1;
            let Some(verdict) = &one.verdict else {
                stages[1].ended +=
                    u32::from(proposed.files.is_none() || proposed.duplicate_of.is_some());
                continue;
            };
            let seconds = &verdict.seconds;
            for (stage, seconds) in [(2, seconds.compile), (3, seconds.verify), (4, seconds.time)] {
                stages[stage].seconds += seconds;
            }
            let last = last_stage(verdict);
            for stage in &mut stages[2..=last.max(2)] {
                stage.entered += 1;
            }
            if !verdict.passed() {
                stages[last].ended += 1;
            }
        }
        for verdict in finals {
            stages[5].entered += 1;
            stages[5].ended += u32::from(!verdict.passed());
            stages[5].seconds += verdict.seconds.total;
        }
        let total: f64 = stages.iter().map(|stage| stage.seconds).sum();
        for stage in &mut stages {
            stage.share = if total > 0.0 {
                stage.seconds / total
            } else {
                0.0
            };
        }
        Self { stages }
    }
}

/// The stage that a verdict was reached in.
fn last_stage(verdict: &Verdict) -> usize {
    match verdict.status {
        Status::Passed => 4,
        Status::Rejected if !verdict.compiled => 1,
        Status::CompileFailed => 2,
        _ if verdict.correct || verdict.seconds.time > 0.0 => 4,
        _ if verdict.compiled => 3,
        _ => 2,
    }
}
