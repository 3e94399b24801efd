//! `KernelGYM`'s server, as clients of its kind ask it: hand in, look again and again, fetch.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use warpsmith_schema::{Failure, MODEL_NEW, Status, Verdict};
use warpsmith_tasks::submission_from_text;

use super::{PLACE, judged};
use crate::client::Client;
use crate::judging::job::{GivenTask, OwnTask, Received};
use crate::judging::routes::JudgeApi;
use crate::problem::Problem;

/// As many are kept, the oldest going first.
const MAX_KEPT: usize = 10_000;
/// Who hands in more at a time waits for a place.
const MAX_OPEN: usize = 2_000;

/// Two clients may give the same id.
type Key = (Client, String);

/// By the id that the client gave.
pub(crate) struct Evaluations {
    kept: Mutex<Kept>,
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct Kept {
    states: HashMap<Key, Evaluation>,
    order: VecDeque<Key>,
}

enum Evaluation {
    Open,
    Judged(Arc<Verdict>),
    Failed(Failure),
}

impl Default for Evaluations {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            places: Arc::new(Semaphore::new(MAX_OPEN)),
        }
    }
}

impl Evaluations {
    fn set(&self, client: &Client, id: &str, state: Evaluation) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (client.clone(), id.to_owned());
        if kept.states.insert(key.clone(), state).is_none() {
            kept.order.push_back(key);
        }
        while kept.order.len() > MAX_KEPT {
            if let Some(oldest) = kept.order.pop_front() {
                kept.states.remove(&oldest);
            }
        }
    }

    fn answer(&self, client: &Client, id: &str) -> Result<Value, Problem> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.states.get(&(client.clone(), id.to_owned())) {
            None => Err(Problem::unknown_job(id)),
            Some(Evaluation::Open) => Ok(json!({ "task_id": id, "status": "processing" })),
            Some(Evaluation::Judged(verdict)) => Ok(completed(id, verdict)),
            // `failed` would be paid with a penalty, and it was not the kernel's fault.
            Some(Evaluation::Failed(failure)) => Err(Problem::unjudged(failure.clone())),
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    task_id: String,
    reference_code: String,
    kernel_code: String,
    #[serde(default = "model")]
    entry_point: String,
}

fn model() -> String {
    "Model".to_owned()
}

impl Asked {
    /// With the names that we look for.
    fn task(&self) -> GivenTask {
        GivenTask::Own(OwnTask {
            source: renamed(&self.reference_code, &self.entry_point, "Model"),
            name: None,
        })
    }

    fn received(&self) -> Received {
        let entry = format!("{}New", self.entry_point);
        let text = renamed(&self.kernel_code, &entry, "ModelNew");
        let files = [(MODEL_NEW.to_owned(), text)];
        Received::of(submission_from_text(&files.into_iter().collect()))
    }

    fn complaint(&self) -> Option<&'static str> {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if self.task_id.is_empty() || self.task_id.len() > 100 {
            Some("`task_id` has 1 to 100 characters")
        } else if self.entry_point.is_empty() || !self.entry_point.chars().all(is_name) {
            Some("`entry_point` is the name of a class")
        } else {
            None
        }
    }
}

fn renamed(source: &str, class: &str, wanted: &str) -> String {
    if class == wanted {
        source.to_owned()
    } else {
        format!("{source}\n\n{wanted} = {class}\n")
    }
}

pub(super) async fn evaluate(
    State(api): State<Arc<JudgeApi>>,
    client: Client,
    asked: Result<Json<Asked>, JsonRejection>,
) -> Result<Json<Value>, Problem> {
    let Json(asked) = asked?;
    if let Some(complaint) = asked.complaint() {
        return Err(Problem::bad_request(complaint));
    }
    let task = api.tasks.find(&asked.task())?;
    let places = api.evaluations.places.clone();
    // Not all clients come again because a header says so.
    let place = timeout(PLACE, places.acquire_owned()).await;
    let Ok(Ok(place)) = place else {
        return Err(Problem::queue_full());
    };
    let id = asked.task_id.clone();
    api.evaluations.set(&client, &id, Evaluation::Open);
    let (ours, received) = (api.clone(), asked.received());
    tokio::spawn(async move {
        let state = match judged(&ours, &client, task, received).await {
            Ok(verdict) => Evaluation::Judged(verdict),
            Err(problem) => Evaluation::Failed(problem.into_failure()),
        };
        ours.evaluations.set(&client, &asked.task_id, state);
        drop(place);
    });
    Ok(Json(json!({ "task_id": id, "status": "pending" })))
}

pub(super) async fn status(
    State(api): State<Arc<JudgeApi>>,
    client: Client,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Problem> {
    let Path(id) = id?;
    let answer = api.evaluations.answer(&client, &id)?;
    Ok(Json(json!({ "task_id": id, "status": answer["status"] })))
}

pub(super) async fn results(
    State(api): State<Arc<JudgeApi>>,
    client: Client,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, Problem> {
    let Path(id) = id?;
    Ok(Json(api.evaluations.answer(&client, &id)?))
}

/// Times in milliseconds, as `KernelBench` has them.
fn completed(id: &str, verdict: &Verdict) -> Value {
    let times = verdict.times_us.as_ref();
    let milliseconds = |us: Option<f64>| us.map(|us| us / 1000.0);
    let speedup = verdict
        .matched_precision
        .map(|matched| matched.speedup.eager.0);
    let wrong = (!verdict.passed()).then(|| verdict.status.name());
    json!({
        "task_id": id, "status": "completed", "compiled": verdict.compiled, "correctness": verdict.correct,
        "decoy_kernel": verdict.status == Status::Cheating,
        "reference_runtime": milliseconds(times.map(|times| times.eager.0)),
        "kernel_runtime": milliseconds(times.map(|times| times.candidate.0)),
        "speedup": speedup.unwrap_or(0.0), "error_code": wrong, "error_message": verdict.reason,
        "metadata": { "device": verdict.device, "verdict": verdict },
    })
}

#[cfg(test)]
mod tests {
    use warpsmith_schema::{Profile, Rule, Target};

    use super::*;

    #[test]
    fn other_entry_points_get_our_names() {
        let asked = Asked {
            task_id: "1".to_owned(),
            reference_code: "class Net: ...".to_owned(),
            kernel_code: "class NetNew: ...".to_owned(),
            entry_point: "Net".to_owned(),
        };
        let files = asked.received().submission.files;
        let text = String::from_utf8(files[MODEL_NEW].clone()).unwrap();
        assert_eq!(text, "class NetNew: ...\n\nModelNew = NetNew\n");
        let GivenTask::Own(task) = asked.task() else {
            panic!("it brings its task");
        };
        assert_eq!(task.source, "class Net: ...\n\nModel = Net\n");
        let odd = Asked {
            entry_point: "x; y".to_owned(),
            ..asked
        };
        assert!(odd.complaint().is_some());
    }

    #[test]
    fn a_cheat_is_a_decoy_and_a_failure_of_ours_no_result() {
        let device = "cpu".to_owned();
        let mut verdict = Verdict::unreached(Status::Cheating, Target::Cpu, Profile::Rl, device);
        verdict.rule = Some(Rule::ForbiddenOperator);
        let (all, one) = (Evaluations::default(), Client::named("one"));
        all.set(&one, "a", Evaluation::Open);
        assert_eq!(all.answer(&one, "a").unwrap()["status"], "processing");
        all.set(&one, "a", Evaluation::Judged(Arc::new(verdict)));
        let answer = all.answer(&one, "a").unwrap();
        assert_eq!(answer["status"], "completed");
        assert_eq!(answer["decoy_kernel"], true);
        assert_eq!(answer["error_code"], "cheating");
        all.set(&one, "a", Evaluation::Failed(Failure::panicked()));
        assert!(all.answer(&one, "a").is_err());
        assert!(all.answer(&one, "b").is_err());
        let other = Client::named("other");
        all.set(&other, "b", Evaluation::Open);
        assert!(all.answer(&one, "b").is_err() && all.answer(&other, "b").is_ok());
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let (all, one) = (Evaluations::default(), Client::named("one"));
        for number in 0..=MAX_KEPT {
            all.set(&one, &number.to_string(), Evaluation::Open);
        }
        assert!(all.answer(&one, "0").is_err());
        assert!(all.answer(&one, "1").is_ok());
    }
}
