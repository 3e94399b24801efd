//! The trusted process, typed: it owns the reference, the inputs and the answers, and compares.

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use warpsmith_schema::{Precision, Target};

use crate::JudgeError;
use crate::process::Process;
use crate::value::TensorPlace;

/// What `load` says about a task.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Loaded {
    pub(crate) init: Vec<Value>,
    pub(crate) state: Vec<Value>,
    pub(crate) weights_bytes: u64,
    pub(crate) variants: Vec<Variant>,
    pub(crate) mutates_inputs: bool,
    pub(crate) screen: Screen,
    #[serde(default)]
    pub(crate) excluded_share: f64,
    pub(crate) fp64: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Variant {
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Value,
    pub(crate) input_bytes: u64,
    pub(crate) output_bytes: u64,
    pub(crate) eager_us: f64,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Screen {
    pub(crate) degenerate_inputs: bool,
    pub(crate) transforms: Vec<String>,
}

/// Shared memory as the other processes attach to it.
#[derive(Debug)]
pub(crate) struct Regions {
    pub(crate) slot_count: u32,
    pub(crate) slot_bytes: u64,
    pub(crate) arena_bytes: u64,
    /// CPU: slots, weights, arena, sample.
    pub(crate) fds: Vec<OwnedFd>,
    /// CUDA: IPC handles by name.
    pub(crate) handles: Value,
}

/// One comparison.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Check {
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
}

/// One draw of inputs.
#[derive(Debug, Clone)]
pub(crate) struct Draw<'a> {
    pub(crate) slot: u32,
    pub(crate) seed: u64,
    pub(crate) variant: usize,
    pub(crate) transform: &'a str,
    pub(crate) exact: bool,
    /// Whether anybody will compare; a baseline's outputs are not.
    pub(crate) answer: bool,
}

#[derive(Debug)]
pub(crate) struct Trusted {
    process: Process,
    pub(crate) hello: Value,
}

const LONG: Duration = Duration::from_mins(5);

impl Trusted {
    pub(crate) fn greet(mut process: Process) -> Result<Self, JudgeError> {
        let hello = process.greet()?;
        Ok(Self { process, hello })
    }

    pub(crate) fn load(
        &mut self,
        source: &str,
        name: &str,
        target: Target,
        seed: u64,
    ) -> Result<Loaded, JudgeError> {
        let body = json!({ "source": source, "name": name, "target": target.name(), "seed": seed });
        self.typed("load", body)
    }

    pub(crate) fn regions(
        &mut self,
        slot_count: u32,
        slot_bytes: u64,
        arena_bytes: u64,
    ) -> Result<Regions, JudgeError> {
        let body = json!({ "slot_count": slot_count, "slot_bytes": slot_bytes, "arena_bytes": arena_bytes });
        let (handles, fds) = self.process.request_with("regions", body, &[], LONG)?;
        Ok(Regions {
            slot_count,
            slot_bytes,
            arena_bytes,
            fds,
            handles,
        })
    }

    pub(crate) fn weights(&mut self, seed: u64) -> Result<(), JudgeError> {
        self.process
            .request("weights", json!({ "seed": seed }), LONG)
            .map(drop)
    }

    pub(crate) fn draw(&mut self, draw: &Draw<'_>) -> Result<(), JudgeError> {
        let body = json!({
            "slot": draw.slot, "seed": draw.seed, "variant": draw.variant,
            "transform": draw.transform, "exact": draw.exact, "answer": draw.answer,
        });
        self.process.request("draw", body, LONG).map(drop)
    }

    /// CUDA: reads a random sample of each slot's outputs; the end of a timed interval.
    pub(crate) fn sample(
        &mut self,
        slots: &[u32],
        places: &[Vec<TensorPlace>],
        seed: u64,
    ) -> Result<(), JudgeError> {
        let body = json!({ "slots": slots, "places": places, "seed": seed });
        self.process.request("sample", body, LONG).map(drop)
    }

    pub(crate) fn check(
        &mut self,
        slot: u32,
        outputs: &Value,
        sampled: &Value,
        exact: bool,
    ) -> Result<Check, JudgeError> {
        let phase = if exact { "exact" } else { "timed" };
        let body = json!({ "slot": slot, "outputs": outputs, "sampled": sampled, "phase": phase });
        self.typed("check", body)
    }

    /// Memory of the GPU; 0 without one.
    pub(crate) fn device_memory(&self) -> u64 {
        self.hello["total_memory"].as_u64().unwrap_or(0)
    }

    pub(crate) fn usable(&mut self) -> bool {
        self.process.usable()
    }

    fn typed<T: serde::de::DeserializeOwned>(
        &mut self,
        verb: &str,
        body: Value,
    ) -> Result<T, JudgeError> {
        let reply = self.process.request(verb, body, LONG)?;
        serde_json::from_value(reply).map_err(|error| {
            JudgeError::infrastructure(
                "protocol",
                format!("the reply to `{verb}` is malformed: {error}"),
            )
        })
    }
}
