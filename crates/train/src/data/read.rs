//! Trajectories as runs leave them.

use std::io::{BufRead, BufReader};
use std::path::Path;

use warpsmith_schema::{EpisodeId, FORMAT, Trajectory};
use warpsmith_store::EventLog;

use crate::TrainError;
use crate::checkpoint::read_failed;

const KEPT: &str = "trajectories.jsonl";

/// Every trajectory of a run's folder, or of a file with one a line, in their order. Those whose verdicts a candidate may
/// have forged are refused.
pub fn read_trajectories(path: &Path) -> Result<Vec<Trajectory>, TrainError> {
    let mut found = Vec::new();
    let file = path.join(KEPT);
    if path.is_file() {
        found = read_file(path)?;
    } else if file.is_file() {
        // A run's own log: a crash may have torn its last line.
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

/// Somebody may have made it by hand or cut it short: all that is in it counts, its last line too.
fn read_file(path: &Path) -> Result<Vec<Trajectory>, TrainError> {
    let file = fs_err::File::open(path).map_err(read_failed(path))?;
    let mut found = Vec::new();
    for (text, line) in BufReader::new(file).split(b'\n').zip(1..) {
        let text = text.map_err(read_failed(path))?;
        if text.trim_ascii().is_empty() {
            continue;
        }
        let trajectory: Trajectory =
            serde_json::from_slice(&text).map_err(|source| TrainError::NotATrajectory {
                path: path.to_path_buf(),
                line,
                source,
            })?;
        if trajectory.format != FORMAT {
            return Err(TrainError::OtherFormat {
                path: path.to_path_buf(),
                line,
                found: trajectory.format,
            });
        }
        found.push(trajectory);
    }
    Ok(found)
}

fn uncontained(trajectory: &Trajectory) -> bool {
    let mut verdicts = trajectory.attempts.iter().map(|attempt| &attempt.verdict);
    // Without an isolation nothing was run.
    verdicts.any(|verdict| verdict.isolation.is_some() && !verdict.trust.contained)
}
