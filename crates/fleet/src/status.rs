//! What a fleet is doing: its workers as they say it themselves, and its queues.

use futures_util::TryStreamExt as _;
use serde::{Deserialize, Serialize};

use crate::link::{Link, decoded, encoded};
use crate::wire::{FleetPool, PROTOCOL};
use crate::{FleetError, FleetServers};

/// What a worker says of itself every few seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerRecord {
    pub name: String,
    pub host: String,
    pub pool: FleetPool,
    /// Jobs at the same time.
    pub slots: usize,
    /// The tasks it is at work on.
    pub busy: Vec<String>,
    /// Since it joined.
    pub answered: u64,
    pub failed_tries: u64,
    /// Answers of the last minute.
    pub answered_last_minute: u64,
    pub draining: bool,
    /// The program's version.
    pub version: String,
    /// Seconds since 1970, by the worker's clock.
    pub joined_at: i64,
}

/// A try that ended without an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailedTry {
    pub job: String,
    pub task: String,
    pub worker: String,
    /// Which try of the job it was.
    pub tried: u32,
    pub code: String,
    pub message: String,
    /// Seconds since 1970.
    pub at: i64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QueueStatus {
    pub pool: String,
    /// Jobs that no worker has yet.
    pub waiting: u64,
    /// Jobs with a worker.
    pub under_way: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetStatus {
    pub format: u32,
    pub protocol: u32,
    pub workers: Vec<WorkerRecord>,
    pub queues: Vec<QueueStatus>,
    /// Of all workers.
    pub answers_a_minute: u64,
    /// That are kept.
    pub results: u64,
    /// The latest, oldest first.
    pub failed_tries: Vec<FailedTry>,
}

const SHOWN_FAILURES: u64 = 10;

/// What goes on in a fleet now.
pub fn fleet_status(servers: &FleetServers) -> Result<FleetStatus, FleetError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let link = Link::open(servers, "warpsmith fleet status").await?;
        status(&link).await
    })
}

pub(crate) async fn status(link: &Link) -> Result<FleetStatus, FleetError> {
    let workers = workers(link).await?;
    let queues = link.queues().await?.into_iter();
    let failed = link.latest_failures(SHOWN_FAILURES).await;
    Ok(FleetStatus {
        format: warpsmith_schema::FORMAT,
        protocol: PROTOCOL,
        answers_a_minute: workers
            .iter()
            .map(|worker| worker.answered_last_minute)
            .sum(),
        workers,
        queues: queues
            .map(|(pool, waiting, under_way)| QueueStatus {
                pool,
                waiting,
                under_way,
            })
            .collect(),
        results: link.result_count().await?,
        failed_tries: failed
            .iter()
            .filter_map(|bytes| serde_json::from_slice(bytes).ok())
            .collect(),
    })
}

/// The workers that have said something lately.
pub(crate) async fn workers(link: &Link) -> Result<Vec<WorkerRecord>, FleetError> {
    let silent = |reason: String| FleetError::Silent {
        doing: "name its workers",
        waited: std::time::Duration::ZERO,
        reason,
    };
    let keys = link
        .workers
        .keys()
        .await
        .map_err(|error| silent(error.to_string()))?;
    let mut names: Vec<String> = keys
        .try_collect()
        .await
        .map_err(|error| silent(error.to_string()))?;
    names.sort();
    let mut found = Vec::new();
    for name in names {
        // It may have left since, or be of another version.
        if let Ok(Some(bytes)) = link.workers.get(&name).await
            && let Ok(record) = decoded("a worker's record", &bytes)
        {
            found.push(record);
        }
    }
    Ok(found)
}

pub(crate) async fn announce(link: &Link, record: &WorkerRecord) -> Result<(), FleetError> {
    let bytes = encoded(record)?;
    // Said again in a moment.
    let _ = link.workers.put(&record.name, bytes.into()).await;
    Ok(())
}

pub(crate) async fn leave(link: &Link, name: &str) {
    let _ = link.workers.delete(name).await;
}
