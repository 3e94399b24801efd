//! slime's remote reward model: `{prompt, response, label}` in, a number out.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;

use super::{RewardQuery, judged_reply};
use crate::client::Client;
use crate::judging::heartbeat::alive;
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
    client: Client,
    query: Result<Query<RewardQuery>, QueryRejection>,
    sample: Result<Json<Sample>, JsonRejection>,
) -> Result<Response, Problem> {
    let (Query(asked), Json(sample)) = (query?, sample?);
    let answer = async move {
        let verdict = judged_reply(&api, &client, &sample.label, &sample.response).await?;
        Ok(json!(asked.reward.of(&verdict.reward)))
    };
    alive(asked.heartbeat, answer).await
}
