//! Owns the court, on a thread of its own: judging blocks, its processes end with the thread that started them, and two
//! judgements at a time would spoil each other's clock.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use warpsmith_schema::{Failure, FailureKind, FailureReport, ToolCall, Verdict};

use crate::clip::clip;
use crate::react::Size;
use crate::tools::judging::Judging;
use crate::tools::{Answer, Effect};
use crate::{Court, Refused, Workspace};

pub(super) struct Order {
    pub(super) call: ToolCall,
    pub(super) reply: oneshot::Sender<Told>,
}

/// What a client is told of a call.
pub(super) struct Told {
    pub(super) text: String,
    pub(super) structured: Option<Value>,
    pub(super) failed: bool,
}

pub(super) fn work(orders: &Receiver<Order>, workspace: &Workspace, mut court: Box<dyn Court>) {
    while let Ok(Order { call, reply }) = orders.recv() {
        let told = answer(&call, workspace, court.as_mut());
        // Nobody waits for a call that was cancelled.
        let _ = reply.send(told);
    }
}

fn answer(call: &ToolCall, workspace: &Workspace, court: &mut dyn Court) -> Told {
    if call.name == "submit" {
        // The luckiest of several measurements is no result.
        court.forget();
    }
    let answer = match (Judging { workspace, court }).call(call) {
        Some(Ok(answer)) => answer,
        Some(Err(error)) => return failure(error.failure()),
        None => Answer::bad(format!("there is no tool `{}`", call.name)),
    };
    let mut told = Told {
        text: clip(&answer.text, Size::Large.answer_characters()),
        structured: None,
        failed: answer.failed,
    };
    match answer.effect {
        Effect::Nothing => {}
        Effect::Rehearsed(verdict) => told.structured = as_json(&verdict),
        Effect::Judged(verdict, _) => told.add_verdict(&verdict),
        Effect::Submitted(verdict, files) => {
            told.add_verdict(&verdict);
            if verdict.passed() {
                told.add_result(workspace.keep(&files));
            }
        }
    }
    told
}

impl Told {
    fn add_verdict(&mut self, verdict: &Verdict) {
        self.structured = as_json(verdict);
        if let Some(evidence) = &verdict.evidence {
            let _ = write!(self.text, "\n\nevidence: {evidence}");
        }
    }

    /// A verdict stands, whether or not its files could be copied.
    fn add_result(&mut self, kept: Result<PathBuf, Refused>) {
        match kept {
            Ok(place) => {
                let _ = write!(self.text, "\nresult: {}", place.display());
                if let Some(fields) = &mut self.structured {
                    fields["result"] = json!(place);
                }
            }
            Err(refused) => {
                let _ = write!(
                    self.text,
                    "\nthe result could not be copied ({refused}); the evidence has it"
                );
            }
        }
    }
}

fn as_json(verdict: &Verdict) -> Option<Value> {
    serde_json::to_value(verdict).ok()
}

/// Not a verdict, and said so: the solution may be as good as any.
fn failure(failure: Failure) -> Told {
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
    Told {
        text,
        structured: serde_json::to_value(FailureReport::new(failure)).ok(),
        failed: true,
    }
}
