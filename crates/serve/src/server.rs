//! Everything that was asked for, behind one address.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
#[cfg(feature = "local-models")]
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::Uri;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use serde_json::json;
#[cfg(feature = "local-models")]
use tokio::sync::Semaphore;
#[cfg(feature = "local-models")]
use warpsmith_model::{GenerationThread, policy::ChatCodec};

use crate::connections::{LIMITS, answer, whole};
use crate::dashboard::{self, LookAtMachine};
use crate::guard::{Token, admit};
use crate::judging::{self, JudgeService};
use crate::openapi;
use crate::refusal::Refusal;

/// What is served, and to whom.
pub struct Offer {
    #[cfg(feature = "local-models")]
    pub model: Option<ServedModel>,
    pub judge: JudgeService,
    /// The folder whose runs are shown.
    pub runs: PathBuf,
    pub look_at_machine: LookAtMachine,
    /// What clients must show; without one, only those on this machine are answered.
    pub token: Option<Token>,
    /// Whether somebody wants the whole process to end.
    pub interrupted: fn() -> bool,
}

/// A language model, and what clients call it.
#[cfg(feature = "local-models")]
pub struct ServedModel {
    pub generation: GenerationThread,
    pub dialogue: ChatCodec,
    /// Tokens that a prompt and its reply can have together.
    pub context: usize,
    pub name: String,
}

const LOOK: Duration = Duration::from_millis(100);

/// Answers until it is interrupted. Replies and judgements under way then break off.
pub fn serve(listener: TcpListener, offer: Offer) -> io::Result<()> {
    let jobs = judging::start(offer.judge.judges)?;
    let app = judging::routes(jobs, offer.judge.tasks)
        .merge(dashboard::routes(offer.runs, offer.look_at_machine))
        .route("/openapi.json", get(|| async { Json(openapi::document()) }));
    #[cfg(feature = "local-models")]
    let (app, generation) = with_model(app, offer.model);
    #[cfg(feature = "local-models")]
    let replying = {
        let generation = generation.clone();
        move || generation.as_ref().map_or(0, GenerationThread::under_way)
    };
    #[cfg(not(feature = "local-models"))]
    let replying = || 0;
    let app = app
        .fallback(|uri: Uri| async move { Refusal::unknown_path(uri.path()) })
        .method_not_allowed_fallback(|| async { Refusal::method_not_allowed() })
        .layer(from_fn_with_state(LIMITS.body, whole))
        // Before anything of a request is kept.
        .layer(from_fn_with_state(offer.token, admit))
        // Whether it lives may be asked without a token.
        .route(
            "/healthz",
            get(move || async move { Json(json!({ "status": "ok", "requests": replying() })) }),
        );
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        #[cfg(feature = "local-models")]
        let died = generation_ended(generation);
        #[cfg(not(feature = "local-models"))]
        let died = std::future::pending::<()>();
        tokio::select! {
            () = answer(listener, app, LIMITS) => Ok(()),
            () = until(offer.interrupted) => Ok(()),
            () = died => Err(io::Error::other("the thread that generates has died")),
        }
    })
}

#[cfg(feature = "local-models")]
fn with_model(
    app: axum::Router,
    model: Option<ServedModel>,
) -> (axum::Router, Option<GenerationThread>) {
    use crate::completions::{MOST_REPLIES, Served, routes};

    let Some(model) = model else {
        return (app, None);
    };
    let generation = model.generation.clone();
    let served = Served {
        name: model.name,
        context: model.context,
        dialogue: model.dialogue,
        generation: model.generation,
        places: Arc::new(Semaphore::new(MOST_REPLIES)),
    };
    (app.merge(routes(served)), Some(generation))
}

#[cfg(feature = "local-models")]
async fn generation_ended(generation: Option<GenerationThread>) {
    match generation {
        Some(generation) => generation.ended().await,
        None => std::future::pending().await,
    }
}

async fn until(interrupted: fn() -> bool) {
    while !interrupted() {
        tokio::time::sleep(LOOK).await;
    }
}
