//! Runs in a browser: what there is, how far it is, and every episode turn by turn.
//!
//! Pages are made on the server from the runs' own logs ([`shelf`]) and work without a script; the one there is looks again
//! every two seconds and replaces what has changed. The same numbers are to be had as JSON ([`api`]).

mod api;
mod episode;
mod frame;
mod leaderboard;
mod machine;
mod run;
mod runs;
mod shelf;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use maud::{Markup, html};
use serde_json::Value;

pub(crate) use api::{EpisodeList, RunList, RunSummary};
use shelf::Shelf;

/// What this machine is and does, as `doctor` says it.
pub type LookAtMachine = Arc<dyn Fn() -> Value + Send + Sync>;

pub(crate) struct Dashboard {
    shelf: Shelf,
    look_at_machine: LookAtMachine,
}

pub(crate) fn routes(runs: PathBuf, look_at_machine: LookAtMachine) -> Router {
    let dashboard = Arc::new(Dashboard {
        shelf: Shelf::new(runs),
        look_at_machine,
    });
    Router::new()
        .route("/", get(show_runs))
        .route("/runs/{run}", get(show_run))
        .route("/runs/{run}/episode", get(show_episode))
        .route("/leaderboard", get(show_leaderboard))
        .route("/machine", get(show_machine))
        .route("/live.js", get(script))
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

async fn show_runs(State(board): Board) -> Response {
    page(move || Some(runs::page(&board.shelf))).await
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
    page(move || episode::page(&board.shelf, &name, &asked)).await
}

async fn show_leaderboard(State(board): Board) -> Response {
    page(move || Some(leaderboard::page(&board.shelf))).await
}

async fn show_machine(State(board): Board) -> Response {
    page(move || Some(machine::page(&(board.look_at_machine)()))).await
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn write(folder: &Path, name: &str, text: &str) {
        let place = folder.join(name);
        fs_err::create_dir_all(place.parent().unwrap()).unwrap();
        fs_err::write(place, text).unwrap();
    }

    fn line(step: u32, second: u32, loss: f64) -> String {
        format!(
            "{{\"step\":{step},\"steps\":3,\"at\":\"2026-01-02T03:04:{second:02}Z\",\"loss\":{loss}}}\n"
        )
    }

    fn shelf_with(metrics: &str) -> (tempfile::TempDir, Shelf) {
        let runs = tempfile::tempdir().unwrap();
        let config = r#"{"verb":"train sft","model":"tiny"}"#;
        write(runs.path(), "a/config.json", config);
        write(runs.path(), "a/metrics.jsonl", metrics);
        let shelf = Shelf::new(runs.path().to_path_buf());
        (runs, shelf)
    }

    fn run_page(shelf: &Shelf, name: &str) -> String {
        let page = run::page(shelf, name, &run::Asked::default());
        page.unwrap().into_string()
    }

    #[test]
    fn a_run_that_trains_shows_its_curves_and_how_far_it_is() {
        let two = line(1, 1, 2.5) + &line(2, 3, 2.0);
        let (runs, shelf) = shelf_with(&two);
        let list = runs::page(&shelf).into_string();
        for words in [
            "train sft",
            "tiny",
            "2 of 3 steps",
            "unfinished",
            "2.0000 loss",
        ] {
            assert!(list.contains(words), "{words}: {list}");
        }
        let page = run_page(&shelf, "a");
        assert!(page.contains("id=\"training-loss\""), "{page}");
        assert!(!page.contains("Nothing has ended yet"), "{page}");

        // The last step makes it a finished run. A page looks again after half a second.
        write(runs.path(), "a/metrics.jsonl", &(two + &line(3, 5, 1.5)));
        std::thread::sleep(std::time::Duration::from_millis(600));
        let list = runs::page(&shelf).into_string();
        assert!(
            list.contains("3 of 3 steps, ") && list.contains(">done<"),
            "{list}"
        );
    }

    #[test]
    fn stages_of_a_pipeline_lie_over_each_other() {
        let runs = tempfile::tempdir().unwrap();
        write(runs.path(), "p/config.json", r#"{"verb":"train pipeline"}"#);
        for stage in ["sft", "rft"] {
            write(runs.path(), &format!("p/{stage}/config.json"), "{}");
            write(
                runs.path(),
                &format!("p/{stage}/metrics.jsonl"),
                &line(1, 1, 2.5),
            );
        }
        let shelf = Shelf::new(runs.path().to_path_buf());
        let page = run_page(&shelf, "p");
        assert!(
            page.contains("sft: 2.5 at 1") && page.contains("rft: 2.5 at 1"),
            "{page}"
        );
    }

    #[test]
    fn a_run_without_a_step_says_so() {
        let (_runs, shelf) = shelf_with("");
        assert!(run_page(&shelf, "a").contains("No step has ended yet."));
    }
}
