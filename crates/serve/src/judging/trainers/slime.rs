//! slime's remote reward model: `{prompt, response, label}` in, a number out.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use serde::Deserialize;

use super::{RewardQuery, judged_reply};
use crate::judging::routes::JudgeApi;
use crate::problem::Problem;

#[derive(Debug, Deserialize)]
pub(super) struct Sample {
    response: String,
    /// The task: its id here, or its source.
    label: String,
}

pub(super) async fn reward(
    State(api): State<Arc<JudgeApi>>,
    query: Result<Query<RewardQuery>, QueryRejection>,
    sample: Result<Json<Sample>, JsonRejection>,
) -> Result<Json<f64>, Problem> {
    let (Query(asked), Json(sample)) = (query?, sample?);
    let verdict = judged_reply(&api, &sample.label, &sample.response).await?;
    Ok(Json(asked.reward.of(&verdict.reward)))
}
