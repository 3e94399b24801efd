//! A resources server of `NeMo` Gym: `/seed_session`, and `/verify` with a response of OpenAI's Responses form.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::{RewardQuery, judged_reply};
use crate::client::Client;
use crate::judging::heartbeat::alive;
use crate::judging::routes::JudgeApi;
use crate::problem::Problem;

/// Nothing is kept between requests.
pub(super) async fn seed_session() -> Json<Value> {
    Json(json!({}))
}

/// The request comes back with its reward.
pub(super) async fn verify(
    State(api): State<Arc<JudgeApi>>,
    client: Client,
    query: Result<Query<RewardQuery>, QueryRejection>,
    request: Result<Json<Map<String, Value>>, JsonRejection>,
) -> Result<Response, Problem> {
    let (Query(asked), Json(mut request)) = (query?, request?);
    // A row of the data set has it beside its prompt, or among what is for the verifier.
    let task = request
        .get("task")
        .or_else(|| request.get("verifier_metadata")?.get("task"));
    let Some(task) = task.and_then(Value::as_str).map(str::to_owned) else {
        let message = "`task`, or `verifier_metadata.task`, names the task or is its source";
        return Err(Problem::bad_request(message));
    };
    let Some(reply) = request.get("response").and_then(last_text) else {
        return Err(Problem::bad_request("`response.output` has no message"));
    };
    let answer = async move {
        let verdict = judged_reply(&api, &client, &task, &reply).await?;
        let reward = asked.reward.of(&verdict.reward);
        request.insert("reward".to_owned(), json!(reward));
        request.insert("mask_sample".to_owned(), json!(false));
        request.insert("verdict".to_owned(), json!(*verdict));
        Ok(Value::Object(request))
    };
    alive(asked.heartbeat, answer).await
}

/// What the assistant said last. A response that only called tools or was cut off says nothing, which is a reply too.
fn last_text(response: &Value) -> Option<String> {
    let output = response.get("output")?.as_array()?;
    let is_message = |item: &&Value| item["type"] == "message" && item["role"] != "user";
    let Some(last) = output.iter().rfind(is_message) else {
        return Some(String::new());
    };
    Some(match &last["content"] {
        Value::String(text) => text.clone(),
        content => {
            let parts = content.as_array().into_iter().flatten();
            parts.filter_map(|part| part["text"].as_str()).collect()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_is_the_reply() {
        let message = |role: &str, text: &str| json!({ "type": "message", "role": role, "content": [{ "type": "output_text", "text": text }] });
        let response = json!({ "output": [
            { "type": "reasoning", "summary": [] }, message("assistant", "first"),
            { "type": "function_call", "name": "judge", "arguments": "{}" },
            message("assistant", "last"), message("user", "thanks"),
        ] });
        assert_eq!(last_text(&response).as_deref(), Some("last"));
        assert_eq!(last_text(&json!({ "output": [] })).as_deref(), Some(""));
        assert_eq!(last_text(&json!({ "text": "x" })), None);
    }
}
