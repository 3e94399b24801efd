//! What every kind of episode gathers on its way to a trajectory.

use std::time::Instant;

use warpsmith_model::policy::{Policy, PolicyError, ReplyTokens};
use warpsmith_schema::{
    Attempt, Elision, Ending, FORMAT, Message, Mode, Target, Task, ToolCall, Trajectory, Usage,
    Verdict,
};

use crate::Files;
use crate::records::Records;

pub(crate) struct Episode {
    begun: Instant,
    pub(crate) messages: Vec<Message>,
    pub(crate) elisions: Vec<Elision>,
    pub(crate) attempts: Vec<Attempt>,
    usage: Usage,
    records: Records,
}

impl Episode {
    pub(crate) fn begin(messages: Vec<Message>) -> Self {
        Self {
            begun: Instant::now(),
            messages,
            elisions: Vec::new(),
            attempts: Vec::new(),
            usage: Usage::default(),
            records: Records::begin(),
        }
    }

    pub(crate) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Keeps what a policy said and what it cost; gives the message's index.
    pub(crate) fn said(
        &mut self,
        text: String,
        calls: Vec<ToolCall>,
        usage: Usage,
        tokens: Option<ReplyTokens>,
    ) -> u32 {
        let message = self.messages.len() as u32;
        self.messages.push(Message::Assistant { text, calls });
        self.usage += usage;
        self.records.add(message, tokens);
        message
    }

    /// Keeps a judged attempt under the message it came from.
    pub(crate) fn attempted(&mut self, message: u32, files: &Files, verdict: Verdict) {
        self.attempts.push(Attempt {
            message,
            files: files.clone(),
            verdict,
        });
    }

    pub(crate) fn end(
        self,
        policy: &dyn Policy,
        task: &Task,
        target: Target,
        mode: Mode,
        ending: Ending,
    ) -> Trajectory {
        Trajectory {
            format: FORMAT,
            id: identity(task, &self.messages),
            task: task.clone(),
            target,
            policy: policy.version().clone(),
            mode,
            best: best(&self.attempts),
            seconds: self.seconds(),
            messages: self.messages,
            elisions: self.elisions,
            attempts: self.attempts,
            ending,
            usage: self.usage,
            tokens: self.records.finish(),
        }
    }
}

/// What it means for an episode that a policy has no reply.
pub(crate) fn ending_of(error: &PolicyError) -> Ending {
    match error {
        PolicyError::ContextFull { .. } => Ending::ContextFull,
        error => Ending::PolicyFailed {
            message: with_causes(error),
        },
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// The quickest that passed.
fn best(attempts: &[Attempt]) -> Option<u32> {
    let time = |attempt: &Attempt| {
        let times = attempt.verdict.times_us.as_ref();
        times
            .filter(|_| attempt.verdict.passed())
            .map(|times| times.candidate.0)
    };
    let timed = attempts
        .iter()
        .enumerate()
        .filter_map(|(number, attempt)| Some((number, time(attempt)?)));
    let quickest = timed.min_by(|first, second| first.1.total_cmp(&second.1));
    quickest.map(|(number, _)| number as u32)
}

/// The same conversation about the same task has the same name, wherever it is read.
fn identity(task: &Task, messages: &[Message]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(task.source.as_bytes());
    for message in messages {
        hasher.update(&(message.text().len() as u64).to_le_bytes());
        hasher.update(message.text().as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}
