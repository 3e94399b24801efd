//! The judge as an environment of `OpenEnv`: `reset`, `step` and `state` over a `WebSocket`, an episode a connection.
//!
//! An action is a solution's files; its observation is the verdict and its reward the verdict's. An episode ends when the
//! client says so or its steps are used.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;
use warpsmith_schema::{Task, Verdict};

use super::TaskRefusal;
use super::job::{
    FilePath, GivenTask, JobStatus, KnownTask, OwnTask, Received, complaint_of, submission_of,
};
use super::routes::JudgeApi;
use crate::client::Client;
use crate::problem::Problem;

/// Solutions of one episode.
const STEPS: u32 = 8;
/// Longer than any judgement takes.
const PATIENCE: Duration = Duration::from_hours(1);
const MESSAGE_BYTES: usize = 8 << 20;
/// Who thinks longer about its next solution begins another episode.
const IDLE: Duration = Duration::from_mins(30);

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Asked {
    Reset {
        #[serde(default)]
        data: Reset,
    },
    Step {
        data: Step,
    },
    State,
    Close,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reset {
    seed: Option<u64>,
    episode_id: Option<String>,
    /// The id of one of the server's tasks.
    task: Option<String>,
    /// A module of the client's own, instead.
    source: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    files: BTreeMap<FilePath, String>,
    /// Whether this was the last.
    #[serde(default)]
    done: bool,
    #[serde(default, rename = "metadata")]
    _metadata: Value,
}

/// One connection's episode.
#[derive(Default)]
struct Episode {
    client: Client,
    id: Option<String>,
    task: Option<Arc<Task>>,
    steps: u32,
    done: bool,
    best_reward: Option<f64>,
    /// The job that is waited for.
    job: Option<String>,
}

/// A code of `OpenEnv`'s and what went wrong.
struct Wrong(&'static str, String);

pub(super) async fn connect(
    State(api): State<Arc<JudgeApi>>,
    client: Client,
    upgrade: WebSocketUpgrade,
) -> Response {
    upgrade
        .max_message_size(MESSAGE_BYTES)
        .on_upgrade(|socket| converse(api, client, socket, IDLE))
}

async fn converse(api: Arc<JudgeApi>, client: Client, mut socket: WebSocket, idle: Duration) {
    let mut episode = Episode {
        client,
        ..Episode::default()
    };
    // Until the client leaves, or has not asked for anything in a long while, or the server ends.
    loop {
        let message = tokio::select! {
            biased;
            message = timeout(idle, socket.recv()) => message,
            () = api.jobs.until_draining() => return,
        };
        let Ok(Some(Ok(message))) = message else {
            return;
        };
        let text = match message {
            Message::Text(text) => text,
            Message::Close(_) => return,
            Message::Binary(_) | Message::Ping(_) | Message::Pong(_) => continue,
        };
        let asked = match serde_json::from_str(&text) {
            Ok(Asked::Close) => return,
            Ok(asked) => Ok(asked),
            Err(error) => Err(unreadable(&error)),
        };
        let answer = match asked {
            Ok(asked) => {
                // Who leaves while a solution is judged needs no answer.
                let answer = tokio::select! {
                    answer = episode.answer(&api, asked) => Some(answer),
                    () = gone(&mut socket) => None,
                };
                let Some(answer) = answer else {
                    episode.forget(&api);
                    return;
                };
                answer
            }
            Err(wrong) => Err(wrong),
        };
        let answer = answer.unwrap_or_else(|Wrong(code, message)| {
            json!({ "type": "error", "data": { "code": code, "message": message } })
        });
        let sent = socket.send(Message::Text(answer.to_string().into())).await;
        if sent.is_err() {
            return;
        }
    }
}

/// Returns once the client has left. What it says meanwhile is not waited for by anybody: an answer is due first.
async fn gone(socket: &mut WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if matches!(message, Message::Close(_)) {
            return;
        }
    }
}

fn unreadable(error: &serde_json::Error) -> Wrong {
    let code = match error.classify() {
        serde_json::error::Category::Data => "VALIDATION_ERROR",
        _ => "INVALID_JSON",
    };
    Wrong(code, error.to_string())
}

impl Episode {
    async fn answer(&mut self, api: &JudgeApi, asked: Asked) -> Result<Value, Wrong> {
        match asked {
            Asked::Reset { data } => self.reset(api, data),
            Asked::Step { data } => self.step(api, data).await,
            Asked::State | Asked::Close => Ok(json!({ "type": "state", "data": self.state() })),
        }
    }

    fn reset(&mut self, api: &JudgeApi, asked: Reset) -> Result<Value, Wrong> {
        let tasks = &api.tasks.tasks;
        let wrong = |refusal: &TaskRefusal| Wrong("VALIDATION_ERROR", refusal.message());
        let task = match (asked.source, asked.task) {
            (None, None) => {
                let seed = asked.seed.unwrap_or_else(rand::random);
                let place = seed.checked_rem(tasks.len() as u64);
                let found = place.and_then(|place| tasks.get(place as usize));
                let message = "this server has no tasks; give a `source`";
                found
                    .cloned()
                    .ok_or_else(|| Wrong("VALIDATION_ERROR", message.to_owned()))?
            }
            (Some(source), name) => {
                let given = GivenTask::Own(OwnTask { source, name });
                api.tasks.find(&given).map_err(|refusal| wrong(&refusal))?
            }
            (None, Some(id)) => {
                let given = GivenTask::Known(KnownTask { id });
                api.tasks.find(&given).map_err(|refusal| wrong(&refusal))?
            }
        };
        let id = asked.episode_id;
        *self = Self {
            id: Some(id.unwrap_or_else(|| format!("{:032x}", rand::random::<u128>()))),
            task: Some(task.clone()),
            client: std::mem::take(&mut self.client),
            ..Self::default()
        };
        let observation = json!({
            "task": { "id": task.id, "name": task.name, "source": task.source },
            "instructions": api.tasks.instructions,
            "verdict": null, "steps_left": STEPS,
        });
        Ok(observed(&observation, None, false))
    }

    async fn step(&mut self, api: &JudgeApi, action: Step) -> Result<Value, Wrong> {
        let Some(task) = self.task.clone().filter(|_| !self.done) else {
            let message = "there is no episode under way; `reset` begins one";
            return Err(Wrong("SESSION_ERROR", message.to_owned()));
        };
        if let Some(complaint) = complaint_of(&action.files) {
            return Err(Wrong("VALIDATION_ERROR", complaint));
        }
        let submission = submission_of(action.files);
        let id = api
            .jobs
            .submit(&self.client, task, Received::of(submission))
            .map_err(|refusal| {
                let message = Problem::refused_job(refusal, "").into_failure().message;
                Wrong("CAPACITY_REACHED", message)
            })?;
        self.job = Some(id.clone());
        let job = api.jobs.wait(&self.client, &id, PATIENCE).await;
        if job.as_ref().is_none_or(|job| !job.status.is_over()) {
            self.forget(api);
        }
        self.job = None;
        let verdict = match job {
            Some(job) if job.status == JobStatus::Judged => job.verdict,
            Some(job) => {
                let failure = job.failure.map(|failure| failure.message);
                let message = failure.unwrap_or_else(|| "it was not judged".to_owned());
                // No step was used: it was not the solution's fault.
                return Err(Wrong("EXECUTION_ERROR", message));
            }
            None => None,
        };
        let Some(verdict) = verdict else {
            let message = "the job is gone".to_owned();
            return Err(Wrong("EXECUTION_ERROR", message));
        };
        self.steps += 1;
        self.done = action.done || self.steps >= STEPS;
        let reward = reward(&verdict);
        self.best_reward = Some(self.best_reward.map_or(reward, |best| best.max(reward)));
        let observation = json!({ "task": null, "instructions": null, "verdict": *verdict, "steps_left": STEPS - self.steps });
        Ok(observed(&observation, Some(reward), self.done))
    }

    /// Takes back what no judge has begun with.
    fn forget(&mut self, api: &JudgeApi) {
        if let Some(job) = self.job.take() {
            // One that is being judged is judged to its end.
            let _ = api.jobs.cancel(&self.client, &job);
        }
    }

    fn state(&self) -> Value {
        json!({
            "episode_id": self.id, "step_count": self.steps, "done": self.done, "best_reward": self.best_reward,
            "task": self.task.as_ref().map(|task| task.id.clone()),
        })
    }
}

fn reward(verdict: &Verdict) -> f64 {
    verdict.reward.robust
}

fn observed(observation: &Value, reward: Option<f64>, done: bool) -> Value {
    json!({ "type": "observation", "data": { "observation": observation, "reward": reward, "done": done } })
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;
    use crate::judging::{Jobs, ServedTasks};
    use axum::Router;
    use axum::routing::get;

    #[test]
    fn who_says_nothing_for_long_is_left() {
        let api = Arc::new(JudgeApi {
            jobs: Arc::new(Jobs::default()),
            tasks: ServedTasks {
                tasks: Vec::new(),
                client_tasks: false,
                instructions: String::new(),
            },
            evaluations: crate::judging::trainers::Evaluations::default(),
        });
        let idle = Duration::from_millis(300);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::spawn(move || {
            let connect = move |upgrade: WebSocketUpgrade| async move {
                upgrade.on_upgrade(move |socket| converse(api, Client::default(), socket, idle))
            };
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let app = Router::new().route("/ws", get(connect));
                axum::serve(listener, app).await.unwrap();
            });
        });
        let mut client = TcpStream::connect(address).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        let begun = Instant::now();
        let hello = "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        client.write_all(hello.as_bytes()).unwrap();
        let mut said = Vec::new();
        client.read_to_end(&mut said).unwrap();
        assert!(said.starts_with(b"HTTP/1.1 101"));
        assert!(begun.elapsed() >= idle);
    }
}
