//! What is found where.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::Uri;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use warpsmith_model::policy::Dialogue;

use crate::completions::answer::now;
use crate::completions::chat;
use crate::completions::generation::Generation;
use crate::completions::guard::{Token, admit};
use crate::completions::refusal::Refusal;

/// The one model that is served.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) context: usize,
    pub(crate) dialogue: Dialogue,
    pub(crate) generation: Generation,
}

/// A conversation that fills the largest context is a fraction of it.
const BODY_BYTES: usize = 8 << 20;

pub(crate) fn app(served: Served, token: Option<Token>) -> Router {
    let created = now();
    let models = move |State(served): State<Arc<Served>>| async move {
        Json(json!({ "object": "list", "data": [model(&served, created)] }))
    };
    Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/models", get(models))
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .fallback(|uri: Uri| async move { Refusal::unknown_path(uri.path()) })
        .method_not_allowed_fallback(|| async { Refusal::method_not_allowed() })
        .layer(from_fn_with_state(token, admit))
        // Whether it lives may be asked without a token.
        .route("/healthz", get(health))
        .with_state(Arc::new(served))
}

async fn health(State(served): State<Arc<Served>>) -> Json<Value> {
    Json(json!({ "status": "ok", "requests": served.generation.under_way() }))
}

fn model(served: &Served, created: u64) -> Value {
    json!({
        "id": served.name, "object": "model", "created": created, "owned_by": "warpsmith",
        // vLLM's name for the context.
        "max_model_len": served.context,
    })
}
