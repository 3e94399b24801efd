//! Why a request is not answered: the failure that the command line prints, with a status.

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection, QueryRejection};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use warpsmith_schema::{Failure, FailureKind, FailureReport};
use warpsmith_tasks::TaskError;

use crate::judging::{JobRefusal, drained_failure};

#[derive(Debug)]
pub(crate) struct Problem {
    status: StatusCode,
    failure: Failure,
}

impl Problem {
    fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            failure: Failure {
                kind: if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
                    FailureKind::Infrastructure
                } else {
                    FailureKind::Config
                },
                code: code.to_owned(),
                message: message.into(),
                hint: None,
            },
        }
    }

    fn hint(mut self, hint: &str) -> Self {
        self.failure.hint = Some(hint.to_owned());
        self
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "request", message)
    }

    pub(crate) fn into_failure(self) -> Failure {
        self.failure
    }

    pub(crate) fn unknown_job(id: &str) -> Self {
        let message = format!("there is no job `{id}`");
        Self::new(StatusCode::NOT_FOUND, "unknown_job", message)
            .hint("jobs of a server that was ended are gone; their evidence is not")
    }

    pub(crate) fn unknown_task(id: &str) -> Self {
        let message = format!("there is no task `{id}` here");
        Self::new(StatusCode::NOT_FOUND, "unknown_task", message)
            .hint("name one of the server's tasks, or give the task's `source` where clients may")
    }

    pub(crate) fn unreadable_task(error: &TaskError) -> Self {
        let mut problem = Self::new(StatusCode::NOT_FOUND, "no_task", error.to_string());
        problem.failure.hint = error.hint();
        problem
    }

    /// What a judge could not say, after it was asked again.
    pub(crate) fn unjudged(failure: Failure) -> Self {
        let status = match failure.kind {
            FailureKind::Infrastructure => StatusCode::SERVICE_UNAVAILABLE,
            FailureKind::Task | FailureKind::Config => StatusCode::UNPROCESSABLE_ENTITY,
        };
        Self { status, failure }
    }

    pub(crate) fn not_trusted(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, "client_tasks", message)
            .hint("name a task by its `id`, or start the server with `--client-tasks`")
    }

    pub(crate) fn unknown_path(path: &str) -> Self {
        let message = format!("there is nothing at `{path}`");
        Self::new(StatusCode::NOT_FOUND, "unknown_path", message)
            .hint("`/openapi.json` lists what can be asked")
    }

    pub(crate) fn method_not_allowed(method: &str, path: &str) -> Self {
        let message = format!("`{path}` is not asked with {method}");
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            message,
        )
        .hint("`/openapi.json` says how each path is asked")
    }

    pub(crate) fn unknown_run(name: &str) -> Self {
        let message = format!("there is no run `{name}`, or its log cannot be read");
        Self::new(StatusCode::NOT_FOUND, "unknown_run", message)
    }

    pub(crate) fn unknown_episode(task: &str, sample: u32) -> Self {
        let message = format!("there is no episode of `{task}`, sample {sample}, that has ended");
        Self::new(StatusCode::NOT_FOUND, "unknown_episode", message)
    }

    pub(crate) fn failed() -> Self {
        let message = "the answer could not be made";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "failed", message)
    }

    /// Why a job was not taken, or not cancelled.
    pub(crate) fn refused_job(refusal: JobRefusal, id: &str) -> Self {
        match refusal {
            JobRefusal::Full => Self::queue_full(),
            JobRefusal::Draining => Self::unjudged(drained_failure()),
            JobRefusal::Unknown => Self::unknown_job(id),
            JobRefusal::TooLate => Self::too_late(),
        }
    }

    fn too_late() -> Self {
        let message = "the job is being judged or over";
        Self::new(StatusCode::CONFLICT, "too_late", message)
    }

    pub(crate) fn queue_full() -> Self {
        let message = "too many submissions are waiting for a judge";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message)
            .hint("send it again when `Retry-After` says so")
    }

    pub(crate) fn too_often() -> Self {
        let message = "too many requests";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_often", message)
            .hint("wait for a job with `?wait=60` instead of asking again and again")
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        let status = match rejection.status() {
            // JSON, but not what was asked for: one kind of bad request is enough.
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            other => other,
        };
        Self::new(status, "request", rejection.body_text())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let again = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        let again = again.contains(&self.status);
        let mut response = (self.status, Json(FailureReport::new(self.failure))).into_response();
        if again {
            let seconds = HeaderValue::from_static("5");
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        response
    }
}
