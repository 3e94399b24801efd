//! The trusted process, typed: it owns the reference, the inputs and the answers, and compares.

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warpsmith_schema::{Precision, Target};

use crate::JudgeError;
use crate::channel::Asked;
use crate::process::PythonProcess;
use crate::runner::OutputWindow;
use crate::value::TensorLocation;

/// What `load` says about a task.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct LoadedTask {
    pub(crate) init: Vec<Value>,
    pub(crate) state: Vec<Value>,
    pub(crate) weights_bytes: u64,
    pub(crate) variants: Vec<InputVariant>,
    pub(crate) mutates_inputs: bool,
    pub(crate) screen: TaskScreen,
    #[serde(default)]
    pub(crate) excluded_share: f64,
    pub(crate) fp64: String,
    /// How much of the state dict is moved off its initial values.
    #[serde(default)]
    pub(crate) moved: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct InputVariant {
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Value,
    pub(crate) input_bytes: u64,
    pub(crate) output_bytes: u64,
    pub(crate) eager_us: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TaskScreen {
    pub(crate) degenerate_inputs: bool,
    /// Distributions that timed calls are drawn from.
    pub(crate) transforms: Vec<String>,
    /// Distributions that a candidate is checked on before it is timed.
    #[serde(default)]
    pub(crate) checks: Vec<String>,
}

/// Shared memory as the other processes attach to it.
#[derive(Debug)]
pub(crate) struct SharedRegions {
    pub(crate) slot_count: u32,
    pub(crate) slot_bytes: u64,
    pub(crate) arena_bytes: u64,
    /// CPU: slots, weights, arena, sample.
    pub(crate) fds: Vec<OwnedFd>,
    /// CUDA: IPC handles by name.
    pub(crate) handles: Value,
    /// CUDA: whether every process so far can hold back calls on the device; the one descriptor is then the gate's.
    pub(crate) gate: bool,
}

/// How a device's memory stands, in bytes.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(crate) struct DeviceMemory {
    /// By the trusted process.
    pub(crate) held: u64,
    /// By nobody.
    pub(crate) free: u64,
}

impl Comparison {
    /// Right, unchanged since the clock stopped, and the inputs as they were.
    pub(crate) fn holds(&self) -> bool {
        self.passed && self.sample_ok && self.inputs_ok
    }
}

/// One comparison.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) structure_ok: bool,
    pub(crate) shape_ok: bool,
    pub(crate) dtype_ok: bool,
    pub(crate) sample_ok: bool,
    pub(crate) inputs_ok: bool,
    pub(crate) passed: bool,
    pub(crate) class: Option<Precision>,
    pub(crate) share_within_tolerance: f64,
    pub(crate) candidate_error: Option<Value>,
    pub(crate) eager_error: Option<Value>,
    pub(crate) message: String,
    /// The distribution that was drawn from: plain where the one that was asked for does not fit.
    #[serde(default)]
    pub(crate) transform: String,
}

/// What became of mutants, in the order they were told.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct MutantReports {
    /// Whether the graph without a mistake passed.
    pub(crate) faithful: bool,
    pub(crate) message: String,
    pub(crate) complete: bool,
    pub(crate) trials: Vec<MutantReport>,
    pub(crate) seconds: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct MutantReport {
    pub(crate) killed_by: Option<String>,
    pub(crate) broken: Option<String>,
    pub(crate) near: f64,
    pub(crate) identical: bool,
}

/// One draw of inputs.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct InputDraw<'a> {
    pub(crate) slot: u32,
    pub(crate) seed: u64,
    pub(crate) transform: &'a str,
    /// Answered in float64 too.
    pub(crate) exact: bool,
}

/// A call that waits on the device until the trusted process lets it begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatedCall {
    pub(crate) slot: u32,
    pub(crate) variant: usize,
    /// No other call of these regions has it.
    pub(crate) number: u32,
}

/// One call's outputs, to be compared with the answer of its slot.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CallOutputs<'a> {
    pub(crate) slot: u32,
    pub(crate) outputs: &'a Value,
    pub(crate) sampled: &'a Value,
}

#[derive(Debug)]
pub(crate) struct TrustedProcess {
    process: PythonProcess,
    pub(crate) hello: Value,
}

const LONG: Duration = Duration::from_mins(5);

impl TrustedProcess {
    pub(crate) fn await_hello(mut process: PythonProcess) -> Result<Self, JudgeError> {
        let hello = process.await_hello()?;
        Ok(Self { process, hello })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn load(
        &mut self,
        source: &str,
        name: &str,
        target: Target,
        seed: u64,
    ) -> Result<LoadedTask, JudgeError> {
        let body = json!({ "source": source, "name": name, "target": target.name(), "seed": seed });
        self.typed("load", body)
    }

    pub(crate) fn regions(
        &mut self,
        slot_count: u32,
        slot_bytes: u64,
        arena_bytes: u64,
    ) -> Result<SharedRegions, JudgeError> {
        let body = json!({ "slot_count": slot_count, "slot_bytes": slot_bytes, "arena_bytes": arena_bytes });
        let (handles, fds) = self.process.request_with("regions", body, &[], LONG)?;
        Ok(SharedRegions {
            slot_count,
            slot_bytes,
            arena_bytes,
            gate: fds.len() == 1,
            fds,
            handles,
        })
    }

    /// Fresh weights; `veiled` ones are in place only when [`Trusted::reveal`] says so.
    pub(crate) fn weights(&mut self, seed: u64, veiled: bool) -> Result<(), JudgeError> {
        self.process
            .request("weights", json!({ "seed": seed, "veiled": veiled }), LONG)
            .map(drop)
    }

    /// Fresh inputs for several slots. `answer`: whether anybody will compare; a baseline's outputs are not. `veiled`: one
    /// slot's, kept back until [`Trusted::reveal`]. `window`: bytes of the arena that are overwritten first.
    pub(crate) fn draw(
        &mut self,
        variant: usize,
        (answer, veiled): (bool, bool),
        draws: &[InputDraw<'_>],
        window: Option<&OutputWindow>,
    ) -> Result<(), JudgeError> {
        let body = json!({
            "variant": variant, "answer": answer, "veiled": veiled, "draws": draws,
            "window": window.map(OutputWindow::range),
        });
        self.process.request("draw", body, LONG).map(drop)
    }

    /// CUDA: puts in place what was drawn veiled, where a slot is named; before that overwrites a window of the arena.
    pub(crate) fn reveal(
        &mut self,
        slot: Option<u32>,
        window: Option<&OutputWindow>,
    ) -> Result<(), JudgeError> {
        let body = json!({ "slot": slot, "window": window.map(OutputWindow::range) });
        self.process.request("reveal", body, LONG).map(drop)
    }

    /// CUDA: shuts the gate for a call to come.
    pub(crate) fn shut_gate(&mut self, number: u32) -> Result<(), JudgeError> {
        let body = json!({ "number": number });
        self.process.request("shut", body, LONG).map(drop)
    }

    /// CUDA: asks for [`TrustedProcess::opened_gate`], so that a runner can be asked to queue its call meanwhile.
    pub(crate) fn open_gate(
        &mut self,
        call: &GatedCall,
        limit: Duration,
    ) -> Result<Asked, JudgeError> {
        let body = json!({
            "slot": call.slot, "variant": call.variant, "number": call.number, "limit_s": limit.as_secs_f64(),
        });
        let asked = self.process.channel().ask("gated", body, &[]);
        asked.map_err(|error| self.process.describe_error("gated", error))
    }

    /// CUDA: what the device took from the opening of the gate to the end of the call, in microseconds, by this process's clock;
    /// `None` if it never ended.
    pub(crate) fn opened_gate(
        &mut self,
        asked: &Asked,
        limit: Duration,
    ) -> Result<Option<f64>, JudgeError> {
        let reply = self.process.channel().reply_to(asked, limit + LONG);
        let (reply, _) = reply.map_err(|error| self.process.describe_error("gated", error))?;
        Ok(reply["us"].as_f64())
    }

    /// How long the reference takes here and now, in microseconds, by this process's own clock: worth nothing by itself, but
    /// the same process takes the same time again unless the machine has changed.
    pub(crate) fn reference_us(&mut self, variant: usize) -> Result<f64, JudgeError> {
        #[derive(Deserialize)]
        struct Taken {
            us: f64,
        }
        let taken: Taken = self.typed("reference", json!({ "variant": variant }))?;
        Ok(taken.us)
    }

    /// Keeps it awake.
    pub(crate) fn ping(&mut self) -> Result<(), JudgeError> {
        self.process.request("ping", json!({}), LONG).map(drop)
    }

    /// CUDA: what a tiny kernel takes, in microseconds; much, if another process keeps the device busy.
    pub(crate) fn idle_us(&mut self) -> Result<f64, JudgeError> {
        let reply = self.process.request("idle", json!({}), LONG)?;
        Ok(reply["us"].as_f64().unwrap_or(0.0))
    }

    /// CUDA: reads a random sample of each slot's outputs; the end of a timed interval.
    pub(crate) fn sample(
        &mut self,
        slots: &[u32],
        places: &[Vec<TensorLocation>],
    ) -> Result<(), JudgeError> {
        let body = json!({ "groups": groups(slots, places) });
        self.process.request("sample", body, LONG).map(drop)
    }

    /// Compares calls, up to the first that does not pass.
    pub(crate) fn check(
        &mut self,
        calls: &[CallOutputs<'_>],
        exact: bool,
    ) -> Result<Vec<Comparison>, JudgeError> {
        #[derive(Deserialize)]
        struct Reports {
            reports: Vec<Comparison>,
        }
        let phase = if exact { "exact" } else { "timed" };
        let found: Reports = self.typed("check", json!({ "calls": calls, "phase": phase }))?;
        if found.reports.is_empty() && !calls.is_empty() {
            return Err(JudgeError::infrastructure(
                "protocol",
                "no call was compared",
            ));
        }
        Ok(found.reports)
    }

    /// Does what a comparison takes and tells nothing: a baseline is right, and the null module wrong.
    pub(crate) fn check_for_nothing(
        &mut self,
        calls: &[CallOutputs<'_>],
    ) -> Result<(), JudgeError> {
        let body = json!({ "calls": calls, "phase": "for_nothing" });
        self.process.request("check", body, LONG).map(drop)
    }

    /// Tries mutants of a graph on draws of these checks.
    pub(crate) fn mutants(
        &mut self,
        body: Value,
        limit: Duration,
    ) -> Result<MutantReports, JudgeError> {
        self.typed_within("mutants", body, limit)
    }

    /// CUDA: how the GPU runs at this moment; null where the driver does not say.
    pub(crate) fn clocks(&mut self, uuid: &str) -> Result<Value, JudgeError> {
        self.process
            .request("clocks", json!({ "uuid": uuid }), LONG)
    }

    /// CUDA: how the device's memory stands, after what was only kept for later was given back. Zeros without one.
    pub(crate) fn memory(&mut self) -> Result<DeviceMemory, JudgeError> {
        self.typed("memory", json!({}))
    }

    /// Lets go of the task and of all memory that it takes.
    pub(crate) fn unload(&mut self) -> Result<(), JudgeError> {
        self.process.request("forget", json!({}), LONG).map(drop)
    }

    /// Memory of the GPU; 0 without one.
    pub(crate) fn device_memory(&self) -> u64 {
        self.hello["total_memory"].as_u64().unwrap_or(0)
    }

    pub(crate) fn is_usable(&mut self) -> bool {
        self.process.is_usable()
    }

    fn typed<T: serde::de::DeserializeOwned>(
        &mut self,
        verb: &str,
        body: Value,
    ) -> Result<T, JudgeError> {
        self.typed_within(verb, body, LONG)
    }

    fn typed_within<T: serde::de::DeserializeOwned>(
        &mut self,
        verb: &str,
        body: Value,
        limit: Duration,
    ) -> Result<T, JudgeError> {
        let reply = self.process.request(verb, body, limit)?;
        serde_json::from_value(reply).map_err(|error| {
            JudgeError::infrastructure(
                "protocol",
                format!("the reply to `{verb}` is malformed: {error}"),
            )
        })
    }
}

/// Calls whose outputs have the same form, so that it is sent and read once.
#[derive(Serialize)]
struct SampleGroup {
    forms: Vec<Value>,
    slots: Vec<u32>,
    offsets: Vec<Vec<u64>>,
}

fn groups(slots: &[u32], places: &[Vec<TensorLocation>]) -> Vec<SampleGroup> {
    let form = |place: &TensorLocation| json!({ "dtype": place.dtype, "shape": place.shape, "stride": place.stride });
    let mut groups: Vec<SampleGroup> = Vec::new();
    for (&slot, places) in slots.iter().zip(places) {
        let forms: Vec<Value> = places.iter().map(form).collect();
        let offsets = places.iter().map(|place| place.offset).collect();
        match groups.iter_mut().find(|group| group.forms == forms) {
            Some(group) => {
                group.slots.push(slot);
                group.offsets.push(offsets);
            }
            None => groups.push(SampleGroup {
                forms,
                slots: vec![slot],
                offsets: vec![offsets],
            }),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_one_form_are_sent_once() {
        let place = |offset: u64, rows: i64| TensorLocation {
            dtype: "float32".to_owned(),
            shape: vec![rows],
            stride: vec![1],
            offset,
            overlaps: false,
        };
        let places = [vec![place(0, 4)], vec![place(64, 5)], vec![place(128, 4)]];
        let found = groups(&[7, 8, 9], &places);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].slots, [7, 9]);
        assert_eq!(found[0].offsets, [[0], [128]]);
        assert_eq!(found[1].forms[0]["shape"], json!([5]));
    }
}
