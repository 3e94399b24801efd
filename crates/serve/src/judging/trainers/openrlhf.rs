//! `OpenRLHF`'s remote reward model: a batch of `{query[], prompts[], labels[]}` in, `{rewards, scores, extra_logs}` out.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::response::Response;
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use warpsmith_schema::Verdict;

use super::{RewardKind, RewardQuery, judged_reply};
use crate::client::Client;
use crate::judging::heartbeat::alive;
use crate::judging::routes::JudgeApi;
use crate::problem::Problem;

#[derive(Debug, Deserialize)]
pub(super) struct Batch {
    /// Each a prompt with its reply.
    query: Vec<String>,
    #[serde(default)]
    prompts: Vec<String>,
    /// The tasks: ids here, or sources.
    labels: Vec<String>,
}

impl Batch {
    fn reply(&self, place: usize) -> &str {
        let query = &self.query[place];
        let prompt = self.prompts.get(place);
        prompt
            .and_then(|prompt| query.strip_prefix(prompt.as_str()))
            .unwrap_or(query)
    }
}

pub(super) async fn rewards(
    State(api): State<Arc<JudgeApi>>,
    client: Client,
    query: Result<Query<RewardQuery>, QueryRejection>,
    batch: Result<Json<Batch>, JsonRejection>,
) -> Result<Response, Problem> {
    let (Query(asked), Json(batch)) = (query?, batch?);
    if batch.labels.len() != batch.query.len() {
        let message = "`labels` has a task for each `query`";
        return Err(Problem::bad_request(message));
    }
    alive(asked.heartbeat, async move {
        scored(&api, &client, asked.reward, &batch).await
    })
    .await
}

async fn scored(
    api: &JudgeApi,
    client: &Client,
    reward: RewardKind,
    batch: &Batch,
) -> Result<Value, Problem> {
    let all = (0..batch.query.len())
        .map(|place| judged_reply(api, client, &batch.labels[place], batch.reply(place)));
    // One without a verdict would be a reward nobody earned: the whole batch is asked for again, and what was judged is known.
    let verdicts: Result<Vec<Arc<Verdict>>, Problem> = join_all(all).await.into_iter().collect();
    let verdicts = verdicts?;
    let rewards: Vec<f64> = verdicts.iter().map(|one| reward.of(&one.reward)).collect();
    let share = |of: fn(&Verdict) -> bool| -> Vec<f64> {
        let all = verdicts.iter();
        all.map(|one| f64::from(u8::from(of(one)))).collect()
    };
    Ok(json!({
        "rewards": rewards, "scores": share(Verdict::passed),
        "extra_logs": { "compiled": share(|one| one.compiled), "passed": share(Verdict::passed) },
    }))
}
