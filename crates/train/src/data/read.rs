//! Trajectories as runs leave them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use warpsmith_schema::{DocumentError, EpisodeId, Failure, FailureKind, Trajectory, read_document};

use super::collection::{BenchmarkTask, Columns, read_collection};
use crate::TrainError;
use crate::checkpoint::read_failed;

/// Trajectories of several places, in their order, and what tells them apart from others.
#[derive(Debug, Clone)]
pub struct TrainingData {
    pub trajectories: Vec<Trajectory>,
    /// Tasks of a benchmark, one for each row of a collection that was left out because it holds it.
    pub benchmark: Vec<String>,
    pub(crate) hash: String,
}

impl TrainingData {
    /// Of runs' folders, files with one trajectory a line, or Parquet files with these columns, whose rows are others' and may
    /// hold a benchmark's task.
    pub fn read(
        places: &[PathBuf],
        columns: &Columns,
        benchmark_task: &BenchmarkTask<'_>,
    ) -> Result<Self, TrainError> {
        let (mut trajectories, mut benchmark) = (Vec::new(), Vec::new());
        for path in places {
            if path.is_file() && path.extension().is_some_and(|end| end == "parquet") {
                let found = read_collection(path, columns, benchmark_task)?;
                trajectories.extend(found.trajectories);
                benchmark.extend(found.benchmark);
            } else {
                trajectories.extend(read_trajectories(path)?);
            }
        }
        if trajectories.is_empty() && !benchmark.is_empty() {
            return Err(TrainError::OnlyBenchmark {
                rows: benchmark.len(),
                first: benchmark.swap_remove(0),
            });
        }
        if trajectories.is_empty() {
            let places: Vec<String> = places
                .iter()
                .map(|path| format!("`{}`", path.display()))
                .collect();
            return Err(TrainError::NoEpisodes {
                places: places.join(", "),
            });
        }
        let mut hasher = blake3::Hasher::new();
        for trajectory in &trajectories {
            serde_json::to_writer(&mut hasher, trajectory).map_err(|error| {
                TrainError::Around(Failure {
                    kind: FailureKind::Infrastructure,
                    code: "json".to_owned(),
                    message: error.to_string(),
                    hint: None,
                })
            })?;
            hasher.update(b"\n");
        }
        let hash = hasher.finalize().to_hex()[..16].to_owned();
        Ok(Self {
            trajectories,
            benchmark,
            hash,
        })
    }
}

/// Every trajectory of a run's folder, or of a file with one a line, in their order. Those whose verdicts a candidate may
/// have forged are refused.
pub fn read_trajectories(path: &Path) -> Result<Vec<Trajectory>, TrainError> {
    let mut found = Vec::new();
    if path.is_dir() {
        warpsmith_rollout::trajectories(path, |one| found.push(one))?;
    } else if path.exists() {
        found = read_file(path)?;
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

fn read_file(path: &Path) -> Result<Vec<Trajectory>, TrainError> {
    let file = fs_err::File::open(path).map_err(read_failed(path))?;
    let (mut lines, mut text, mut found) = (BufReader::new(file), Vec::new(), Vec::new());
    for line in 1.. {
        text.clear();
        if lines
            .read_until(b'\n', &mut text)
            .map_err(read_failed(path))?
            == 0
        {
            break;
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        found.push(read_document(&text).map_err(|error| {
            let path = path.to_path_buf();
            match error {
                DocumentError::OtherFormat(format) if format.found.is_some() => {
                    TrainError::OtherFormat { path, line, format }
                }
                // Something else altogether: no trajectory is without its format.
                DocumentError::OtherFormat(_) => TrainError::NotATrajectory {
                    path,
                    line,
                    source: serde::de::Error::missing_field("format"),
                },
                DocumentError::Json(source) => TrainError::NotATrajectory { path, line, source },
            }
        })?);
    }
    Ok(found)
}

fn uncontained(trajectory: &Trajectory) -> bool {
    let mut verdicts = trajectory.attempts.iter().map(|attempt| &attempt.verdict);
    // Without an isolation nothing was run.
    verdicts.any(|verdict| verdict.isolation.is_some() && !verdict.trust.contained)
}
