//! The judge as other trainers ask for rewards, each in its own format.
//!
//! Their clients take whatever they do not understand for a zero or a penalty, and few wait as long as they are told to. So a
//! request is held until there is a place and then a verdict, what failed here is judged again, and what still has no verdict
//! is answered with an error that none of them reads as a reward.

mod kernelgym;
mod nemo_gym;
mod openrlhf;
mod slime;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use serde::Deserialize;
use tokio::time::{Instant, sleep};
use warpsmith_schema::{Failure, FailureKind, Reward, Task, Verdict};

use super::job::{GivenTask, JobStatus, Received};
use super::jobs::JobRefusal;
use super::routes::JudgeApi;
use crate::client::Client;
use crate::problem::Problem;

/// How long a request is held while the queue is full.
pub(super) const PLACE: Duration = Duration::from_mins(10);
/// How long it then waits for its verdict.
const PATIENCE: Duration = Duration::from_hours(1);
/// Until the queue is looked at again.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a submission is judged whose judgement failed for reasons of ours.
const TRIES: u32 = 3;

pub(super) use kernelgym::Evaluations;

pub(super) fn routes() -> Router<Arc<JudgeApi>> {
    Router::new()
        .route("/evaluate", post(kernelgym::evaluate))
        .route("/status/{id}", get(kernelgym::status))
        .route("/results/{id}", get(kernelgym::results))
        .route("/slime", post(slime::reward))
        .route("/openrlhf", post(openrlhf::rewards))
        .route("/get_reward", post(openrlhf::rewards))
        .route("/seed_session", post(nemo_gym::seed_session))
        .route("/verify", post(nemo_gym::verify))
}

/// Which of a verdict's rewards a client wants: `?reward=ladder`.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RewardKind {
    #[default]
    Robust,
    Raw,
    Composite,
    Ladder,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct RewardQuery {
    #[serde(default)]
    reward: RewardKind,
    /// Seconds between signs of life while there is no answer yet.
    heartbeat: Option<u32>,
}

impl RewardKind {
    fn of(self, reward: &Reward) -> f64 {
        match self {
            Self::Robust => reward.robust,
            Self::Raw => reward.raw.0,
            Self::Composite => reward.composite.0,
            Self::Ladder => reward.ladder,
        }
    }
}

/// The verdict on a reply to a task, which is named or brought in one text.
async fn judged_reply(
    api: &JudgeApi,
    client: &Client,
    task: &str,
    reply: &str,
) -> Result<Arc<Verdict>, Problem> {
    let task = api.tasks.find(&GivenTask::of_text(task))?;
    judged(api, client, task, Received::reply(reply)).await
}

/// The verdict, once there is one.
async fn judged(
    api: &JudgeApi,
    client: &Client,
    task: Arc<Task>,
    received: Received,
) -> Result<Arc<Verdict>, Problem> {
    for attempt in 1.. {
        let id = placed(api, client, task.clone(), received.clone()).await?;
        let _held = api.jobs.hold(client, &id);
        let job = api.jobs.wait(client, &id, PATIENCE).await;
        let job = job.ok_or_else(|| Problem::unknown_job(&id))?;
        match (job.status, job.verdict, job.failure) {
            (JobStatus::Judged, Some(verdict), _) => return Ok(verdict),
            (_, _, Some(failure)) if attempt == TRIES || !is_ours(&failure) => {
                return Err(Problem::unjudged(failure));
            }
            (_, _, Some(_)) => {}
            // Somebody took it back, or it took too long.
            _ => return Err(Problem::queue_full()),
        }
    }
    Err(Problem::failed())
}

fn is_ours(failure: &Failure) -> bool {
    failure.kind == FailureKind::Infrastructure
}

/// Waits for a place in the queue.
async fn placed(
    api: &JudgeApi,
    client: &Client,
    task: Arc<Task>,
    received: Received,
) -> Result<String, Problem> {
    let until = Instant::now() + PLACE;
    while api.jobs.takes(client, &task, &received) == Err(JobRefusal::Full)
        && Instant::now() < until
    {
        sleep(PAUSE).await;
    }
    let taken = api.jobs.submit(client, task, received);
    taken.map_err(|refusal| Problem::refused_job(refusal, ""))
}
