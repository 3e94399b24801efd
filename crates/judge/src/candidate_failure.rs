//! From what happened to a status, a rule and a sentence.

use warpsmith_schema::{Rule, Status};

use crate::JudgeError;
use crate::channel::{ChannelError, Refusal};
use crate::runner::CallFailure;
use crate::session::MeasurementError;
use crate::trusted::Comparison;

/// A verdict against the candidate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CandidateFailure {
    pub(crate) status: Status,
    pub(crate) rule: Option<Rule>,
    pub(crate) reason: String,
}

impl CandidateFailure {
    pub(crate) fn new(status: Status, rule: Option<Rule>, reason: impl Into<String>) -> Self {
        Self {
            status,
            rule,
            reason: reason.into(),
        }
    }
}

/// Sorts an early end: the candidate's fault, or ours.
pub(crate) fn attribute(
    stopped: MeasurementError,
    phase: Phase,
) -> Result<CandidateFailure, JudgeError> {
    match stopped {
        MeasurementError::Judge(error) => Err(error),
        MeasurementError::Comparison(check) => Ok(failed_comparison(&check, phase)),
        MeasurementError::Busy(waited) => Ok(CandidateFailure::new(
            Status::Cheating,
            Some(Rule::BackgroundWork),
            format!(
                "the device was busy while the candidate had no call to work on: a tiny kernel waited {waited:.0} us"
            ),
        )),
        MeasurementError::Call(failure) => match failure {
            CallFailure::Judge(error) => Err(error),
            CallFailure::Channel(error) => Ok(channel_failure(error)),
            CallFailure::Structure(difference) => Ok(CandidateFailure::new(
                Status::Mismatch,
                None,
                format!("the output has {difference}"),
            )),
            CallFailure::Shared(text) => Ok(CandidateFailure::new(
                Status::Mismatch,
                Some(Rule::SharedOutput),
                text,
            )),
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
pub(crate) fn failed_comparison(check: &Comparison, phase: Phase) -> CandidateFailure {
    if !check.sample_ok {
        return CandidateFailure::new(
            Status::Cheating,
            Some(Rule::OutputChanged),
            "the output changed after it had been handed over: work was still going on when the clock stopped",
        );
    }
    if !check.inputs_ok {
        return CandidateFailure::new(
            Status::Cheating,
            Some(Rule::InputChanged),
            "the inputs were written to",
        );
    }
    let rule = (phase == Phase::Timing).then_some(Rule::WrongWhenTimed);
    CandidateFailure::new(Status::Mismatch, rule, check.message.clone())
}

/// The same for a candidate that is right until weights are rewritten.
pub(crate) fn stale_weights(fault: CandidateFailure) -> CandidateFailure {
    let CandidateFailure { status, reason, .. } = fault;
    let reason = format!(
        "right with the weights it was loaded with, wrong once they were rewritten in place: copies, packed weights and numbers \
         taken from parameters in `__init__` or `load_state_dict` go stale, so work derived from parameters belongs in `forward` ({reason})"
    );
    CandidateFailure::new(status, Some(Rule::StaleWeights), reason)
}

pub(crate) fn channel_failure(error: ChannelError) -> CandidateFailure {
    match error {
        ChannelError::Closed => CandidateFailure::new(
            Status::Crashed,
            None,
            "the process ended while it was being asked",
        ),
        ChannelError::TimedOut(limit) => CandidateFailure::new(
            Status::TimedOut,
            None,
            format!("no answer within {:.0} s", limit.as_secs_f64()),
        ),
        ChannelError::Protocol(text) => {
            CandidateFailure::new(Status::Cheating, Some(Rule::Protocol), text)
        }
        ChannelError::Io(error) => CandidateFailure::new(
            Status::Crashed,
            None,
            format!("the process stopped listening: {error}"),
        ),
        ChannelError::Refused(refusal) => refusal_failure(refusal),
    }
}

fn refusal_failure(refusal: Refusal) -> CandidateFailure {
    let Refusal {
        code,
        message,
        operator,
        ..
    } = refusal;
    match code.as_str() {
        "trapped" => CandidateFailure::new(
            Status::Cheating,
            Some(Rule::ForbiddenOperator),
            format!(
                "`forward` computed with PyTorch's `{operator}` instead of a kernel of its own"
            ),
        ),
        "decoy" => CandidateFailure::new(
            Status::Cheating,
            Some(Rule::DecoyTouched),
            last_line(&message),
        ),
        "output" => CandidateFailure::new(Status::Mismatch, Some(Rule::OutputType), message),
        "state_dict" => CandidateFailure::new(Status::Crashed, Some(Rule::StateDict), message),
        "language" => CandidateFailure::new(
            Status::Rejected,
            Some(Rule::ForbiddenLanguage),
            last_line(&message),
        ),
        "form" => CandidateFailure::new(Status::Rejected, Some(Rule::Form), message),
        "compile" => CandidateFailure::new(Status::CompileFailed, None, message),
        _ => CandidateFailure::new(Status::Crashed, None, message),
    }
}

fn last_line(text: &str) -> String {
    text.trim_end()
        .lines()
        .last()
        .unwrap_or_default()
        .to_owned()
}
