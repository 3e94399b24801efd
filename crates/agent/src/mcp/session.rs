//! The conversation with one client: five tools, and the skill as a prompt and as a resource.

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use warpsmith_judge::Cancellation;
use warpsmith_schema::{ToolCall, ToolSchema};

use super::KILL_EVERY;
use super::event::{CallResult, SessionEvent};
use super::protocol::{
    Caching, Incoming, Revision, RpcError, SERVER_FIELD, negotiate, notification, parse, response,
    supported,
};
use crate::tools::judge::NAMES;
use crate::tools::schemas;

const PROMPT: &str = "optimize";
const SKILL: &str = "warpsmith://skill";
const POLL: Duration = Duration::from_millis(100);
/// Between two notifications of progress: some clients give up on a server that is silent for long.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

pub(super) struct Session {
    /// Of the workspace.
    pub(super) root: PathBuf,
    /// To the judge's thread, which has one call at a time.
    pub(super) calls: Sender<ToolCall>,
    pub(super) skill: Arc<dyn Fn() -> String + Send + Sync>,
    pub(super) cancellation: Cancellation,
    pub(super) kill: fn(),
    pub(super) interrupted: fn() -> bool,
    pub(super) out: Box<dyn Write + Send>,
    pub(super) state: State,
}

#[derive(Default)]
pub(super) struct State {
    /// Whether the session began with a handshake.
    initialized: bool,
    running: Option<PendingCall>,
    waiting: VecDeque<PendingCall>,
}

/// A tool call that has no answer yet.
struct PendingCall {
    id: Value,
    call: ToolCall,
    revision: Revision,
    /// Where the client wants to hear that the call goes on.
    progress_token: Option<Value>,
    begun: Instant,
    last_progress: Option<Instant>,
    cancelled: bool,
}

#[derive(Deserialize)]
struct ToolParams {
    name: String,
    #[serde(default)]
    arguments: Value,
}

#[derive(Deserialize)]
struct PromptParams {
    name: String,
}

#[derive(Deserialize)]
struct ResourceParams {
    uri: String,
}

impl Session {
    /// Until the client leaves or the process is interrupted.
    pub(super) fn run(&mut self, inbox: &Receiver<SessionEvent>) {
        while !(self.interrupted)() {
            let cancelling = (self.state.running.as_ref()).is_some_and(|call| call.cancelled);
            let wait = if cancelling { KILL_EVERY } else { POLL };
            match inbox.recv_timeout(wait) {
                Ok(SessionEvent::Received(line)) => self.receive(&line),
                Ok(SessionEvent::Answered(result)) => self.finish_call(result),
                Ok(SessionEvent::Closed) | Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some(running) = &self.state.running
                && running.cancelled
            {
                self.cancellation.request();
                (self.kill)();
            }
            self.send_progress();
        }
    }

    /// A client that cannot be written to is gone, which reading from it will tell.
    fn send(&mut self, message: &Value) {
        let _ = writeln!(self.out, "{message}").and_then(|()| self.out.flush());
    }

    fn receive(&mut self, line: &str) {
        match parse(line) {
            Incoming::Request { id, method, params } => {
                if let Some(result) = self.answer(&id, &method, &params).transpose() {
                    self.send(&response(Some(id), result));
                }
            }
            Incoming::Notification { method, params } => {
                if method == "notifications/cancelled" {
                    self.cancel(&params["requestId"]);
                }
            }
            Incoming::Response => {}
            Incoming::Invalid => {
                self.send(&response(None, Err(RpcError::invalid_request())));
            }
        }
    }

    /// `None` for a tool call, which is answered when the judge is done with it.
    fn answer(
        &mut self,
        id: &Value,
        method: &str,
        params: &Value,
    ) -> Result<Option<Value>, RpcError> {
        match method {
            "ping" => return Ok(Some(json!({}))),
            "initialize" if !self.state.initialized => {
                self.state.initialized = true;
                return Ok(Some(self.initialize(params)));
            }
            _ => {}
        }
        let revision = if self.state.initialized {
            Revision::WithHandshake
        } else {
            Revision::of_request(params)?
        };
        let (result, caching) = match method {
            "tools/call" => {
                self.begin_call(id, params, revision)?;
                return Ok(None);
            }
            "server/discover" if !self.state.initialized => (self.discover(), Caching::Stated),
            "tools/list" => (list_tools(), Caching::Stated),
            "prompts/list" => (list_prompts(), Caching::Stated),
            "prompts/get" => (self.prompt(params)?, Caching::NotStated),
            "resources/list" => (list_resources(), Caching::Stated),
            "resources/templates/list" => (json!({ "resourceTemplates": [] }), Caching::Stated),
            "resources/read" => (self.resource(params, revision)?, Caching::Stated),
            "completion/complete" => (
                json!({ "completion": { "values": [] } }),
                Caching::NotStated,
            ),
            _ => return Err(RpcError::unknown_method(method)),
        };
        Ok(Some(revision.complete(result, caching)))
    }

    fn initialize(&self, params: &Value) -> Value {
        json!({
            "protocolVersion": negotiate(params), "capabilities": capabilities(), "serverInfo": server_info(),
            "instructions": self.instructions(),
        })
    }

    fn discover(&self) -> Value {
        json!({
            "supportedVersions": supported(), "capabilities": capabilities(), "instructions": self.instructions(),
            "_meta": { SERVER_FIELD: server_info() },
        })
    }

    fn instructions(&self) -> String {
        format!(
            "Judges a PyTorch module rewritten with kernels of its own: compiles, verifies and times it. {} The resource \
             `{SKILL}` says what is judged and how to work: read it first. A first judgement takes a minute or two.",
            self.place()
        )
    }

    fn place(&self) -> String {
        format!(
            "The workspace is `{}`; `model.py` lies there. Write `model_new.py` and `kernels/` beside it with your own tools: \
             every call looks at what lies there at that moment.",
            self.root.display()
        )
    }

    fn skill(&self) -> String {
        format!("{}\n{}\n", (self.skill)(), self.place())
    }

    fn prompt(&self, params: &Value) -> Result<Value, RpcError> {
        let PromptParams { name } = read("prompts/get", params)?;
        if name != PROMPT {
            let message = format!("there is no prompt `{name}`; there is `{PROMPT}`");
            return Err(RpcError::invalid_params(message));
        }
        let content = json!({ "type": "text", "text": self.skill() });
        Ok(json!({ "messages": [{ "role": "user", "content": content }] }))
    }

    fn resource(&self, params: &Value, revision: Revision) -> Result<Value, RpcError> {
        let ResourceParams { uri } = read("resources/read", params)?;
        if uri != SKILL {
            let message = format!("there is no resource `{uri}`; there is `{SKILL}`");
            return Err(RpcError::no_such_resource(message, revision));
        }
        let text = self.skill();
        Ok(json!({ "contents": [{ "uri": SKILL, "mimeType": "text/markdown", "text": text }] }))
    }

    fn begin_call(
        &mut self,
        id: &Value,
        params: &Value,
        revision: Revision,
    ) -> Result<(), RpcError> {
        let ToolParams { name, arguments } = read("tools/call", params)?;
        if !NAMES.contains(&name.as_str()) {
            let message = format!("there is no tool `{name}`; there are {}", NAMES.join(", "));
            return Err(RpcError::invalid_params(message));
        }
        let token = &params["_meta"]["progressToken"];
        self.state.waiting.push_back(PendingCall {
            id: id.clone(),
            call: ToolCall {
                id: id.to_string(),
                name,
                arguments,
            },
            revision,
            progress_token: (!token.is_null()).then(|| token.clone()),
            begun: Instant::now(),
            last_progress: None,
            cancelled: false,
        });
        self.start_next();
        Ok(())
    }

    /// Gives the judge its next call, if it has none.
    fn start_next(&mut self) {
        while self.state.running.is_none()
            && let Some(next) = self.state.waiting.pop_front()
        {
            if self.calls.send(next.call.clone()).is_ok() {
                self.state.running = Some(next);
            } else {
                let message = "the judge's thread has ended; start the server again";
                self.send(&response(Some(next.id), Err(RpcError::internal(message))));
            }
        }
    }

    fn finish_call(&mut self, result: CallResult) {
        // A cancelled call gets no answer.
        if let Some(call) = self.state.running.take()
            && !call.cancelled
        {
            let mut fields = json!({
                "content": [{ "type": "text", "text": result.text }], "isError": result.failed,
            });
            if let Some(structured) = result.structured {
                fields["structuredContent"] = structured;
            }
            let fields = call.revision.complete(fields, Caching::NotStated);
            self.send(&response(Some(call.id), Ok(fields)));
        }
        self.start_next();
    }

    fn cancel(&mut self, id: &Value) {
        self.state.waiting.retain(|call| call.id != *id);
        if let Some(running) = &mut self.state.running
            && running.id == *id
        {
            running.cancelled = true;
        }
    }

    /// Tells clients that asked for it that their calls go on.
    fn send_progress(&mut self) {
        let state = &mut self.state;
        let calls = state.running.iter_mut().chain(&mut state.waiting);
        let mut messages = Vec::new();
        for call in calls {
            let due = (call.last_progress).is_none_or(|last| last.elapsed() >= PROGRESS_EVERY);
            let Some(token) = call.progress_token.as_ref().filter(|_| due) else {
                continue;
            };
            call.last_progress = Some(Instant::now());
            let seconds = call.begun.elapsed().as_secs_f64();
            let message = format!("{}: at work", call.call.name);
            let params = json!({ "progressToken": token, "progress": seconds, "message": message });
            messages.push(notification("notifications/progress", &params));
        }
        for message in messages {
            self.send(&message);
        }
    }
}

fn read<'a, T: Deserialize<'a>>(method: &str, params: &'a Value) -> Result<T, RpcError> {
    let wrong = |error| RpcError::invalid_params(format!("the parameters of {method}: {error}"));
    T::deserialize(params).map_err(wrong)
}

fn capabilities() -> Value {
    json!({ "prompts": {}, "resources": {}, "tools": {} })
}

fn server_info() -> Value {
    json!({ "name": "warpsmith", "version": env!("CARGO_PKG_VERSION") })
}

fn list_tools() -> Value {
    let tools = schemas().into_iter();
    let tools: Vec<Value> = tools
        .filter(|tool| NAMES.contains(&tool.name.as_str()))
        .map(tool)
        .collect();
    json!({ "tools": tools })
}

fn tool(schema: ToolSchema) -> Value {
    let submits = schema.name == "submit";
    let description = if submits {
        "Judge the solution anew and, if it passes, keep it as a result.".to_owned()
    } else {
        schema.description
    };
    json!({
        "name": schema.name, "description": description, "inputSchema": schema.parameters,
        // Only what `submit` does is seen in the workspace afterwards, and none of them reaches beyond this machine.
        "annotations": { "readOnlyHint": !submits, "destructiveHint": false, "openWorldHint": false },
    })
}

fn list_prompts() -> Value {
    let description = "Write a faster module for the task in the workspace";
    json!({ "prompts": [{ "name": PROMPT, "description": description }] })
}

fn list_resources() -> Value {
    let description = "What is judged, and how to write a faster module";
    json!({ "resources": [{ "uri": SKILL, "name": "skill", "description": description, "mimeType": "text/markdown" }] })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// What was written, shared with the session.
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    struct Client {
        session: Session,
        output: Output,
        calls: Receiver<ToolCall>,
    }

    impl Client {
        fn new() -> Self {
            let (calls, received) = channel();
            let output = Output::default();
            Self {
                session: Session {
                    root: "/work".into(),
                    calls,
                    skill: Arc::new(|| "skill".to_owned()),
                    cancellation: Cancellation::default(),
                    kill: || {},
                    interrupted: || false,
                    out: Box::new(output.clone()),
                    state: State::default(),
                },
                output,
                calls: received,
            }
        }

        fn send(&mut self, message: &Value) {
            let mut message = message.clone();
            message["jsonrpc"] = json!("2.0");
            self.session.receive(&message.to_string());
        }

        /// All that was written since.
        fn answers(&mut self) -> Vec<Value> {
            let written = std::mem::take(&mut *self.output.0.lock().unwrap());
            let written = String::from_utf8(written).unwrap();
            let lines = written.lines();
            lines
                .map(|line| serde_json::from_str(line).unwrap())
                .collect()
        }

        fn ask(&mut self, message: &Value) -> Value {
            self.send(message);
            let mut answers = self.answers();
            assert_eq!(answers.len(), 1, "{answers:?}");
            answers.remove(0)
        }

        fn initialize(&mut self) {
            let params = json!({ "protocolVersion": "2025-11-25" });
            self.ask(&json!({ "id": 0, "method": "initialize", "params": params }));
        }

        fn judge_answers(&mut self, text: &str) {
            self.session.finish_call(CallResult {
                text: text.to_owned(),
                structured: None,
                failed: false,
            });
        }
    }

    fn call(id: u32, name: &str, token: &Value) -> Value {
        let params = json!({ "name": name, "_meta": { "progressToken": token } });
        json!({ "id": id, "method": "tools/call", "params": params })
    }

    #[test]
    fn whoever_shook_hands_gets_plain_results() {
        let mut client = Client::new();
        // Before that only a ping is answered, and what names its revision.
        let early = client.ask(&json!({ "id": 1, "method": "tools/list" }));
        assert_eq!(early["error"]["code"], -32602);
        client.ask(&json!({ "id": 2, "method": "ping" }));
        client.initialize();
        let listed = client.ask(&json!({ "id": 3, "method": "tools/list" }));
        assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 5);
        assert_eq!(listed["result"].get("resultType"), None);
        for (method, params, code) in [
            ("nonsense", json!({}), -32601),
            ("initialize", json!({}), -32601),
            ("tools/call", json!({ "name": "fly" }), -32602),
            ("tools/call", json!({ "nome": "fly" }), -32602),
            ("prompts/get", json!({ "name": "x" }), -32602),
            ("resources/read", json!({ "uri": "x" }), -32002),
        ] {
            let refused = client.ask(&json!({ "id": 4, "method": method, "params": params }));
            assert_eq!(refused["error"]["code"], code, "{refused}");
        }
        client.session.receive("{broken\n");
        assert_eq!(client.answers()[0]["error"]["code"], -32600);
    }

    #[test]
    fn a_call_waits_for_the_one_before_and_nobody_waits_for_a_call() {
        let mut client = Client::new();
        client.initialize();
        client.send(&call(1, "compile", &Value::Null));
        client.send(&call(2, "verify", &json!("token")));
        assert_eq!(client.calls.try_recv().unwrap().name, "compile");
        assert!(client.calls.try_recv().is_err());
        assert_eq!(client.ask(&json!({ "id": 3, "method": "ping" }))["id"], 3);
        client.session.send_progress();
        client.session.send_progress();
        let signs = client.answers();
        assert_eq!(signs.len(), 1);
        assert_eq!(signs[0]["params"]["message"], "verify: at work");
        client.judge_answers("It compiles.");
        let answer = client.answers().remove(0);
        assert_eq!(answer["id"], 1);
        assert_eq!(answer["result"]["content"][0]["text"], "It compiles.");
        assert_eq!(client.calls.try_recv().unwrap().name, "verify");
    }

    #[test]
    fn a_cancelled_call_gets_no_answer() {
        let mut client = Client::new();
        client.initialize();
        for id in 1..=3 {
            client.send(&call(id, "judge", &Value::Null));
        }
        for id in [1, 2] {
            let params = json!({ "requestId": id });
            client.send(&json!({ "method": "notifications/cancelled", "params": params }));
        }
        client.judge_answers("killed");
        assert!(client.answers().is_empty());
        client.judge_answers("passed");
        assert_eq!(client.answers()[0]["id"], 3);
    }
}
