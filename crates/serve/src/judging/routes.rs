//! What the judge is asked over HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use warpsmith_machine::{gpu_clocks, gpus};

use super::job::{GivenTask, Job, JobList, JudgeRequest};
use super::jobs::{DRAINING, Jobs};
use super::rate::{Rate, limit, pace};
use super::{ServedTasks, openenv, trainers};
use crate::client::Client;
use crate::problem::Problem;

/// Larger than any solution that could still be compiled.
const BODY_BYTES: usize = 8 << 20;
/// The longest that a request waits for its job.
pub(crate) const MAX_WAIT_SECONDS: u32 = 600;
pub(crate) const MAX_LISTED: u32 = 1000;
const DEFAULT_LISTED: u32 = 50;

/// What the handlers share.
pub(crate) struct JudgeApi {
    pub(super) jobs: Arc<Jobs>,
    pub(super) tasks: ServedTasks,
    pub(super) evaluations: trainers::Evaluations,
}

pub(crate) fn routes(jobs: Arc<Jobs>, tasks: ServedTasks) -> Router {
    let api = Arc::new(JudgeApi {
        jobs,
        tasks,
        evaluations: trainers::Evaluations::default(),
    });
    let rate = Arc::new(Rate::default());
    Router::new()
        .route("/v1/judge", post(judge))
        .route("/v1/jobs", get(list))
        .route("/v1/jobs/{id}", get(show).delete(cancel))
        .route("/ws", get(openenv::connect))
        .route("/metrics", get(metrics))
        .layer(from_fn_with_state(rate.clone(), limit))
        .merge(trainers::routes().layer(from_fn_with_state(rate, pace)))
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(api)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WaitQuery {
    #[serde(default)]
    wait: u32,
}

impl WaitQuery {
    fn limit(&self) -> Result<Duration, Problem> {
        if self.wait > MAX_WAIT_SECONDS {
            let message = format!("`wait` is at most {MAX_WAIT_SECONDS} seconds");
            return Err(Problem::bad_request(message));
        }
        Ok(Duration::from_secs(self.wait.into()))
    }
}

async fn judge(
    State(api): State<Arc<JudgeApi>>,
    client: Client,
    query: Result<Query<WaitQuery>, QueryRejection>,
    request: Result<Json<JudgeRequest>, JsonRejection>,
) -> Result<Response, Problem> {
    let limit = query?.limit()?;
    let Json(request) = request?;
    let task = match &request.task {
        // Every client waits for this thread, and a set of tasks may be large.
        given @ GivenTask::Path(_) => {
            let (api, given) = (api.clone(), given.clone());
            let found = tokio::task::spawn_blocking(move || api.tasks.find(&given));
            found.await.map_err(|_| Problem::failed())??
        }
        given => api.tasks.find(given)?,
    };
    let received = request.received().map_err(Problem::bad_request)?;
    let id = api
        .jobs
        .submit(&client, task, received)
        .map_err(|refusal| Problem::refused_job(refusal, ""))?;
    // Who leaves before the answer knows no id to ask with.
    let held = api.jobs.hold(&client, &id);
    let job = api.jobs.wait(&client, &id, limit).await;
    held.keep();
    let job = job.ok_or_else(|| Problem::unknown_job(&id))?;
    if let Some(failure) = &job.failure
        && failure.code == DRAINING
    {
        return Err(Problem::unjudged(failure.clone()));
    }
    let status = if job.status.is_over() {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    let place = format!("/v1/jobs/{id}");
    Ok((status, [(LOCATION, place)], Json(job)).into_response())
}

async fn show(
    State(api): State<Arc<JudgeApi>>,
    client: Client,
    id: Result<Path<String>, PathRejection>,
    query: Result<Query<WaitQuery>, QueryRejection>,
) -> Result<Json<Job>, Problem> {
    let Path(id) = id?;
    let limit = query?.limit()?;
    let job = api.jobs.wait(&client, &id, limit).await;
    Ok(Json(job.ok_or_else(|| Problem::unknown_job(&id))?))
}

async fn cancel(
    State(api): State<Arc<JudgeApi>>,
    client: Client,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Job>, Problem> {
    let Path(id) = id?;
    let cancelled = api.jobs.cancel(&client, &id);
    let job = cancelled.map_err(|refusal| Problem::refused_job(refusal, &id))?;
    Ok(Json(job))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    #[serde(default = "default_listed")]
    limit: u32,
}

fn default_listed() -> u32 {
    DEFAULT_LISTED
}

async fn list(
    State(api): State<Arc<JudgeApi>>,
    client: Client,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Json<JobList>, Problem> {
    let Query(ListQuery { limit }) = query?;
    if !(1..=MAX_LISTED).contains(&limit) {
        let message = format!("`limit` is from 1 to {MAX_LISTED}");
        return Err(Problem::bad_request(message));
    }
    let (waiting, jobs) = api.jobs.list(&client, limit as usize);
    Ok(Json(JobList::new(waiting, jobs)))
}

/// For Prometheus.
async fn metrics(State(api): State<Arc<JudgeApi>>) -> Response {
    // A driver answers when it likes.
    let gpus = tokio::task::spawn_blocking(|| {
        let busy = |index| Some(gpu_clocks(index)?.utilization_percent? / 100.0);
        let all = gpus().into_iter();
        all.map(|gpu| (gpu.index, busy(gpu.index))).collect()
    });
    let text = api.jobs.metrics(gpus.await.unwrap_or_default());
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, kind)], text).into_response()
}
