//! What the judge is asked over HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;

use super::job::{Job, JobList, JudgeRequest, complaint_of};
use super::jobs::{Declined, Jobs};
use super::rate::{Rate, limit};
use super::{Court, Unfit, openenv};
use crate::problem::Problem;

/// Larger than any solution that could still be compiled.
const BODY_BYTES: usize = 8 << 20;
/// The longest that a request waits for its job.
pub(crate) const MOST_WAIT: u32 = 600;
pub(crate) const MOST_LISTED: u32 = 1000;
const LISTED: u32 = 50;

pub(crate) struct Bench {
    pub(super) jobs: Arc<Jobs>,
    pub(super) court: Court,
}

pub(crate) fn routes(jobs: Arc<Jobs>, court: Court) -> Router {
    let bench = Arc::new(Bench { jobs, court });
    Router::new()
        .route("/v1/judge", post(judge))
        .route("/v1/jobs", get(list))
        .route("/v1/jobs/{id}", get(look).delete(cancel))
        .route("/ws", get(openenv::connect))
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .layer(from_fn_with_state(Arc::new(Rate::default()), limit))
        .with_state(bench)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Waiting {
    #[serde(default)]
    wait: u32,
}

impl Waiting {
    fn limit(&self) -> Result<Duration, Problem> {
        if self.wait > MOST_WAIT {
            let message = format!("`wait` is at most {MOST_WAIT} seconds");
            return Err(Problem::bad_request(message));
        }
        Ok(Duration::from_secs(self.wait.into()))
    }
}

async fn judge(
    State(bench): State<Arc<Bench>>,
    waiting: Result<Query<Waiting>, QueryRejection>,
    request: Result<Json<JudgeRequest>, JsonRejection>,
) -> Result<Response, Problem> {
    let limit = waiting?.limit()?;
    let Json(request) = request?;
    if let Some(complaint) = complaint_of(&request.files) {
        return Err(Problem::bad_request(complaint));
    }
    let task = bench
        .court
        .task(&request.task)
        .map_err(|unfit| match unfit {
            Unfit::Complaint(complaint) => Problem::bad_request(complaint),
            Unfit::Unknown(id) => Problem::unknown_task(&id),
            Unfit::NotTrusted => Problem::not_trusted(&unfit.message()),
        })?;
    let id = bench
        .jobs
        .submit(task, request.files())
        .map_err(|_| Problem::queue_full())?;
    let job = bench.jobs.wait(&id, limit).await;
    let job = job.ok_or_else(|| Problem::unknown_job(&id))?;
    let status = if job.status.is_over() {
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    let place = format!("/v1/jobs/{id}");
    Ok((status, [(LOCATION, place)], Json(job)).into_response())
}

async fn look(
    State(bench): State<Arc<Bench>>,
    id: Result<Path<String>, PathRejection>,
    waiting: Result<Query<Waiting>, QueryRejection>,
) -> Result<Json<Job>, Problem> {
    let Path(id) = id?;
    let limit = waiting?.limit()?;
    let job = bench.jobs.wait(&id, limit).await;
    Ok(Json(job.ok_or_else(|| Problem::unknown_job(&id))?))
}

async fn cancel(
    State(bench): State<Arc<Bench>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Job>, Problem> {
    let Path(id) = id?;
    match bench.jobs.cancel(&id) {
        Ok(job) => Ok(Json(job)),
        Err(Declined::TooLate) => Err(Problem::too_late()),
        Err(Declined::Unknown | Declined::Full) => Err(Problem::unknown_job(&id)),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listing {
    #[serde(default = "listed")]
    limit: u32,
}

fn listed() -> u32 {
    LISTED
}

async fn list(
    State(bench): State<Arc<Bench>>,
    listing: Result<Query<Listing>, QueryRejection>,
) -> Result<Json<JobList>, Problem> {
    let Query(Listing { limit }) = listing?;
    if !(1..=MOST_LISTED).contains(&limit) {
        let message = format!("`limit` is from 1 to {MOST_LISTED}");
        return Err(Problem::bad_request(message));
    }
    let (waiting, jobs) = bench.jobs.list(limit as usize);
    Ok(Json(JobList::new(waiting, jobs)))
}
