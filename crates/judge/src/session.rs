//! One task, loaded: shared memory is laid out, the reference answers, and anything that runs modules can be verified and
//! timed against it.

mod interval;
mod layout;
mod plan;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use warpsmith_schema::Target;

use self::interval::Interval;
use self::layout::{layout, open_sampler, output_window};
use self::plan::PlannedInterval;
pub(crate) use self::plan::{MeasurementPlan, OutputHandling, Regime};
use crate::JudgeError;
use crate::channel::{Channel, ChannelError};
use crate::contention::{self, ForeignWork};
use crate::cores::CoreSplit;
use crate::judge::replaced::OperatorCounts;
use crate::runner::{
    CallFailure, CallRequest, CallResult, ModuleRunner, OutputReader, OutputWindow, call,
    call_behind_gate,
};
use crate::sample::OutputSampler;
use crate::timing::TimingSamples;
use crate::trusted::{
    Comparison, DeviceMemory, GatedCall, InputDraw, InputVariant, LoadedTask, SharedRegions,
    TrustedProcess,
};

/// The task's own distribution.
pub(crate) const PLAIN: &str = "plain";

/// Calls between two deals.
const CALLS_PER_ROTATION: usize = 5;

/// A task in force.
pub(crate) struct Session {
    pub(crate) task_hash: String,
    target: Target,
    pub(crate) loaded: LoadedTask,
    pub(crate) regions: SharedRegions,
    /// Of the arena, for what a candidate keeps from call to call.
    pub(crate) kept_bytes: u64,
    /// What it takes of the device.
    pub(crate) memory: DeviceMemory,
    /// What PyTorch computes in the reference, once somebody asked.
    pub(crate) operators: Option<OperatorCounts>,
    sampler: Option<OutputSampler>,
    cores: Option<CoreSplit>,
    random: StdRng,
    /// Distributions of the next timed calls.
    transform_deck: Vec<String>,
    /// A slot with inputs, and the shape they have: what to warm up on.
    filled_slot: Option<(usize, u32)>,
    /// Of the last call behind the gate.
    gate_number: u32,
    /// The master seed, for the evidence: everything drawn follows from it.
    pub(crate) seed: u64,
}

/// Where outputs lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputPlacement {
    /// Anywhere: a baseline's, and a candidate's first calls of a shape, in which it may make what it keeps.
    Anywhere,
    /// In memory that was overwritten before.
    Overwritten,
}

/// A request of a module.
struct TimedCall<'a> {
    module: &'a str,
    /// Whether the runner rests: it is then woken on the clock.
    suspended: bool,
    window: Option<OutputWindow>,
}

/// Why a measurement ended early.
pub(crate) enum MeasurementError {
    Call(CallFailure),
    /// An output was wrong, or changed, or inputs were written to.
    Comparison(Box<Comparison>),
    /// The device had work while the candidate was stopped; microseconds a tiny kernel had to wait.
    Busy(f64),
    Judge(JudgeError),
}

impl From<CallFailure> for MeasurementError {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Judge(error) => Self::Judge(error),
            other => Self::Call(other),
        }
    }
}

impl From<JudgeError> for MeasurementError {
    fn from(error: JudgeError) -> Self {
        Self::Judge(error)
    }
}

/// Tells a measurement that it has seen enough.
pub(crate) type StopCondition<'a> = &'a dyn Fn(&TimingSamples) -> bool;

impl Session {
    pub(crate) fn open(
        trusted: &mut TrustedProcess,
        task: (&str, &str, String),
        target: Target,
        cores: Option<CoreSplit>,
        seed: u64,
    ) -> Result<Self, JudgeError> {
        let (name, source, task_hash) = task;
        let mut random = StdRng::seed_from_u64(seed);
        let loaded = trusted.load(source, name, target, random.random::<u32>().into())?;
        let laid_out = layout(&loaded, target, trusted.device_memory());
        let regions = trusted.regions(laid_out.slots, laid_out.slot_bytes, laid_out.arena_bytes)?;
        let sampler = match target {
            Target::Cpu => Some(open_sampler(&regions, random.random())?),
            Target::Cuda => None,
        };
        let mut session = Self {
            task_hash,
            target,
            loaded,
            regions,
            kept_bytes: laid_out.kept_bytes,
            memory: trusted.memory()?,
            operators: None,
            sampler,
            cores,
            random,
            transform_deck: Vec::new(),
            filled_slot: None,
            gate_number: 0,
            seed,
        };
        session.reseed(seed); // so that a replay draws the same whether or not the task was loaded already
        Ok(session)
    }

    /// New entropy for the next candidate, drawn after it was frozen.
    pub(crate) fn reseed(&mut self, seed: u64) {
        self.seed = seed;
        self.random = StdRng::seed_from_u64(seed);
        self.transform_deck.clear();
        self.filled_slot = None;
    }

    /// From here on draws follow from the seed alone, whether or not baselines were measured since: a replay finds them kept.
    pub(crate) fn begin_timing(&mut self) {
        let seed = self.seed;
        self.reseed(seed.wrapping_add(1));
        self.seed = seed;
    }

    pub(crate) fn variant(&self, index: usize) -> &InputVariant {
        &self.loaded.variants[index]
    }

    /// How long one call may take before it counts as hung.
    pub(crate) fn time_limit(&self, variant: usize, calls: usize) -> Duration {
        let eager = self.variant(variant).eager_us / 1e6;
        Duration::from_secs_f64(10.0 + 20.0 * eager * calls as f64)
    }

    pub(crate) fn new_weights(&mut self, trusted: &mut TrustedProcess) -> Result<(), JudgeError> {
        self.weights(trusted, false)
    }

    fn weights(&mut self, trusted: &mut TrustedProcess, veiled: bool) -> Result<(), JudgeError> {
        if self.loaded.weights_bytes > 0 {
            trusted.weights(self.random.random::<u32>().into(), veiled)?;
        }
        Ok(())
    }

    /// One checked call on fresh inputs: the unit of verification.
    pub(crate) fn verify_once(
        &mut self,
        trusted: &mut TrustedProcess,
        runner: &mut ModuleRunner<'_>,
        (variant, placement): (usize, OutputPlacement),
        transform: &str,
    ) -> Result<Comparison, MeasurementError> {
        let window = self.window(variant, 1, placement);
        let slot = self.random.random_range(0..self.regions.slot_count);
        let draw = InputDraw {
            slot,
            seed: self.random.random::<u32>().into(),
            transform,
            exact: true,
        };
        runner.suspend();
        trusted.draw(variant, (true, false), &[draw], window.as_ref())?;
        let timed = TimedCall {
            module: "candidate",
            suspended: true,
            window,
        };
        let called = self.call(trusted, runner, &timed, variant, &[slot])?;
        runner.suspend();
        let mut checks = trusted.check(&called.to_compare(&[slot]), true)?;
        runner.resume();
        Ok(checks.remove(0))
    }

    fn call(
        &mut self,
        trusted: &mut TrustedProcess,
        runner: &mut ModuleRunner<'_>,
        timed: &TimedCall<'_>,
        variant: usize,
        slots: &[u32],
    ) -> Result<CallResult, CallFailure> {
        let label = self.label();
        let limit = self.call_limit(timed.module, variant, slots.len());
        let expected = self.loaded.variants[variant].outputs.clone();
        let request = CallRequest {
            suspended: timed.suspended,
            module: timed.module,
            label,
            slots,
            expected: &expected,
            window: timed.window,
            limit,
        };
        let mut reader = match &mut self.sampler {
            Some(sampler) => OutputReader::Host(sampler),
            None => OutputReader::Device(trusted),
        };
        call(runner, &mut reader, self.regions.arena_bytes, &request)
    }

    /// One call behind the gate, which was shut for it.
    fn call_behind_gate(
        &mut self,
        trusted: &mut TrustedProcess,
        runner: &mut ModuleRunner<'_>,
        timed: &TimedCall<'_>,
        variant: usize,
        slot: u32,
    ) -> Result<CallResult, CallFailure> {
        let label = self.label();
        let request = CallRequest {
            suspended: timed.suspended,
            module: timed.module,
            label,
            slots: &[slot],
            expected: &self.loaded.variants[variant].outputs,
            window: timed.window,
            limit: self.call_limit(timed.module, variant, 1),
        };
        let gated = GatedCall {
            slot,
            variant,
            number: self.gate_number,
        };
        call_behind_gate(runner, trusted, self.regions.arena_bytes, &request, &gated)
    }

    /// Times one module. Every interval has fresh inputs at a random address; a candidate's outputs are all compared.
    pub(crate) fn measure(
        &mut self,
        trusted: &mut TrustedProcess,
        runner: &mut ModuleRunner<'_>,
        module: &str,
        variant: usize,
        plan: &MeasurementPlan,
        enough: StopCondition<'_>,
    ) -> Result<TimingSamples, MeasurementError> {
        let started = Instant::now();
        let mut raw = TimingSamples {
            warm: self.stages_inputs(variant),
            alike: self.bursts_alike(),
            ..TimingSamples::default()
        };
        let longest = self.longest_burst(variant);
        let cores = self.cores.as_ref().filter(|_| plan.rotate_cores);
        let dealt = cores.map(|cores| cores.rotate(runner.pid, trusted.id()));
        // Others wait for the device: a candidate that is slow in everything does not have it for ever. What the judge itself
        // takes for inputs and answers is not its fault.
        let patience = 6 * plan.budget + self.time_limit(variant, plan.single_calls);
        let mut own_us = 0.0;
        let watched = runner.pid.filter(|_| self.target == Target::Cpu);
        let others = watched.and_then(|pid| ForeignWork::watch(vec![pid, trusted.id()]));
        let mut planned: VecDeque<PlannedInterval> = self.intervals(plan, longest).into();
        let mut again = planned.len();
        let (mut disturbed, mut satisfied) = (Vec::new(), false);
        for step in 0.. {
            let Some(next) = planned.pop_front() else {
                break;
            };
            if own_us > patience.as_secs_f64() * 1e6 {
                return Err(CallFailure::from(ChannelError::TimedOut(patience)).into());
            }
            // Warm-ups aside, a third of the plan is the least an estimate can stand on.
            if step > 2 + plan.single_calls / 3 && started.elapsed() > plan.budget {
                break;
            }
            let interval = Interval {
                module,
                variant,
                calls: next.calls,
                kind: next.kind,
                outputs: plan.outputs,
                placement: match (plan.outputs, step) {
                    (OutputHandling::Compared, 2..) => OutputPlacement::Overwritten,
                    _ => OutputPlacement::Anywhere,
                },
            };
            if let Some(dealt) = dealt.as_ref().filter(|_| step % CALLS_PER_ROTATION == 0) {
                runner.suspend();
                dealt.next();
            }
            if next.sampled {
                if let Some(looks) = &mut runner.pc_sampler {
                    looks.start();
                }
                own_us += self.interval(trusted, runner, &interval)?.us;
                if let Some(looks) = &mut runner.pc_sampler {
                    looks.stop();
                    raw.sampled_calls += next.calls;
                }
                continue;
            }
            let elapsed = self.interval(trusted, runner, &interval)?;
            own_us += elapsed.us;
            if step < 2 {
                continue;
            }
            if elapsed.disturbed {
                disturbed.push((next, elapsed.us));
                if again > 0 {
                    again -= 1;
                    planned.push_back(next);
                }
                continue;
            }
            next.record(elapsed.us, &mut raw);
            satisfied = enough(&raw);
            if satisfied {
                break;
            }
        }
        raw.disturbed = disturbed.len() as u32;
        // Threads that outnumber the cores wait for each other in every interval, and then all of them count.
        let few = raw.bursts.len() < plan.bursts.len() / 2
            || raw.singles.len() < plan.single_calls.div_ceil(3);
        if few && !satisfied {
            for (interval, us) in disturbed {
                interval.record(us, &mut raw);
            }
            let cores = others.as_ref().and_then(ForeignWork::cores);
            raw.crowded_by =
                cores.filter(|cores| raw.disturbed > 0 && contention::is_crowded(*cores));
        }
        runner.resume();
        Ok(raw)
    }

    fn window(
        &self,
        variant: usize,
        calls: u32,
        placement: OutputPlacement,
    ) -> Option<OutputWindow> {
        let arena = self.kept_bytes..self.regions.arena_bytes;
        (placement == OutputPlacement::Overwritten)
            .then(|| output_window(self.variant(variant), calls, arena))
    }

    fn label(&mut self) -> &'static str {
        ["timing", "check"]
            .choose(&mut self.random)
            .unwrap_or(&"check")
    }

    fn call_limit(&self, module: &str, variant: usize, calls: usize) -> Duration {
        if module == "compile" {
            Duration::from_mins(10)
        } else {
            self.time_limit(variant, calls)
        }
    }
}

/// Tells a runner which inputs to expect.
pub(crate) fn prepare_inputs(
    channel: &mut Channel,
    inputs: &[Value],
    stage: bool,
) -> Result<(), CallFailure> {
    let body = serde_json::json!({ "inputs": inputs, "stage": stage });
    channel
        .request("prepare", body, &[], Duration::from_mins(1))
        .map(drop)
        .map_err(CallFailure::from)
}
