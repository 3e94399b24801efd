//! A process that runs modules on request: a candidate's worker, believed in nothing, or the baseline process. Both are
//! driven and timed by the very same code.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};
use warpsmith_sandbox as sandbox;
use warpsmith_schema::Target;

use crate::JudgeError;
use crate::channel::{Channel, ChannelError};
use crate::sample::OutputSampler;
use crate::trusted::{CallOutputs, GatedCall, SharedRegions, TrustedProcess};
use crate::value::{self, TensorLocation};

/// Why a call gave no outputs.
#[derive(Debug)]
pub(crate) enum CallFailure {
    /// What the module did wrong.
    Channel(ChannelError),
    /// The outputs are not what the reference returns.
    Structure(String),
    /// Outputs of one burst share memory.
    Shared(String),
    /// The judge's own failure.
    Judge(JudgeError),
}

impl From<ChannelError> for CallFailure {
    fn from(error: ChannelError) -> Self {
        Self::Channel(error)
    }
}

impl From<JudgeError> for CallFailure {
    fn from(error: JudgeError) -> Self {
        Self::Judge(error)
    }
}

/// Whoever runs modules: a candidate's worker or the baseline process.
pub(crate) struct ModuleRunner<'a> {
    pub(crate) channel: &'a mut Channel,
    pub(crate) pidfd: BorrowedFd<'a>,
    /// As this process numbers it, where that is known.
    pub(crate) pid: Option<u32>,
    /// Into what it runs, where that is of interest and possible.
    pub(crate) pc_sampler: Option<&'a mut sandbox::PcSampler>,
}

impl ModuleRunner<'_> {
    /// Stops all its threads. While inputs are drawn and outputs compared nothing of a candidate runs on a core, so
    /// nothing can be computed ahead or corrected afterwards. A process that is gone already is told by the next request.
    pub(crate) fn suspend(&self) {
        let _ = pidfd_send_signal(self.pidfd, Signal::STOP);
    }

    /// Lets it run again. Whatever it does from here on is on the clock, unless [`Runner::ping`] is timed by itself: inputs
    /// are in place, and an answer outside the clock would be the time to compute.
    pub(crate) fn resume(&self) {
        let _ = pidfd_send_signal(self.pidfd, Signal::CONT);
    }

    /// Waits for an answer; outputs handed over before may be given back.
    pub(crate) fn ping(&mut self) -> Result<(), CallFailure> {
        self.channel
            .request("release", json!({}), &[], Duration::from_secs(10))?;
        Ok(())
    }
}

/// Calls of a burst on a GPU that are sampled inside its interval, at most, where they are short.
const READ_CALLS: usize = 8;

/// The trusted read that ends an interval.
pub(crate) enum OutputReader<'a> {
    /// CPU: the supervisor reads shared memory itself.
    Host(&'a mut OutputSampler),
    /// CUDA: the trusted process gathers on the device.
    Device(&'a mut TrustedProcess),
}

/// The part of the arena in which the outputs of one interval must lie. It is overwritten before, so that nothing written
/// earlier is of use; what outlives a call lies elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputWindow {
    pub(crate) start: u64,
    /// Up to here the module allocates.
    pub(crate) allocated_to: u64,
    /// The rest is room for copies of outputs that did not fit, or lie elsewhere.
    pub(crate) end: u64,
}

impl OutputWindow {
    pub(crate) fn range(&self) -> [u64; 2] {
        [self.start, self.end]
    }
}

/// One timed (or untimed) request.
pub(crate) struct CallRequest<'a> {
    /// Whether the runner rests: it is then woken on the clock.
    pub(crate) suspended: bool,
    pub(crate) module: &'a str,
    pub(crate) label: &'a str,
    pub(crate) slots: &'a [u32],
    /// Structure every output must have.
    pub(crate) expected: &'a Value,
    /// Where outputs must lie; anywhere in the arena without one.
    pub(crate) window: Option<OutputWindow>,
    pub(crate) limit: Duration,
}

impl CallRequest<'_> {
    fn body(&self) -> Value {
        let window = self
            .window
            .map(|window| [window.start, window.allocated_to, window.end]);
        json!({ "module": self.module, "label": self.label, "slots": self.slots, "window": window })
    }

    /// The outputs that a reply names, and where they lie.
    fn outputs(
        &self,
        (mut reply, sent): (Value, Vec<OwnedFd>),
        arena_bytes: u64,
    ) -> Result<(Vec<Value>, Vec<Vec<TensorLocation>>), CallFailure> {
        if !sent.is_empty() {
            let text = "a call was answered with descriptors".to_owned();
            return Err(ChannelError::Protocol(text).into());
        }
        let outputs: Vec<Value> = match reply.get_mut("outputs").map(Value::take) {
            Some(Value::Array(outputs)) if outputs.len() == self.slots.len() => in_full(outputs),
            _ => {
                return Err(ChannelError::Protocol(
                    "a call was answered with the wrong number of outputs".to_owned(),
                )
                .into());
            }
        };
        let outputs: Vec<Value> = outputs
            .into_iter()
            .map(|output| value::in_order_of(self.expected, output))
            .collect();
        let [start, end] = self
            .window
            .map_or([0, arena_bytes], |window| window.range());
        let places = checked_places(&outputs, self.expected, start..end)?;
        Ok((outputs, places))
    }
}

/// What a call gave.
pub(crate) struct CallResult {
    /// From the request to the end of the trusted read.
    pub(crate) elapsed: Duration,
    /// One tree per slot.
    pub(crate) outputs: Vec<Value>,
    /// What to tell `check` about the sample of each slot.
    pub(crate) sampled: Vec<Value>,
}

impl CallResult {
    pub(crate) fn to_compare(&self, slots: &[u32]) -> Vec<CallOutputs<'_>> {
        let parts = slots.iter().zip(&self.outputs).zip(&self.sampled);
        parts
            .map(|((&slot, outputs), sampled)| CallOutputs {
                slot,
                outputs,
                sampled,
            })
            .collect()
    }
}

/// Runs `call`, with the clock here and the trusted read inside the interval.
pub(crate) fn call(
    runner: &mut ModuleRunner<'_>,
    reader: &mut OutputReader<'_>,
    arena_bytes: u64,
    call: &CallRequest<'_>,
) -> Result<CallResult, CallFailure> {
    let request = call.body();
    let started = Instant::now();
    if call.suspended {
        runner.resume();
    }
    let reply = runner.channel.request("call", request, &[], call.limit)?;
    let (outputs, places) = call.outputs(reply, arena_bytes)?;
    let sampled = match reader {
        OutputReader::Host(sampler) => sampler.sample_calls(&places),
        OutputReader::Device(trusted) => {
            let read = calls_to_read(call.slots.len(), call.suspended);
            let slots: Vec<u32> = read.iter().map(|&index| call.slots[index]).collect();
            let places: Vec<_> = read.iter().map(|&index| places[index].clone()).collect();
            trusted.sample(&slots, &places)?;
            (0..outputs.len())
                .map(|index| Value::Bool(read.contains(&index)))
                .collect()
        }
    };
    let elapsed = started.elapsed();
    Ok(CallResult {
        elapsed,
        outputs,
        sampled,
    })
}

/// Runs one call behind the gate: it is queued on the device, its inputs are put in place, and only then may it begin. The
/// trusted process times it, and samples its outputs the moment the device says that it is done.
pub(crate) fn call_behind_gate(
    runner: &mut ModuleRunner<'_>,
    trusted: &mut TrustedProcess,
    arena_bytes: u64,
    call: &CallRequest<'_>,
    gated: &GatedCall,
) -> Result<CallResult, CallFailure> {
    let mut request = call.body();
    request["gate"] = json!(gated.number);
    let opening = trusted.open_gate(gated, call.limit)?;
    let asked = runner.channel.ask("call", request, &[]);
    // Whatever became of the runner, the trusted process answers.
    let took = trusted.opened_gate(&opening, call.limit)?;
    let reply = runner.channel.reply_to(&asked?, call.limit)?;
    let (outputs, _) = call.outputs(reply, arena_bytes)?;
    let us = took.ok_or(ChannelError::TimedOut(call.limit))?;
    Ok(CallResult {
        elapsed: Duration::from_secs_f64(us / 1e6),
        sampled: vec![json!("gate"); outputs.len()],
        outputs,
    })
}

/// What a burst's calls returned, where only the first is told in full: after a tensor a number is one like it, at another
/// place. Elsewhere a number is what the module returned.
fn in_full(mut outputs: Vec<Value>) -> Vec<Value> {
    let Some((first, others)) = outputs.split_first_mut() else {
        return outputs;
    };
    if first.pointer("/tensor/offset").is_none() {
        return outputs;
    }
    for output in others.iter_mut().filter(|output| output.is_number()) {
        let mut whole = first.clone();
        if let Some(offset) = whole.pointer_mut("/tensor/offset") {
            *offset = output.take();
        }
        *output = whole;
    }
    outputs
}

/// Which calls of a burst are looked at before its clock stops: all where they are long. Of short ones the last, and others
/// drawn now that all are said to be done: reading every one cost more than a short kernel itself. Whoever leaves the work of
/// any eight for later is met in two bursts of three, and has gained an eighth.
fn calls_to_read(calls: usize, long: bool) -> Vec<usize> {
    if long {
        return (0..calls).collect();
    }
    let Some(last) = calls.checked_sub(1) else {
        return Vec::new();
    };
    let drawn = last.min(READ_CALLS - 1);
    let mut read = rand::seq::index::sample(&mut rand::rng(), last, drawn).into_vec();
    read.push(last);
    read
}

/// Every place a worker names lies where it should, has the right structure, and overlaps neither another nor itself.
fn checked_places(
    outputs: &[Value],
    expected: &Value,
    room: Range<u64>,
) -> Result<Vec<Vec<TensorLocation>>, CallFailure> {
    let mut all = Vec::new();
    let mut calls = Vec::new();
    let wanted = value::tensors(expected);
    for output in outputs {
        value::same_structure(expected, output).map_err(CallFailure::Structure)?;
        let places = value::tensors(output);
        // A place that cannot be read here is in no window and in no sample, whatever the trusted process makes of it.
        if places.len() != wanted.len() {
            let text = "a tensor's place cannot be read".to_owned();
            return Err(ChannelError::Protocol(text).into());
        }
        let inside = |place: &TensorLocation| {
            (place.range(room.end)).is_some_and(|(start, end)| start >= room.start || start == end)
        };
        if !places.iter().all(inside) {
            return Err(
                ChannelError::Protocol("an output lies outside the arena".to_owned()).into(),
            );
        }
        // Where the reference hands over such a view, so may a candidate.
        let mut pairs = places.iter().zip(&wanted);
        if pairs.any(|(place, wanted)| place.overlaps_itself() && !wanted.overlaps) {
            return Err(CallFailure::Shared(
                "elements of an output share memory with each other: write every element of a tensor of its own".to_owned(),
            ));
        }
        all.extend(places.iter().cloned());
        calls.push(places);
    }
    // Two outputs of one call may alias where the reference's do; two calls may not.
    let per_call = (all.len() / calls.len().max(1)).max(1);
    if value::overlap(&all, room.end, |place| place / per_call) {
        return Err(CallFailure::Shared(
            "the outputs of two calls share memory".to_owned(),
        ));
    }
    Ok(calls)
}

/// An `attach` request, and the descriptors that go with it.
pub(crate) fn attach(
    regions: &SharedRegions,
    weights_bytes: u64,
    target: Target,
    threads: usize,
) -> (Value, Vec<BorrowedFd<'_>>) {
    let body = json!({
        "target": target.name(), "threads": threads,
        "regions": {
            "slot_bytes": regions.slot_bytes, "slot_count": regions.slot_count,
            "weights_bytes": weights_bytes, "arena_bytes": regions.arena_bytes,
            "handles": regions.handles,
        },
    });
    // The sample region is the supervisor's and the trusted process's alone.
    let fds = regions.fds.iter().take(3).map(AsFd::as_fd).collect();
    (body, fds)
}

/// Whether whoever answered `attach` so can hold back calls on the device.
pub(crate) fn has_gate(attached: &Value) -> bool {
    attached["gate"].as_bool().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_a_tensor_like_the_first_at_another_place() {
        let at = |offset: u64| json!({ "tensor": { "dtype": "float32", "offset": offset, "shape": [2], "stride": [1] } });
        let told = in_full(vec![at(0), json!(64), at(128), json!(4096)]);
        assert_eq!(told, [at(0), at(64), at(128), at(4096)]);
        // A module that returns numbers.
        assert_eq!(in_full(vec![json!(7), json!(8)]), [json!(7), json!(8)]);
    }

    /// The trusted process reads fewer fields of a place than the supervisor does.
    #[test]
    fn a_place_that_cannot_be_read_is_refused() {
        let place = |more: Value| {
            let mut place =
                json!({ "dtype": "float32", "offset": 64, "shape": [2], "stride": [1] });
            place["overlaps"] = more;
            json!({ "tensor": place })
        };
        let expected =
            json!({ "tensor": { "dtype": "float32", "offset": 0, "shape": [2], "stride": [1] } });
        assert!(checked_places(&[place(json!(false))], &expected, 64..128).is_ok());
        let both = json!({ "tuple": [expected, expected] });
        for unreadable in [json!(5), Value::Null] {
            let outputs = [place(unreadable.clone())];
            assert!(checked_places(&outputs, &expected, 64..128).is_err());
            let outputs = [json!({ "tuple": [place(json!(false)), place(unreadable)] })];
            assert!(checked_places(&outputs, &both, 64..128).is_err());
        }
    }

    #[test]
    fn every_long_call_of_a_burst_is_read_and_of_short_ones_the_last_among_others() {
        assert_eq!(calls_to_read(13, true), (0..13).collect::<Vec<_>>());
        let read = calls_to_read(64, false);
        assert_eq!(read.len(), READ_CALLS);
        assert!(read.contains(&63));
        assert!(calls_to_read(0, false).is_empty());
    }
}
