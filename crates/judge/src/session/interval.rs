//! One interval on the clock: fresh inputs, a runner that is woken for it, outputs that are compared.

use std::time::{Duration, Instant};

use rand::Rng;
use warpsmith_schema::Target;

use super::plan::{IntervalKind, OutputHandling};
use super::{MeasurementError, OutputPlacement, PLAIN, Session, TimedCall};
use crate::JudgeError;
use crate::contention::CoreWaits;
use crate::runner::{CallFailure, ModuleRunner, OutputWindow};
use crate::trusted::{InputDraw, TrustedProcess};

/// Both processes are kept talking for this long before the clock starts, where calls are short: just after a process
/// was stopped and the device changed hands, the same call took anything from 235 to 330 us on an H200; from 300 us later
/// on it is steady to a few. Long calls go without, since whoever is awake could begin ahead of the clock.
const SETTLE: Duration = Duration::from_micros(300);
pub(super) const SETTLED_BELOW_US: f64 = 1000.0;
/// A last exchange of messages may run over by this much.
const SETTLE_SLACK: Duration = Duration::from_micros(150);

/// Short single calls follow two others on old inputs, in the same waking, and their own inputs appear only then; that far
/// the copy engine brings them soon enough (20 us a megabyte on an H200).
const STAGED_BYTES: u64 = 256 << 20;
const WARM_UPS: usize = 2;

/// A tiny kernel takes this long only where the device has other work: with all of the candidate's threads stopped, a
/// kernel it left running. (About 20 us on an idle H200; a busy context keeps its time slice of a millisecond or two.)
const BUSY_US: f64 = 400.0;
/// Whoever starts or ends beside the judge is done by then.
const BUSY_FOR: Duration = Duration::from_millis(20);

/// Of a wrong answer behind the gate.
const OUT_OF_ORDER: &str = " (this call was queued before its inputs were in place: kernels run on the current stream, or wait for it)";

/// What an interval took.
pub(super) struct Elapsed {
    pub(super) us: f64,
    /// A thread had to wait for a core, on a CPU.
    pub(super) disturbed: bool,
}

/// One interval to be timed.
pub(super) struct Interval<'a> {
    pub(super) module: &'a str,
    pub(super) variant: usize,
    pub(super) calls: u32,
    pub(super) kind: IntervalKind,
    pub(super) outputs: OutputHandling,
    pub(super) placement: OutputPlacement,
}

impl Session {
    /// Whether a call is short beside what waking a process and changing hands on the device cost.
    pub(super) fn is_short(&self, variant: usize) -> bool {
        self.target == Target::Cuda && self.variant(variant).eager_us < SETTLED_BELOW_US
    }

    /// Whether single calls of this shape follow warm-ups, behind which their inputs wait.
    pub(super) fn stages_inputs(&self, variant: usize) -> bool {
        let bytes = self.variant(variant).input_bytes + self.loaded.weights_bytes;
        self.is_short(variant) && bytes <= STAGED_BYTES && !self.loaded.mutates_inputs
    }

    /// Whether calls of this shape can be held back on the device until their inputs are in place.
    pub(crate) fn is_gated(&self, variant: usize) -> bool {
        self.regions.gate && self.stages_inputs(variant)
    }

    /// Fills one slot with inputs nobody compares.
    fn fill_slot(
        &mut self,
        trusted: &mut TrustedProcess,
        variant: usize,
    ) -> Result<u32, JudgeError> {
        let draw = InputDraw {
            slot: self.random.random_range(0..self.regions.slot_count),
            seed: self.random.random::<u32>().into(),
            transform: PLAIN,
            exact: false,
        };
        let slot = draw.slot;
        trusted.draw(variant, (false, false), &[draw], None)?;
        Ok(slot)
    }

    /// An untimed call on inputs that were there before; the runner cannot tell it from others.
    fn warm_up(
        &mut self,
        runner: &mut ModuleRunner<'_>,
        (module, window): (&str, Option<OutputWindow>),
        variant: usize,
        slot: u32,
    ) -> Result<(), CallFailure> {
        let window = window.map(|window| [window.start, window.allocated_to, window.end]);
        let body = serde_json::json!({
            "module": module, "label": self.label(), "slots": [slot], "window": window,
        });
        let limit = self.call_limit(module, variant, 1);
        runner.channel.request("call", body, &[], limit)?;
        Ok(())
    }

    /// Makes sure that a resting candidate has left nothing running on a GPU; others may have for a moment.
    fn check_idle(&self, trusted: &mut TrustedProcess) -> Result<(), MeasurementError> {
        if self.target == Target::Cpu {
            return Ok(());
        }
        if trusted.idle_us()? <= BUSY_US {
            return Ok(());
        }
        std::thread::sleep(BUSY_FOR);
        let waited = trusted.idle_us()?;
        if waited > BUSY_US {
            return Err(MeasurementError::Busy(waited));
        }
        Ok(())
    }

    /// One burst (or single call). The runner rests when this returns.
    pub(super) fn interval(
        &mut self,
        trusted: &mut TrustedProcess,
        runner: &mut ModuleRunner<'_>,
        interval: &Interval<'_>,
    ) -> Result<Elapsed, MeasurementError> {
        let slots: Vec<u32> = rand::seq::index::sample(
            &mut self.random,
            self.regions.slot_count as usize,
            interval.calls as usize,
        )
        .into_iter()
        .map(|slot| slot as u32)
        .collect();
        let staged = self.stages_inputs(interval.variant);
        let gated = interval.kind == IntervalKind::Gated;
        let veiled = staged && interval.kind != IntervalKind::Burst;
        runner.suspend();
        // Large inputs are put in place one after the other: a kernel left running would have all that time with the first.
        if interval.outputs == OutputHandling::Compared {
            self.check_idle(trusted)?;
        }
        let warming = match self.filled_slot.take() {
            _ if !veiled => None,
            Some((variant, slot)) if variant == interval.variant => Some(slot),
            _ => Some(self.fill_slot(trusted, interval.variant)?),
        };
        // What a candidate derived from weights must be worth nothing in the next call, however large they are: what is
        // left alone in most calls is what the median sees.
        let answered = interval.outputs != OutputHandling::Ignored;
        if answered {
            self.weights(trusted, staged)?;
        }
        let transforms: Vec<String> = slots
            .iter()
            .map(|_| self.next_transform(answered))
            .collect();
        let mut draws = Vec::new();
        for (&slot, transform) in slots.iter().zip(&transforms) {
            draws.push(InputDraw {
                slot,
                seed: self.random.random::<u32>().into(),
                transform,
                exact: transform == "far",
            });
        }
        let window = self.window(interval.variant, interval.calls, interval.placement);
        trusted.draw(
            interval.variant,
            (answered, veiled),
            &draws,
            window.as_ref(),
        )?;
        self.filled_slot = slots.first().map(|&slot| (interval.variant, slot));
        if interval.outputs == OutputHandling::Compared && self.random.random_ratio(1, 8) {
            self.check_idle(trusted)?;
        }
        if self.loaded.mutates_inputs && interval.module != "candidate" {
            runner.resume();
            let body = serde_json::json!({ "slots": slots });
            runner
                .channel
                .request("restage", body, &[], Duration::from_mins(1))
                .map_err(CallFailure::from)?;
            runner.suspend();
        }
        if gated {
            self.gate_number += 1;
            trusted.shut_gate(self.gate_number)?;
        }
        let (module, variant) = (interval.module, interval.variant);
        let short = self.is_short(variant);
        let mut overdrawn = Duration::ZERO;
        if let Some(old) = warming {
            runner.resume();
            for _ in 0..WARM_UPS {
                self.warm_up(runner, (module, window), variant, old)?;
            }
            let warmed = window.filter(|window| window.end - window.start <= STAGED_BYTES);
            let revealed = (!gated).then_some(slots[0]);
            trusted.reveal(revealed, warmed.as_ref())?;
        } else if short {
            overdrawn = settle(trusted, runner)?;
            // Else what depends on weights alone could be done before the clock starts.
            if staged && answered && self.loaded.weights_bytes > 0 {
                trusted.reveal(Some(slots[0]), None)?;
            }
        }
        let timed = TimedCall {
            module,
            suspended: !short,
            window,
        };
        let watched = runner.pid.filter(|_| self.target == Target::Cpu);
        let waits = watched.and_then(CoreWaits::read);
        let called = if gated {
            self.call_behind_gate(trusted, runner, &timed, variant, slots[0])?
        } else {
            self.call(trusted, runner, &timed, variant, &slots)?
        };
        runner.suspend();
        let us = (called.elapsed + overdrawn).as_secs_f64() * 1e6;
        let waited = watched.and_then(CoreWaits::read);
        let disturbed = (waits.zip(waited)).is_some_and(|(before, now)| now.disturbed(before, us));
        match interval.outputs {
            OutputHandling::Compared => {
                let checks = trusted.check(&called.to_compare(&slots), false)?;
                if let Some(mut check) = checks.into_iter().find(|check| !check.holds()) {
                    if gated && !check.passed {
                        check.message.push_str(OUT_OF_ORDER);
                    }
                    return Err(MeasurementError::Comparison(Box::new(check)));
                }
            }
            OutputHandling::ComparedAndDiscarded => {
                trusted.check_for_nothing(&called.to_compare(&slots))?;
            }
            OutputHandling::Ignored => {}
        }
        Ok(Elapsed { us, disturbed })
    }
}

/// Wakes the runner and keeps both processes talking for a while; what that took longer than it should is on the clock.
fn settle(
    trusted: &mut TrustedProcess,
    runner: &mut ModuleRunner<'_>,
) -> Result<Duration, MeasurementError> {
    let begun = Instant::now();
    runner.resume();
    while begun.elapsed() < SETTLE {
        trusted.ping()?;
        runner.ping()?;
    }
    Ok(begun.elapsed().saturating_sub(SETTLE + SETTLE_SLACK))
}
