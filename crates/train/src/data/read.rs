//! Trajectories as runs leave them.

use std::path::Path;

use warpsmith_schema::{EpisodeId, Trajectory};
use warpsmith_store::EventLog;

use crate::TrainError;

const KEPT: &str = "trajectories.jsonl";

/// Every trajectory of a run's folder, or of a file with one a line, in their order. Those whose verdicts a candidate may
/// have forged are refused.
pub fn read_trajectories(path: &Path) -> Result<Vec<Trajectory>, TrainError> {
    let mut found = Vec::new();
    let file = path.join(KEPT);
    if path.is_file() {
        found = EventLog::read(path)?.events;
    } else if file.is_file() {
        found = EventLog::read(&file)?.events;
    } else if path.is_dir() {
        warpsmith_rollout::trajectories(path, |one| found.push(one))?;
    } else {
        return Err(TrainError::Read {
            path: path.to_path_buf(),
            source: std::io::ErrorKind::NotFound.into(),
        });
    }
    match found.iter().find(|trajectory| uncontained(trajectory)) {
        Some(trajectory) => Err(TrainError::Uncontained {
            episode: EpisodeId::of(trajectory).to_string(),
        }),
        None => Ok(found),
    }
}

fn uncontained(trajectory: &Trajectory) -> bool {
    let mut verdicts = trajectory.attempts.iter().map(|attempt| &attempt.verdict);
    // Without an isolation nothing was run.
    verdicts.any(|verdict| verdict.isolation.is_some() && !verdict.trust.contained)
}
