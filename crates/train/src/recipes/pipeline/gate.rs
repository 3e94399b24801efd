//! Whether a policy can do enough for reinforcement to have something to pay for.

use std::path::Path;

use serde_json::{Value, json};
use warpsmith_schema::{CountedAttempt, EpisodeEnding, Trajectory};

use crate::TrainError;
use crate::data::{Finding, Standings, read_trajectories};

/// What a policy must reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateThresholds {
    /// Share of validation tasks that one of several replies must solve.
    pub pass_at_k: f64,
    /// Share of replies that may be unreadable.
    pub unreadable: f64,
}

/// What it reached.
#[derive(Debug, Clone, PartialEq)]
pub struct PipelineGate {
    standings: Standings,
    wanted: GateThresholds,
}

impl PipelineGate {
    /// From episodes that were played.
    pub(super) fn of(folder: &Path, wanted: GateThresholds) -> Result<Self, TrainError> {
        let all = read_trajectories(folder)?;
        let said = |one: &&Trajectory| {
            !matches!(
                one.ending,
                EpisodeEnding::PolicyFailed { .. } | EpisodeEnding::Interrupted
            )
        };
        let found = all.iter().filter(said);
        let found = found.map(|one| (one.task.id.as_str(), Finding::of(one, CountedAttempt::Best)));
        let standings = Standings::of(found).ok_or(TrainError::NothingJudged)?;
        Ok(Self { standings, wanted })
    }

    pub fn passed(&self) -> bool {
        self.standings.solved >= self.wanted.pass_at_k
            && self.standings.unreadable <= self.wanted.unreadable
    }

    /// For people.
    pub fn words(&self) -> String {
        let percent = |share: f64| format!("{:.1} %", 100.0 * share);
        let found = &self.standings;
        format!(
            "{}: {} of {} validation tasks solved by one of their replies (at least {} wanted), {} of {} replies \
             unreadable (at most {})",
            if self.passed() {
                "passed"
            } else {
                "not passed"
            },
            percent(found.solved),
            found.tasks,
            percent(self.wanted.pass_at_k),
            percent(found.unreadable),
            found.episodes,
            percent(self.wanted.unreadable),
        )
    }

    /// For scripts.
    pub fn object(&self) -> Value {
        json!({
            "passed": self.passed(),
            "wanted": { "pass_at_k": self.wanted.pass_at_k, "unreadable": self.wanted.unreadable },
            "found": self.standings,
        })
    }
}
