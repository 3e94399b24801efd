//! Runs in a browser: what there is, how far it is, and every episode turn by turn.
//!
//! Pages are made on the server from the runs' own logs ([`shelf`]) and work without a script; the one there is looks again
//! every two seconds and replaces what has changed. The same numbers are to be had as JSON ([`api`]).

mod api;
mod compare;
mod compile_errors;
mod episode;
mod evidence;
mod examination;
mod frame;
mod kernels;
mod leaderboard;
mod machine;
mod now;
mod run;
mod runs;
mod shelf;
mod start;
mod step;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use maud::{Markup, html};
use serde_json::Value;

pub(crate) use api::{EpisodeList, RunList, RunSummary};
use examination::Examiner;
pub use examination::{Assembly, AttemptExamination, Examine, ExaminedKernel};
use shelf::Shelf;

/// What this machine is and does, as `doctor` says it.
pub type LookAtMachine = Arc<dyn Fn() -> Value + Send + Sync>;

pub(crate) struct Dashboard {
    shelf: Shelf,
    look_at_machine: LookAtMachine,
    examiner: Examiner,
}

pub(crate) fn routes(runs: PathBuf, look_at_machine: LookAtMachine, examine: Examine) -> Router {
    let dashboard = Arc::new(Dashboard {
        shelf: Shelf::new(runs),
        look_at_machine,
        examiner: Examiner::new(examine),
    });
    Router::new()
        .route("/", get(show_runs))
        .route("/runs/{run}", get(show_run))
        .route("/runs/{run}/episode", get(show_episode))
        .route("/runs/{run}/examine", post(begin_examination))
        .route("/runs/{run}/assembly", get(show_assembly))
        .route("/runs/{run}/start", get(show_start))
        .route("/runs/{run}/step", get(show_step))
        .route("/compare", get(show_comparison))
        .route("/leaderboard", get(show_leaderboard))
        .route("/machine", get(show_machine))
        .route("/live.js", get(script))
        // Browsers ask for it, and there is none.
        .route("/favicon.ico", get(|| async { StatusCode::NO_CONTENT }))
        .route("/v1/runs", get(api::runs))
        .route("/v1/runs/{run}", get(api::run))
        .route("/v1/runs/{run}/episodes", get(api::episodes))
        .route("/v1/runs/{run}/episode", get(api::episode))
        .with_state(dashboard)
}

type Board = State<Arc<Dashboard>>;

/// Reading logs takes as long as it takes; others are answered meanwhile.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

async fn page(work: impl FnOnce() -> Option<Markup> + Send + 'static) -> Response {
    let (status, body) = match apart(work).await {
        Some(Some(body)) => (StatusCode::OK, body),
        Some(None) => {
            let body =
                html! { p { "There is no such run or episode, or its log cannot be read." } };
            (StatusCode::NOT_FOUND, frame::page("Not found", None, &body))
        }
        None => {
            let body = html! { p { "This page could not be made." } };
            let page = frame::page("Failed", None, &body);
            (StatusCode::INTERNAL_SERVER_ERROR, page)
        }
    };
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, frame::POLICY),
        (CACHE_CONTROL, "no-store"),
    ];
    (status, headers, body.into_string()).into_response()
}

async fn script() -> impl IntoResponse {
    let headers = [(CONTENT_TYPE, "text/javascript; charset=utf-8")];
    (headers, include_str!("dashboard/live.js"))
}

async fn show_runs(State(board): Board, Query(asked): Query<runs::Asked>) -> Response {
    page(move || Some(runs::page(&board.shelf, &asked))).await
}

async fn show_step(
    State(board): Board,
    Path(name): Path<String>,
    Query(asked): Query<step::Asked>,
) -> Response {
    page(move || step::page(&board.shelf, &name, &asked)).await
}

async fn show_comparison(
    State(board): Board,
    Query(asked): Query<Vec<(String, String)>>,
) -> Response {
    let runs = compare::asked(asked);
    page(move || compare::page(&board.shelf, &runs)).await
}

async fn show_run(
    State(board): Board,
    Path(name): Path<String>,
    Query(asked): Query<run::Asked>,
) -> Response {
    page(move || run::page(&board.shelf, &name, &asked)).await
}

async fn show_episode(
    State(board): Board,
    Path(name): Path<String>,
    Query(asked): Query<episode::Asked>,
) -> Response {
    page(move || episode::page(&board.shelf, &board.examiner, &name, &asked)).await
}

/// Begins to measure an attempt, and goes back to where it was asked for.
async fn begin_examination(
    State(board): Board,
    Path(name): Path<String>,
    Query(asked): Query<episode::AskedAttempt>,
) -> Response {
    let back = asked.page(&name);
    let begun = apart(move || episode::examine(&board.shelf, &board.examiner, &name, &asked)).await;
    match begun.flatten() {
        Some(()) => Redirect::to(&back).into_response(),
        None => page(|| None).await,
    }
}

async fn show_start(State(board): Board, Path(name): Path<String>) -> Response {
    page(move || start::page(&board.shelf, &board.examiner, &name)).await
}

async fn show_assembly(
    State(board): Board,
    Path(name): Path<String>,
    Query(asked): Query<episode::AskedAttempt>,
) -> Response {
    page(move || episode::assembly(&board.shelf, &board.examiner, &name, &asked)).await
}

async fn show_leaderboard(State(board): Board) -> Response {
    page(move || Some(leaderboard::page(&board.shelf))).await
}

async fn show_machine(State(board): Board) -> Response {
    page(move || Some(machine::page(&board.shelf, &(board.look_at_machine)()))).await
}

#[cfg(test)]
mod tests;
