//! Mixed rules: PyTorch computes what a candidate did not replace, and something must have been replaced.
//!
//! What a worker counts is its own word, good enough for a list. The decision adds what was seen of it from outside, where a
//! candidate is timed on a CPU.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use warpsmith_schema::{OperatorShare, Rule, Rules, Status, Target};

use super::stages::with_memory_limit;
use super::{JudgementState, Step, Supervisor};
use crate::JudgeError;
use crate::candidate_failure::{CandidateFailure, channel_failure};
use crate::channel::ChannelError;
use crate::runner::attach;
use crate::sample::GuardFlag;
use crate::session::{PLAIN, prepare_inputs};
use crate::trusted::InputDraw;
use crate::zygote::Worker;

/// A worker says what it likes, and a verdict keeps it.
const MOST_OPERATORS: usize = 512;
const NAME_BYTES: usize = 128;

const COUNT_LIMIT: Duration = Duration::from_mins(1);

/// What PyTorch computes in one call, by operator.
pub(crate) type OperatorCounts = BTreeMap<String, f64>;

/// What became of the reference's operators in a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Replacement {
    /// All of them are still there.
    Nothing,
    /// Some are gone and others have come: only from outside it can be told whether anything is the candidate's own.
    Exchanged,
    /// Some are gone, and nothing of PyTorch's has come for them.
    Some,
}

impl Replacement {
    fn of(reference: &OperatorCounts, candidate: &OperatorCounts) -> Self {
        let lacks = |of: &OperatorCounts, other: &OperatorCounts| {
            other
                .iter()
                .any(|(name, calls)| of.get(name).is_none_or(|here| here + 0.5 < *calls))
        };
        if reference.is_empty() {
            return Self::Some;
        }
        if !lacks(candidate, reference) {
            Self::Nothing
        } else if candidate.is_empty() || lacks(reference, candidate) {
            Self::Exchanged
        } else {
            Self::Some
        }
    }
}

pub(super) fn nothing_replaced(seen: &str) -> CandidateFailure {
    CandidateFailure::new(
        Status::Cheating,
        Some(Rule::NothingReplaced),
        format!("PyTorch computed everything: {seen}"),
    )
}

#[derive(Deserialize)]
struct Counted {
    operators: Vec<OperatorShare>,
}

impl Counted {
    fn read(reply: Value) -> Result<Self, ChannelError> {
        let counted: Self = serde_json::from_value(reply).map_err(|error| {
            ChannelError::Protocol(format!("the operators cannot be read: {error}"))
        })?;
        let long = |operator: &OperatorShare| operator.name.len() > NAME_BYTES;
        if counted.operators.len() > MOST_OPERATORS || counted.operators.iter().any(long) {
            let text = "more operators than PyTorch has, or longer names".to_owned();
            return Err(ChannelError::Protocol(text));
        }
        Ok(counted)
    }

    fn by_family(&self) -> OperatorCounts {
        let mut counts = OperatorCounts::new();
        for operator in &self.operators {
            *counts.entry(family(&operator.name)).or_default() += operator.calls;
        }
        counts
    }
}

/// Operators that do the same for one another: what takes the place of one in its family replaces nothing.
fn family(name: &str) -> String {
    let name = name.rsplit("::").next().unwrap_or(name);
    let plain = name.trim_start_matches('_').trim_end_matches('_');
    let is = |words: &[&str]| words.iter().any(|word| plain.contains(word));
    if is(&[
        "convolution",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose",
    ]) {
        "convolution".to_owned()
    } else if [
        "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "addbmm",
    ]
    .contains(&plain)
    {
        "product".to_owned()
    } else {
        plain.to_owned()
    }
}

impl Supervisor {
    /// What PyTorch computes in the reference. It runs in a worker of its own, before any of the candidate's code.
    pub(super) fn count_reference(&mut self, source: &str) -> Result<(), JudgeError> {
        let known = self
            .session
            .as_ref()
            .is_some_and(|session| session.operators.is_some());
        if self.config.rules == Rules::Own || known {
            return Ok(());
        }
        let failed = |error: ChannelError| {
            let message = format!("the reference's operators could not be counted: {error}");
            JudgeError::infrastructure("worker", message)
        };
        let mut worker = self.fork()?;
        let (target, threads) = (self.config.target, self.worker_limits.threads);
        let flag =
            GuardFlag::new().map_err(JudgeError::io("make the flag that arms the guards"))?;
        let (session, trusted) = self.session_and_trusted()?;
        if session.loaded.weights_bytes > 0 {
            trusted.weights(session.seed, false)?;
        }
        let draw = InputDraw {
            slot: 0,
            seed: session.seed,
            transform: PLAIN,
            exact: false,
        };
        trusted.draw(0, (false, false), &[draw], None)?;
        let (body, fds) = attach(
            &session.regions,
            session.loaded.weights_bytes,
            target,
            threads,
        );
        let channel = &mut worker.channel;
        channel
            .request("attach", body, &fds, COUNT_LIMIT)
            .map_err(failed)?;
        channel
            .request("watch", json!({}), &[flag.as_fd()], COUNT_LIMIT)
            .map_err(failed)?;
        let loaded = &session.loaded;
        let body = json!({ "source": source, "init": loaded.init, "state": loaded.state });
        channel
            .request("reference", body, &[], COUNT_LIMIT)
            .map_err(failed)?;
        let inputs = &loaded.variants[0].inputs;
        let staged = prepare_inputs(channel, inputs, loaded.mutates_inputs);
        staged.map_err(|failure| {
            JudgeError::infrastructure(
                "worker",
                format!("the reference got no inputs: {failure:?}"),
            )
        })?;
        flag.arm(Rules::Mixed);
        let counted = count(&mut worker, "eager").map_err(failed)?;
        session.operators = Some(counted.by_family());
        Ok(())
    }

    /// Lists what PyTorch computes in the candidate. Cheating where that is everything.
    pub(super) fn check_replaced(
        &mut self,
        worker: &mut Worker,
        attempt: &mut JudgementState,
    ) -> Step<()> {
        let Some(reference) = self
            .session
            .as_ref()
            .and_then(|session| session.operators.as_ref())
        else {
            return Step::Go(());
        };
        let counted = match count(worker, "candidate") {
            Ok(counted) => counted,
            Err(error) => {
                return Step::Stop(with_memory_limit(worker, channel_failure(error)));
            }
        };
        let replacement = Replacement::of(reference, &counted.by_family());
        let mut listed = counted.operators;
        listed.sort_by(|one, other| {
            other
                .share
                .partial_cmp(&one.share)
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        if self.config.target == Target::Cuda {
            for operator in &mut listed {
                operator.share = None;
            }
        }
        let shown = listed.iter().map(|operator| match operator.share {
            Some(share) => format!("`{}` ({:.0} %)", operator.name, 100.0 * share),
            None => format!("`{}`", operator.name),
        });
        let shown = shown.collect::<Vec<_>>().join(", ");
        if !shown.is_empty() {
            let notes = &mut attempt.verdict.notes;
            notes.push(format!("PyTorch computed a part of each call: {shown}"));
        }
        attempt.verdict.torch_operators = Some(listed);
        attempt.replacement = Some(replacement);
        if replacement == Replacement::Nothing {
            let names: Vec<&str> = reference.keys().map(String::as_str).collect();
            let seen = format!(
                "every operator of the reference is still there ({})",
                names.join(", ")
            );
            return Step::Stop(nothing_replaced(&seen));
        }
        Step::Go(())
    }
}

fn count(worker: &mut Worker, module: &str) -> Result<Counted, ChannelError> {
    let reply = worker.request(
        "operators",
        json!({ "module": module, "slot": 0 }),
        COUNT_LIMIT,
    )?;
    Counted::read(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(names: &[&str]) -> OperatorCounts {
        let operators = names.iter().map(|name| OperatorShare {
            name: format!("aten::{name}"),
            calls: 1.0,
            share: None,
        });
        Counted {
            operators: operators.collect(),
        }
        .by_family()
    }

    #[test]
    fn only_so_much_as_a_verdict_can_hold_is_read() {
        let told = |count: usize, name: &str| {
            let operator = json!({ "name": name, "calls": 1.0, "share": 0.5 });
            Counted::read(json!({ "operators": vec![operator; count] }))
        };
        assert_eq!(told(3, "aten::mm").unwrap().operators.len(), 3);
        assert!(told(60_000, "aten::mm").is_err());
        assert!(told(1, &"x".repeat(10_000)).is_err());
    }

    #[test]
    fn what_stays_of_a_reference_tells_whether_anything_was_replaced() {
        let reference = counts(&["addmm", "relu", "relu", "mkldnn_convolution"]);
        let of = |names: &[&str]| Replacement::of(&reference, &counts(names));
        // All that it had, in other words or in another order, with more or without.
        assert_eq!(
            of(&["mkldnn_convolution", "relu_", "addmm", "relu"]),
            Replacement::Nothing
        );
        assert_eq!(
            of(&["convolution_overrideable", "relu", "mm", "add", "relu"]),
            Replacement::Nothing
        );
        // Less, and nothing else.
        assert_eq!(
            of(&["addmm", "relu", "mkldnn_convolution"]),
            Replacement::Some
        );
        assert_eq!(of(&["mm"]), Replacement::Some);
        // Less of these, more of others; and the claim that there was none at all.
        assert_eq!(
            of(&["addmm", "mkldnn_convolution", "clamp_min"]),
            Replacement::Exchanged
        );
        assert_eq!(of(&[]), Replacement::Exchanged);
        // A reference that only moves data.
        assert_eq!(
            Replacement::of(&counts(&[]), &counts(&["mm"])),
            Replacement::Some
        );
    }
}
