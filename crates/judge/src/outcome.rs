//! From what happened to a status, a rule and a sentence.

use warpsmith_schema::{Rule, Status};

use crate::JudgeError;
use crate::channel::{ChannelError, Refusal};
use crate::runner::CallFailure;
use crate::session::Stopped;
use crate::trusted::Check;

/// A verdict against the candidate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fault {
    pub(crate) status: Status,
    pub(crate) rule: Option<Rule>,
    pub(crate) reason: String,
}

impl Fault {
    pub(crate) fn new(status: Status, rule: Option<Rule>, reason: impl Into<String>) -> Self {
        Self {
            status,
            rule,
            reason: reason.into(),
        }
    }
}

/// Sorts an early end: the candidate's fault, or ours.
pub(crate) fn sort(stopped: Stopped, phase: Phase) -> Result<Fault, JudgeError> {
    match stopped {
        Stopped::Ours(error) => Err(error),
        Stopped::Wrong(check) => Ok(wrong(&check, phase)),
        Stopped::Busy(waited) => Ok(Fault::new(
            Status::Cheating,
            Some(Rule::BackgroundWork),
            format!(
                "the device was busy while the candidate had no call to work on: a tiny kernel waited {waited:.0} us"
            ),
        )),
        Stopped::Call(failure) => match failure {
            CallFailure::Ours(error) => Err(error),
            CallFailure::Channel(error) => Ok(channel_fault(error)),
            CallFailure::Structure(difference) => Ok(Fault::new(
                Status::Mismatch,
                None,
                format!("the output has {difference}"),
            )),
            CallFailure::Shared(text) => {
                Ok(Fault::new(Status::Mismatch, Some(Rule::SharedOutput), text))
            }
        },
    }
}

/// When something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Verifying,
    Timing,
}

/// The verdict of a failed comparison.
pub(crate) fn wrong(check: &Check, phase: Phase) -> Fault {
    if !check.sample_ok {
        return Fault::new(
            Status::Cheating,
            Some(Rule::OutputChanged),
            "the output changed after it had been handed over: work was still going on when the clock stopped",
        );
    }
    if !check.inputs_ok {
        return Fault::new(
            Status::Cheating,
            Some(Rule::InputChanged),
            "the inputs were written to",
        );
    }
    let rule = (phase == Phase::Timing).then_some(Rule::WrongWhenTimed);
    Fault::new(Status::Mismatch, rule, check.message.clone())
}

pub(crate) fn channel_fault(error: ChannelError) -> Fault {
    match error {
        ChannelError::Closed => Fault::new(
            Status::Crashed,
            None,
            "the process ended while it was being asked",
        ),
        ChannelError::TimedOut(limit) => Fault::new(
            Status::TimedOut,
            None,
            format!("no answer within {:.0} s", limit.as_secs_f64()),
        ),
        ChannelError::Protocol(text) => Fault::new(Status::Cheating, Some(Rule::Protocol), text),
        ChannelError::Io(error) => Fault::new(
            Status::Crashed,
            None,
            format!("the process stopped listening: {error}"),
        ),
        ChannelError::Refused(refusal) => refusal_fault(refusal),
    }
}

fn refusal_fault(refusal: Refusal) -> Fault {
    let Refusal {
        code,
        message,
        operator,
        ..
    } = refusal;
    match code.as_str() {
        "trapped" => Fault::new(
            Status::Cheating,
            Some(Rule::ForbiddenOperator),
            format!(
                "`forward` computed with PyTorch's `{operator}` instead of a kernel of its own"
            ),
        ),
        "decoy" => Fault::new(
            Status::Cheating,
            Some(Rule::DecoyTouched),
            last_line(&message),
        ),
        "output" => Fault::new(Status::Mismatch, Some(Rule::OutputType), message),
        "state_dict" => Fault::new(Status::Crashed, Some(Rule::StateDict), message),
        "language" => Fault::new(
            Status::Rejected,
            Some(Rule::ForbiddenLanguage),
            last_line(&message),
        ),
        _ => Fault::new(Status::Crashed, None, message),
    }
}

fn last_line(text: &str) -> String {
    text.trim_end()
        .lines()
        .last()
        .unwrap_or_default()
        .to_owned()
}
