//! What is found where, and the model behind it.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use warpsmith_model::GenerationThread;
use warpsmith_model::policy::ChatCodec;

use super::answer::now;
use super::chat;

/// The one model that is served.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) context: usize,
    pub(crate) dialogue: ChatCodec,
    pub(crate) generation: GenerationThread,
    /// For as many replies as may be under way or waiting; who finds no place is asked to come again.
    pub(crate) places: Arc<Semaphore>,
}

/// The engine takes as many at once as fit; the rest wait, and each holds its conversation.
pub(crate) const MOST_REPLIES: usize = 256;

/// A conversation that fills the largest context is a fraction of it.
const BODY_BYTES: usize = 8 << 20;

pub(crate) fn routes(served: Served) -> Router {
    let created = now();
    let models = move |State(served): State<Arc<Served>>| async move {
        Json(json!({ "object": "list", "data": [model(&served, created)] }))
    };
    Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/models", get(models))
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(Arc::new(served))
}

fn model(served: &Served, created: u64) -> Value {
    json!({
        "id": served.name, "object": "model", "created": created, "owned_by": "warpsmith",
        // vLLM's name for the context.
        "max_model_len": served.context,
    })
}
