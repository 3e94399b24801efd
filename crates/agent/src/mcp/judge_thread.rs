//! Owns the judge, on a thread of its own: judging blocks, its processes end with the thread that started them, and two
//! judgements at a time would disturb each other's timing.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};

use serde_json::{Value, json};
use warpsmith_judge::{Cancellation, Judge};
use warpsmith_schema::{Failure, FailureKind, FailureReport, Task, ToolCall, Verdict};

use super::event::{CallResult, SessionEvent};
use crate::clip::clip;
use crate::settings::ModelSize;
use crate::tools::judge::{JudgeTools, SubmitMeasurement};
use crate::tools::{Effect, ToolAnswer};
use crate::{EpisodeJudge, Workspace, WorkspaceError};

pub(super) struct JudgeThread {
    pub(super) workspace: Workspace,
    pub(super) judge: Box<dyn Judge>,
    pub(super) task: Task,
    pub(super) cancellation: Cancellation,
}

impl JudgeThread {
    pub(super) fn work(mut self, calls: &Receiver<ToolCall>, answers: &Sender<SessionEvent>) {
        while let Ok(call) = calls.recv() {
            // Calls come one after another: a request to cancel was about the call before this one.
            self.cancellation.reset();
            let answered = catch_unwind(AssertUnwindSafe(|| self.answer(&call)));
            let result = answered.unwrap_or_else(|_| {
                // Nobody knows what state it is in.
                if let Ok(fresh) = self.judge.replacement() {
                    self.judge = fresh;
                }
                failed(Failure::panicked())
            });
            if answers.send(SessionEvent::Answered(result)).is_err() {
                return;
            }
        }
    }

    fn answer(&mut self, call: &ToolCall) -> CallResult {
        let mut tools = JudgeTools {
            workspace: &self.workspace,
            judge: &mut EpisodeJudge {
                judge: self.judge.as_mut(),
                task: &self.task,
            },
            submit: SubmitMeasurement::Afresh,
        };
        let answer = match tools.call(call) {
            Some(Ok(answer)) => answer,
            Some(Err(error)) => return failed(error.failure()),
            None => ToolAnswer::bad(format!("there is no tool `{}`", call.name)),
        };
        let mut result = CallResult {
            text: clip(&answer.text, ModelSize::Large.answer_characters()),
            structured: None,
            failed: answer.failed,
        };
        match answer.effect {
            Effect::Nothing => {}
            Effect::Checked(verdict) => result.structured = as_json(&verdict),
            Effect::Judged(verdict, _) => result.add_verdict(&verdict),
            Effect::Submitted(verdict, files) => {
                result.add_verdict(&verdict);
                if verdict.passed() {
                    result.add_copy(self.workspace.keep(&files));
                }
            }
        }
        result
    }
}

impl CallResult {
    fn add_verdict(&mut self, verdict: &Verdict) {
        self.structured = as_json(verdict);
        if let Some(evidence) = &verdict.evidence {
            let _ = write!(self.text, "\n\nevidence: {evidence}");
        }
    }

    /// A verdict stands, whether or not its files could be copied.
    fn add_copy(&mut self, copied: Result<PathBuf, WorkspaceError>) {
        match copied {
            Ok(place) => {
                let _ = write!(self.text, "\nresult: {}", place.display());
                if let Some(fields) = &mut self.structured {
                    fields["result"] = json!(place);
                }
            }
            Err(error) => {
                let _ = write!(
                    self.text,
                    "\nthe result could not be copied ({error}); the evidence has it"
                );
            }
        }
    }
}

fn as_json(verdict: &Verdict) -> Option<Value> {
    serde_json::to_value(verdict).ok()
}

/// Not a verdict, and it says so: the solution may be as good as any.
fn failed(failure: Failure) -> CallResult {
    let whose = match failure.kind {
        FailureKind::Task => "There is no verdict, because of the task",
        FailureKind::Config => "There is no verdict, because of how the server was started",
        FailureKind::Infrastructure => {
            "There is no verdict, because the judge or this machine failed"
        }
    };
    let mut text = format!("{whose}: {}", failure.message);
    if let Some(hint) = &failure.hint {
        let _ = write!(text, "\nhint: {hint}");
    }
    CallResult {
        text,
        structured: serde_json::to_value(FailureReport::new(failure)).ok(),
        failed: true,
    }
}
