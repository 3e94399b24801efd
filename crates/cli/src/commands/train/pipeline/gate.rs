//! Whether a policy can do enough for reinforcement to have something to pay for.

use std::path::Path;

use serde_json::{Value, json};
use warpsmith_schema::{CountedAttempt, EpisodeEnding, Trajectory};
use warpsmith_train::data::{Finding, Standings, read_trajectories};

use super::PipelineSettings;
use crate::failure::Stop;

pub(super) struct Gate {
    standings: Standings,
    pass_at_k: f64,
    unreadable: f64,
}

impl Gate {
    /// From episodes that were played.
    pub(super) fn of(folder: &Path, settings: &PipelineSettings) -> Result<Self, Stop> {
        let all = read_trajectories(folder)?;
        let said = |one: &&Trajectory| {
            !matches!(
                one.ending,
                EpisodeEnding::PolicyFailed { .. } | EpisodeEnding::Interrupted
            )
        };
        let found = all.iter().filter(said);
        let found = found.map(|one| (one.task.id.as_str(), Finding::of(one, CountedAttempt::Best)));
        let standings = Standings::of(found).ok_or_else(|| {
            Stop::config("training_data", "no validation task could be judged", None)
        })?;
        Ok(Self {
            standings,
            pass_at_k: settings.gate_pass_at_k.into(),
            unreadable: settings.gate_unreadable.into(),
        })
    }

    pub(super) fn passed(&self) -> bool {
        self.standings.solved >= self.pass_at_k && self.standings.unreadable <= self.unreadable
    }

    pub(super) fn words(&self) -> String {
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
            percent(self.pass_at_k),
            percent(found.unreadable),
            found.episodes,
            percent(self.unreadable),
        )
    }

    pub(super) fn object(&self) -> Value {
        json!({
            "passed": self.passed(),
            "wanted": { "pass_at_k": self.pass_at_k, "unreadable": self.unreadable },
            "found": self.standings,
        })
    }
}
