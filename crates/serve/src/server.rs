//! Everything that was asked for, behind one address.

use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
#[cfg(feature = "local-models")]
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rustix::process::{getpriority_process, setpriority_process};
use serde_json::json;
#[cfg(feature = "local-models")]
use tokio::sync::Semaphore;
#[cfg(feature = "local-models")]
use warpsmith_model::{GenerationThread, policy::ChatCodec};
use warpsmith_schema::Target;

use crate::client::ApiKeys;
use crate::connections::{LIMITS, Limits, answer, whole};
use crate::dashboard::{self, Examine, LookAtMachine};
use crate::guard::admit;
use crate::judging::{self, JudgeService};
use crate::openapi;
use crate::problem::Problem;
use crate::refusal::Refusal;

/// What is served, and to whom.
pub struct Offer {
    #[cfg(feature = "local-models")]
    pub model: Option<ServedModel>,
    pub judge: JudgeService,
    /// The folder whose runs are shown.
    pub runs: PathBuf,
    pub look_at_machine: LookAtMachine,
    /// What measures an attempt of a run that is shown.
    pub examine: Examine,
    /// What clients must show; without any, only those on this machine are answered.
    pub keys: ApiKeys,
    /// Sockets that may be open at a time.
    pub sockets: usize,
    /// Whether somebody wants this to come to an end: what is being judged is judged, and nothing more.
    pub draining: fn() -> bool,
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
/// By so much the thread that answers comes before the rest of this process, on the scale of `nice`.
const AHEAD: i32 = 10;

/// Answers until it is interrupted, when replies and judgements under way break off, or drained, when they come to their end.
pub fn serve(listener: TcpListener, offer: Offer) -> io::Result<()> {
    let judging = judging::start(offer.judge.judges)?;
    let app = judging::routes(judging.jobs.clone(), offer.judge.tasks)
        .merge(dashboard::routes(
            offer.runs,
            offer.look_at_machine,
            offer.examine,
        ))
        .route("/openapi.json", get(|| async { Json(openapi::document()) }));
    #[cfg(feature = "local-models")]
    let serves_model = offer.model.is_some();
    #[cfg(not(feature = "local-models"))]
    let serves_model = false;
    #[cfg(feature = "local-models")]
    let (app, generation) = with_model(app, offer.model);
    #[cfg(feature = "local-models")]
    let replying = {
        let generation = generation.clone();
        move || generation.as_ref().map_or(0, GenerationThread::under_way)
    };
    #[cfg(not(feature = "local-models"))]
    let replying = || 0;
    let (jobs, target) = (judging.jobs.clone(), offer.judge.target);
    let app = app
        .fallback(move |uri: Uri| async move { nothing_there(uri.path(), serves_model) })
        .method_not_allowed_fallback(move |method: Method, uri: Uri| async move {
            wrong_method(&method, uri.path(), serves_model)
        })
        .layer(from_fn_with_state(LIMITS.body, whole))
        // Before anything of a request is kept.
        .layer(from_fn_with_state(offer.keys, admit))
        // Whether it lives may be asked without a token.
        .route(
            "/healthz",
            get(move || async move { health(jobs.is_draining(), replying(), target) }),
        );
    let limits = Limits {
        sockets: offer.sockets,
        ..LIMITS
    };
    listener.set_nonblocking(true)?;
    // Judges that keep every core busy must not keep who waits from being told. It takes little time, of this thread alone; whoever
    // may not raise it does without.
    let usual = getpriority_process(None).unwrap_or_default();
    let _ = setpriority_process(None, usual - AHEAD);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Those that read files for it are as the others.
        .on_thread_start(move || {
            let _ = setpriority_process(None, usual);
        })
        // Who waits for a verdict is woken by a judge's thread, and comes before every request that arrives meanwhile.
        .global_queue_interval(1)
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        #[cfg(feature = "local-models")]
        let died = generation_ended(generation);
        #[cfg(not(feature = "local-models"))]
        let died = std::future::pending::<()>();
        let drained = async {
            until(offer.draining).await;
            judging.drain().await;
        };
        tokio::select! {
            () = answer(listener, app, limits, drained) => Ok(()),
            () = until(offer.interrupted) => Ok(()),
            () = died => Err(io::Error::other("the thread that generates has died")),
        }
    })
}

/// Paths below `/v1/` that are this program's own; whatever else is asked there, a client of OpenAI asks.
const OWN: [&str; 3] = ["/v1/judge", "/v1/jobs", "/v1/runs"];

/// Whether a refusal is to be in OpenAI's form.
fn is_openai(path: &str, serves_model: bool) -> bool {
    let own = |prefix: &&str| {
        let rest = path.strip_prefix(*prefix);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    serves_model && path.starts_with("/v1/") && !OWN.iter().any(own)
}

fn nothing_there(path: &str, serves_model: bool) -> Response {
    if is_openai(path, serves_model) {
        return Refusal::unknown_path(path).into_response();
    }
    Problem::unknown_path(path).into_response()
}

fn wrong_method(method: &Method, path: &str, serves_model: bool) -> Response {
    if is_openai(path, serves_model) {
        return Refusal::method_not_allowed().into_response();
    }
    Problem::method_not_allowed(method.as_str(), path).into_response()
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

/// Who balances loads sends nothing more to a server that comes to its end.
fn health(draining: bool, requests: usize, target: Target) -> Response {
    let (code, status) = if draining {
        (StatusCode::SERVICE_UNAVAILABLE, "draining")
    } else {
        (StatusCode::OK, "ok")
    };
    let body = json!({ "status": status, "requests": requests, "target": target });
    (code, Json(body)).into_response()
}

async fn until(happened: fn() -> bool) {
    while !happened() {
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_form_of_the_interface_that_was_asked() {
        for (path, with_model, without) in [
            ("/v1/runs/none/more", false, false),
            ("/v1/judge", false, false),
            ("/v1/jobs/1/2", false, false),
            ("/none", false, false),
            ("/v1/engines", true, false),
            ("/v1/chat/completions", true, false),
            ("/v1/judges", true, false),
        ] {
            assert_eq!(is_openai(path, true), with_model, "{path}");
            assert_eq!(is_openai(path, false), without, "{path}");
        }
    }

    async fn body(response: Response) -> (u16, serde_json::Value) {
        let status = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 16).await;
        (status, serde_json::from_slice(&bytes.unwrap()).unwrap())
    }

    #[tokio::test]
    async fn what_is_not_there_is_refused_in_the_documented_form() {
        let (status, found) = body(nothing_there("/v1/runs/a/b", true)).await;
        assert_eq!(status, 404);
        assert_eq!(found["format"], 1);
        assert_eq!(found["failure"]["code"], "unknown_path");
        let (status, found) = body(wrong_method(&Method::DELETE, "/v1/judge", true)).await;
        assert_eq!(status, 405);
        assert_eq!(found["failure"]["code"], "method_not_allowed");
        let message = found["failure"]["message"].as_str().unwrap();
        assert!(
            message.contains("DELETE") && message.contains("/v1/judge"),
            "{message}"
        );
        let (status, found) = body(nothing_there("/v1/engines", true)).await;
        assert_eq!(
            (status, &found["error"]["code"]),
            (404, &"unknown_url".into())
        );
    }
}
