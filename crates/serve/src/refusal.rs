//! Why a request gets no completion, in OpenAI's form.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
#[cfg(feature = "local-models")]
use warpsmith_model::ModelError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    /// The field that is to blame.
    param: Option<&'static str>,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, code: Option<&'static str>, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: if status.is_server_error() {
                "server_error"
            } else {
                "invalid_request_error"
            },
            code,
            param: None,
            message: message.into(),
        }
    }

    pub(crate) fn unknown_path(path: &str) -> Self {
        let message = format!("there is nothing at `{path}`");
        Self::new(StatusCode::NOT_FOUND, Some("unknown_url"), message)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "this path is not asked with this method";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, None, message)
    }

    pub(crate) fn wrong_token() -> Self {
        let message = "the token is missing or wrong; send `Authorization: Bearer TOKEN`";
        Self::new(StatusCode::UNAUTHORIZED, Some("invalid_api_key"), message)
    }

    pub(crate) fn foreign_host(host: &str) -> Self {
        let message = format!("without a token only this machine is answered, and not as `{host}`");
        Self::new(StatusCode::FORBIDDEN, None, message)
    }

    pub(crate) fn no_host() -> Self {
        let message = "a request names the host it is for, once";
        Self::new(StatusCode::BAD_REQUEST, None, message)
    }

    pub(crate) fn too_slow(seconds: u64) -> Self {
        let message = format!("the request did not come to its end within {seconds} seconds");
        Self::new(StatusCode::REQUEST_TIMEOUT, None, message)
    }

    pub(crate) fn too_large(bytes: usize) -> Self {
        let message =
            format!("the request is larger than the limit of {bytes} bytes, or broke off");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, None, message)
    }

    pub(crate) fn body(&self) -> Value {
        json!({ "error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        } })
    }
}

/// What only a model has reason to say.
#[cfg(feature = "local-models")]
impl Refusal {
    /// A field that cannot be what it is.
    pub(crate) fn field(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param),
            ..Self::new(StatusCode::BAD_REQUEST, None, message)
        }
    }

    pub(crate) fn unknown_model(asked: &str, served: &str) -> Self {
        let message = format!("there is no model `{asked}` here; `{served}` is served");
        Self {
            param: Some("model"),
            ..Self::new(StatusCode::NOT_FOUND, Some("model_not_found"), message)
        }
    }

    /// As many as are served at a time are being served.
    pub(crate) fn busy() -> Self {
        let message = "too many replies are under way; send it again when `Retry-After` says so";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, None, message)
    }

    /// The reply will not come, or not to its end.
    pub(crate) fn broke_off(why: &str) -> Self {
        let message = format!("the reply was not completed: {why}");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, None, message)
    }
}

#[cfg(feature = "local-models")]
impl From<ModelError> for Refusal {
    fn from(error: ModelError) -> Self {
        match &error {
            ModelError::ContextFull { needed, context } => Self {
                param: Some("messages"),
                ..Self::new(
                    StatusCode::BAD_REQUEST,
                    Some("context_length_exceeded"),
                    format!(
                        "the conversation and one token of a reply are {needed} tokens; this model's maximum context length is {context}"
                    ),
                )
            },
            ModelError::Sampling { option, .. } => Self::field(
                if *option == "temperature" {
                    "temperature"
                } else {
                    "top_p"
                },
                error.to_string(),
            ),
            // The template's own words: roles that do not alternate, say.
            ModelError::Template { .. } | ModelError::NoTokens => {
                Self::field("messages", error.to_string())
            }
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, None, error.to_string()),
        }
    }
}

impl From<JsonRejection> for Refusal {
    fn from(rejection: JsonRejection) -> Self {
        let status = match rejection.status() {
            // JSON, but not a request: OpenAI makes no difference.
            StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
            other => other,
        };
        Self::new(status, None, rejection.body_text())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = HeaderValue::from_static("5");
            response.headers_mut().insert(RETRY_AFTER, seconds);
        }
        response
    }
}
