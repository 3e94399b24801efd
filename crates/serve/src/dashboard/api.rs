//! The same as JSON.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use warpsmith_schema::{FORMAT, Number, RunMetrics, Speedup, Status, Trajectory, Usage};
use warpsmith_store::EpisodeRow;

use super::episode::find;
use super::shelf::ShelvedRun;
use super::{Dashboard, apart};
use crate::problem::Problem;

pub(crate) const MOST_LISTED: u32 = 1000;

/// Runs, the latest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunList {
    format: u32,
    runs: Vec<RunSummary>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RunSummary {
    format: u32,
    name: String,
    verb: Option<String>,
    /// `running`, `done`, or `unfinished`: nobody is at it, and episodes have no end or steps are left.
    state: String,
    /// What wrote the episodes, or what is trained.
    policy: Option<String>,
    device: Option<String>,
    begun: Option<String>,
    latest: Option<String>,
    /// Of training, and of how many.
    step: Option<u64>,
    steps: Option<u64>,
    /// Known where the run keeps a log of events.
    episodes_planned: Option<u32>,
    episodes_ended: u32,
    compiled: u32,
    passed: u32,
    faster_than_eager: u32,
    faster_than_compile: u32,
    usage: Usage,
    gauges: Option<RunMetrics>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EpisodeList {
    format: u32,
    /// All that there are.
    total: u32,
    episodes: Vec<EpisodeSummary>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EpisodeSummary {
    task: String,
    sample: u32,
    ended: bool,
    attempts: u32,
    /// Of the attempt that counts.
    status: Option<Status>,
    candidate_us: Option<Number>,
    /// In its own precision class.
    speedup: Option<Speedup>,
    reward: Option<f64>,
    seconds: Option<f64>,
}

impl RunSummary {
    fn of(name: &str, run: &ShelvedRun) -> Self {
        let (index, progress) = (&run.index, run.progress());
        let totals = index.totals;
        Self {
            format: FORMAT,
            name: name.to_owned(),
            verb: run.verb().map(str::to_owned),
            state: run.doing().word().to_owned(),
            policy: run.policy().map(str::to_owned),
            device: index.head.as_ref().map(|head| head.device.clone()),
            begun: run.begun().map(|at| at.to_string()),
            latest: run.latest().map(|at| at.to_string()),
            step: progress.map(|progress| progress.step),
            steps: progress.and_then(|progress| progress.steps),
            episodes_planned: index.metrics.map(|metrics| metrics.episodes_planned),
            episodes_ended: totals.ended,
            compiled: totals.compiled,
            passed: totals.passed,
            faster_than_eager: totals.faster_than_eager,
            faster_than_compile: totals.faster_than_compile,
            usage: totals.usage,
            gauges: index.metrics,
        }
    }
}

impl From<&EpisodeRow> for EpisodeSummary {
    fn from(row: &EpisodeRow) -> Self {
        let result = row.result.as_ref();
        Self {
            task: row.id.task.clone(),
            sample: row.id.sample,
            ended: result.is_some(),
            attempts: result.map_or(row.judged, |result| result.attempts),
            status: result.and_then(|result| result.status),
            candidate_us: result.and_then(|result| result.us),
            speedup: result.and_then(|result| result.speedup),
            reward: result.and_then(|result| Some(result.reward.as_ref()?.robust)),
            seconds: result.map(|result| result.seconds),
        }
    }
}

type Board = State<Arc<Dashboard>>;

pub(super) async fn runs(State(board): Board) -> Result<Json<RunList>, Problem> {
    let runs = apart(move || {
        let shelf = &board.shelf;
        let names = shelf.names();
        let each = names
            .iter()
            .filter_map(|name| shelf.look(name, |run| RunSummary::of(name, run)));
        each.collect()
    });
    let runs = runs.await.ok_or_else(Problem::failed)?;
    Ok(Json(RunList {
        format: FORMAT,
        runs,
    }))
}

pub(super) async fn run(
    State(board): Board,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<RunSummary>, Problem> {
    let Path(name) = name?;
    let found = apart(move || {
        let shelf = &board.shelf;
        let found = shelf.look(&name, |run| RunSummary::of(&name, run));
        found.ok_or_else(|| Problem::unknown_run(&name))
    });
    Ok(Json(found.await.ok_or_else(Problem::failed)??))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listing {
    #[serde(default)]
    offset: u32,
    #[serde(default = "listed")]
    limit: u32,
}

fn listed() -> u32 {
    50
}

/// In the order they began.
pub(super) async fn episodes(
    State(board): Board,
    name: Result<Path<String>, PathRejection>,
    listing: Result<Query<Listing>, QueryRejection>,
) -> Result<Json<EpisodeList>, Problem> {
    let (Path(name), Query(Listing { offset, limit })) = (name?, listing?);
    if !(1..=MOST_LISTED).contains(&limit) {
        let message = format!("`limit` is from 1 to {MOST_LISTED}");
        return Err(Problem::bad_request(message));
    }
    let found = apart(move || {
        let found = board.shelf.look(&name, |run| {
            let index = &run.index;
            let page = index.episodes.iter().skip(offset as usize);
            EpisodeList {
                format: FORMAT,
                total: index.episodes.len() as u32,
                episodes: page.take(limit as usize).map(Into::into).collect(),
            }
        });
        found.ok_or_else(|| Problem::unknown_run(&name))
    });
    Ok(Json(found.await.ok_or_else(Problem::failed)??))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Which {
    task: String,
    #[serde(default = "first")]
    sample: u32,
}

fn first() -> u32 {
    1
}

/// The whole of an episode that has ended.
pub(super) async fn episode(
    State(board): Board,
    name: Result<Path<String>, PathRejection>,
    which: Result<Query<Which>, QueryRejection>,
) -> Result<Json<Trajectory>, Problem> {
    let (Path(name), Query(which)) = (name?, which?);
    let found = apart(move || {
        let found = find(&board.shelf, &name, &which.task, which.sample);
        found.ok_or_else(|| Problem::unknown_episode(&which.task, which.sample))
    });
    Ok(Json(found.await.ok_or_else(Problem::failed)??))
}
