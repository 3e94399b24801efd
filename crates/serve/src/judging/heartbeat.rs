//! Signs of life for whoever waits long for an answer, where a proxy in between gives up on a silent connection.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use serde_json::Value;
use tokio::time::timeout;

use crate::problem::Problem;

const MAX_SECONDS: u32 = 60;

type Answer = Pin<Box<dyn Future<Output = Result<Value, Problem>> + Send>>;

/// The answer; where a client asks for signs of life, a newline each so many seconds until there is one.
///
/// JSON allows white space before a value. The first newline commits to status 200: what fails later breaks the answer off,
/// which no client takes for a value.
pub(super) async fn alive(
    seconds: Option<u32>,
    answer: impl Future<Output = Result<Value, Problem>> + Send + 'static,
) -> Result<Response, Problem> {
    let Some(seconds) = seconds else {
        return Ok(Json(answer.await?).into_response());
    };
    if !(1..=MAX_SECONDS).contains(&seconds) {
        let message = format!("`heartbeat` is from 1 to {MAX_SECONDS} seconds");
        return Err(Problem::bad_request(message));
    }
    every(Duration::from_secs(seconds.into()), Box::pin(answer)).await
}

async fn every(pause: Duration, mut answer: Answer) -> Result<Response, Problem> {
    if let Ok(answered) = timeout(pause, &mut answer).await {
        return Ok(Json(answered?).into_response());
    }
    let first = Bytes::from_static(b"\n");
    let pieces = unfold(
        (Some(answer), Some(first)),
        move |(answer, first)| async move {
            let mut answer = answer?;
            if let Some(first) = first {
                return Some((Ok(first), (Some(answer), None)));
            }
            Some(match timeout(pause, &mut answer).await {
                Err(_) => (Ok(Bytes::from_static(b"\n")), (Some(answer), None)),
                Ok(Ok(value)) => (Ok(value.to_string().into()), (None, None)),
                Ok(Err(problem)) => {
                    let failure = problem.into_failure();
                    (Err(io::Error::other(failure.message)), (None, None))
                }
            })
        },
    );
    let body = Body::from_stream(pieces);
    let kind = [(CONTENT_TYPE, "application/json")];
    Ok((kind, body).into_response())
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use serde_json::json;
    use tokio::time::sleep;

    use super::*;

    const PAUSE: Duration = Duration::from_millis(20);

    fn after(pauses: u32, answer: Result<Value, Problem>) -> Answer {
        Box::pin(async move {
            sleep(PAUSE * pauses).await;
            answer
        })
    }

    #[tokio::test]
    async fn a_late_answer_comes_behind_white_space() {
        let response = every(PAUSE, after(3, Ok(json!(1.5)))).await.unwrap();
        let text = to_bytes(response.into_body(), 100).await.unwrap();
        assert!(text.starts_with(b"\n\n"), "{text:?}");
        assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), json!(1.5));
    }

    #[tokio::test]
    async fn an_early_failure_has_its_status_and_a_late_one_breaks_off() {
        let early = every(PAUSE, after(0, Err(Problem::failed()))).await;
        assert_eq!(early.unwrap_err().into_response().status(), 500);
        let late = every(PAUSE, after(2, Err(Problem::failed())))
            .await
            .unwrap();
        assert_eq!(late.status(), 200);
        assert!(to_bytes(late.into_body(), 100).await.is_err());
    }

    #[tokio::test]
    async fn a_pause_has_a_length() {
        for seconds in [0, 61] {
            let found = alive(Some(seconds), after(0, Ok(json!(0)))).await;
            assert!(found.is_err(), "{seconds}");
        }
    }
}
