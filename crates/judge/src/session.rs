//! One task, loaded: shared memory is laid out, the reference answers, and anything that runs modules can be verified and
//! timed against it.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use serde_json::Value;
use warpsmith_schema::{Profile, Target};

use crate::JudgeError;
use crate::channel::{Channel, ChannelError};
use crate::cores::Cores;
use crate::runner::{Call, CallFailure, Called, Reader, Runner, call};
use crate::sample::{Mapping, Sampler};
use crate::timing::Raw;
use crate::trusted::{Check, DeviceMemory, Draw, Loaded, Regions, Trusted, Variant};

/// Longest burst, and so the number of input slots.
fn most_slots(target: Target) -> u32 {
    match target {
        Target::Cuda => 64,
        Target::Cpu => 8,
    }
}

/// The task's own distribution.
pub(crate) const PLAIN: &str = "plain";

/// All slots together, on a GPU: far more than any cache, and soon drawn.
const SLOTS_BYTES: u64 = 4 << 30;

/// Both processes are kept talking for this long before the clock starts, where calls are short: just after a process
/// was stopped and the device changed hands, the same call took anything from 235 to 330 us on an H200; from 300 us later
/// on it is steady to a few. Long calls go without, since whoever is awake could begin ahead of the clock.
const SETTLE: Duration = Duration::from_micros(300);
const SETTLED_BELOW_US: f64 = 1000.0;
/// A last exchange of messages may run over by this much.
const SETTLE_SLACK: Duration = Duration::from_micros(150);

/// Short single calls follow two others on old inputs, in the same waking, and their own inputs appear only then; that far
/// the copy engine brings them soon enough (20 us a megabyte on an H200).
const VEILED_BYTES: u64 = 256 << 20;
const WARM_UPS: usize = 2;
/// The driver leaves copies from this size on to the copy engine for certain.
const COPIED_BYTES: u64 = 256 << 10;

/// A tiny kernel takes this long only where the device has other work: with all of the candidate's threads stopped, a
/// kernel it left running. (About 20 us on an idle H200; a busy context keeps its time slice of a millisecond or two.)
const BUSY_US: f64 = 400.0;

/// A task in force.
pub(crate) struct Session {
    pub(crate) task_hash: String,
    target: Target,
    pub(crate) loaded: Loaded,
    pub(crate) regions: Regions,
    /// What it takes of the device.
    pub(crate) memory: DeviceMemory,
    sampler: Option<Sampler>,
    cores: Option<Cores>,
    random: StdRng,
    /// Distributions of the next timed calls.
    deck: Vec<String>,
    /// A slot with inputs, and the shape they have: what to warm up on.
    filled: Option<(usize, u32)>,
    /// The master seed, for the evidence: everything drawn follows from it.
    pub(crate) seed: u64,
}

/// How long and how often to measure.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) singles: usize,
    /// Lengths of bursts, in eighths of the longest.
    pub(crate) bursts: Vec<u32>,
    /// They come at random places among this many single calls.
    pub(crate) bursts_among: usize,
    pub(crate) budget: Duration,
    /// Compare every output, as for a candidate.
    pub(crate) checked: bool,
    /// On other cores every few calls, where cores can be dealt.
    pub(crate) dealt: bool,
    /// Further intervals that do not count, at random places: in these it is looked at what the runner runs.
    pub(crate) looked: usize,
}

/// An interval to come.
#[derive(Debug, Clone, Copy)]
struct Step {
    length: u32,
    looked: bool,
}

/// Of computing to look at, in all.
const LOOKED_US: f64 = 10_000.0;

/// Calls between two deals.
const DEALT_CALLS: usize = 5;

/// Above this single calls alone decide. On a GPU a call that follows a change of context is slower than one that does not
/// (a GEMM of 2.8 ms by 7 % on an H200), so there bursts are worth their time for longer.
fn bursts_below_us(target: Target) -> f64 {
    match target {
        Target::Cuda => 20_000.0,
        Target::Cpu => 2000.0,
    }
}

/// No burst need take longer than this.
const BURST_US: f64 = 20_000.0;

/// Why a measurement ended early.
pub(crate) enum Stopped {
    Call(CallFailure),
    /// An output was wrong, or changed, or inputs were written to.
    Wrong(Box<Check>),
    /// The device had work while the candidate was stopped; microseconds a tiny kernel had to wait.
    Busy(f64),
    Ours(JudgeError),
}

impl From<CallFailure> for Stopped {
    fn from(failure: CallFailure) -> Self {
        match failure {
            CallFailure::Ours(error) => Self::Ours(error),
            other => Self::Call(other),
        }
    }
}

impl From<JudgeError> for Stopped {
    fn from(error: JudgeError) -> Self {
        Self::Ours(error)
    }
}

/// One interval to be timed.
struct Interval<'a> {
    module: &'a str,
    variant: usize,
    length: u32,
    checked: bool,
}

/// Tells a measurement that it has seen enough.
pub(crate) type Enough<'a> = &'a dyn Fn(&Raw) -> bool;

impl Session {
    pub(crate) fn open(
        trusted: &mut Trusted,
        task: (&str, &str, String),
        target: Target,
        cores: Option<Cores>,
        seed: u64,
    ) -> Result<Self, JudgeError> {
        let (name, source, task_hash) = task;
        let mut random = StdRng::seed_from_u64(seed);
        let loaded = trusted.load(source, name, target, random.random::<u32>().into())?;
        let (slots, slot_bytes, arena_bytes) = layout(&loaded, target, trusted.device_memory());
        let regions = trusted.regions(slots, slot_bytes, arena_bytes)?;
        let sampler = match target {
            Target::Cpu => Some(open_sampler(&regions, random.random())?),
            Target::Cuda => None,
        };
        let mut session = Self {
            task_hash,
            target,
            loaded,
            regions,
            memory: trusted.memory()?,
            sampler,
            cores,
            random,
            deck: Vec::new(),
            filled: None,
            seed,
        };
        session.reseed(seed); // so that a replay draws the same whether or not the task was loaded already
        Ok(session)
    }

    /// New entropy for the next candidate, drawn after it was frozen.
    pub(crate) fn reseed(&mut self, seed: u64) {
        self.seed = seed;
        self.random = StdRng::seed_from_u64(seed);
        self.deck.clear();
        self.filled = None;
    }

    pub(crate) fn variant(&self, index: usize) -> &Variant {
        &self.loaded.variants[index]
    }

    /// How long one call may take before it counts as hung.
    pub(crate) fn limit(&self, variant: usize, calls: usize) -> Duration {
        let eager = self.variant(variant).eager_us / 1e6;
        Duration::from_secs_f64(10.0 + 20.0 * eager * calls as f64)
    }

    pub(crate) fn new_weights(&mut self, trusted: &mut Trusted) -> Result<(), JudgeError> {
        self.weights(trusted, false)
    }

    fn weights(&mut self, trusted: &mut Trusted, veiled: bool) -> Result<(), JudgeError> {
        if self.loaded.weights_bytes > 0 {
            trusted.weights(self.random.random::<u32>().into(), veiled)?;
        }
        Ok(())
    }

    /// One checked call on fresh inputs: the unit of verification.
    pub(crate) fn verify_once(
        &mut self,
        trusted: &mut Trusted,
        runner: &mut Runner<'_>,
        variant: usize,
        transform: &str,
    ) -> Result<Check, Stopped> {
        let slot = self.random.random_range(0..self.regions.slot_count);
        let draw = Draw {
            slot,
            seed: self.random.random::<u32>().into(),
            transform,
            exact: true,
        };
        runner.rest();
        trusted.draw(variant, true, false, &[draw])?;
        let called = self.call(trusted, runner, ("candidate", true), variant, &[slot])?;
        runner.rest();
        let mut checks = trusted.check(&called.to_compare(&[slot]), true)?;
        runner.wake();
        Ok(checks.remove(0))
    }

    fn call(
        &mut self,
        trusted: &mut Trusted,
        runner: &mut Runner<'_>,
        (module, resting): (&str, bool),
        variant: usize,
        slots: &[u32],
    ) -> Result<Called, CallFailure> {
        let label = self.label();
        let limit = self.call_limit(module, variant, slots.len());
        let expected = self.loaded.variants[variant].outputs.clone();
        let request = Call {
            resting,
            module,
            label,
            slots,
            expected: &expected,
            limit,
        };
        let mut reader = match &mut self.sampler {
            Some(sampler) => Reader::Host(sampler),
            None => Reader::Device(trusted),
        };
        call(runner, &mut reader, self.regions.arena_bytes, &request)
    }

    /// Times one module. Every interval has fresh inputs at a random address; a candidate's outputs are all compared.
    pub(crate) fn measure(
        &mut self,
        trusted: &mut Trusted,
        runner: &mut Runner<'_>,
        module: &str,
        variant: usize,
        plan: &Plan,
        enough: Enough<'_>,
    ) -> Result<Raw, Stopped> {
        let started = Instant::now();
        let mut raw = Raw {
            warm: self.veils(variant),
            alike: self.bursts_alike(),
            ..Raw::default()
        };
        let longest = self.longest_burst(variant);
        let cores = self.cores.as_ref().filter(|_| plan.dealt);
        let dealt = cores.map(|cores| cores.deal(runner.pid, trusted.id()));
        // Others wait for the device: a candidate that is slow in everything does not have it for ever.
        let patience = 6 * plan.budget + self.limit(variant, plan.singles);
        for (step, Step { length, looked }) in self.steps(plan, longest).into_iter().enumerate() {
            if started.elapsed() > patience {
                return Err(CallFailure::from(ChannelError::TimedOut(patience)).into());
            }
            // Warm-ups aside, a third of the plan is the least an estimate can stand on.
            if step > 2 + plan.singles / 3 && started.elapsed() > plan.budget {
                break;
            }
            let interval = Interval {
                module,
                variant,
                length,
                checked: plan.checked,
            };
            if let Some(dealt) = dealt.as_ref().filter(|_| step % DEALT_CALLS == 0) {
                runner.rest();
                dealt.next();
            }
            if looked {
                if let Some(looks) = &mut runner.looks {
                    looks.begin();
                }
                self.interval(trusted, runner, &interval)?;
                if let Some(looks) = &mut runner.looks {
                    looks.end();
                    raw.looked += length;
                }
                continue;
            }
            let elapsed = self.interval(trusted, runner, &interval)?;
            match (step, length) {
                (0 | 1, _) => {}
                (_, 1) => raw.singles.push(elapsed),
                _ => raw.bursts.push((length, elapsed)),
            }
            if enough(&raw) {
                break;
            }
        }
        runner.wake();
        Ok(raw)
    }

    /// Whether all bursts of a candidate are as long as can be. On a GPU few long ones stand a restless host better than a
    /// slope: the queue runs ahead of it, and only a burst's ends feel it. On a CPU a burst is too short for that.
    fn bursts_alike(&self) -> bool {
        self.target == Target::Cuda
    }

    /// Lengths of the bursts for one shape, in eighths of the longest; none where single calls decide.
    pub(crate) fn bursts(&self, variant: usize, profile: Profile) -> Vec<u32> {
        if self.variant(variant).eager_us > bursts_below_us(self.target) {
            return Vec::new();
        }
        match (self.bursts_alike(), profile) {
            (true, Profile::Full) => vec![8; 4],
            (true, Profile::Rl) => vec![8; 2],
            (false, Profile::Full) => [2, 4, 6, 8].repeat(3),
            (false, Profile::Rl) => [2, 4, 6, 8].repeat(2),
        }
    }

    /// The same for the null module: bursts of two lengths tell what a burst costs from what a call does.
    pub(crate) fn bursts_of_nothing(&self, variant: usize) -> Vec<u32> {
        let bursts = self.bursts(variant, Profile::Full);
        if self.bursts_alike() && !bursts.is_empty() {
            [2, 8].repeat(6)
        } else {
            bursts
        }
    }

    /// How many intervals to look into, so that enough is seen of the shortest call.
    pub(crate) fn looked(&self, variant: usize, profile: Profile) -> usize {
        let most = match (self.target, profile) {
            // A host's threads hardly compute there.
            (Target::Cuda, _) => return 0,
            (Target::Cpu, Profile::Full) => 24,
            (Target::Cpu, Profile::Rl) => 8,
        };
        let calls = f64::from(self.looked_length(variant));
        let fit = LOOKED_US / (calls * self.variant(variant).eager_us.max(1.0));
        (fit.ceil() as usize).clamp(2, most)
    }

    /// Like what is timed there.
    fn looked_length(&self, variant: usize) -> u32 {
        if self.bursts(variant, Profile::Full).is_empty() {
            1
        } else {
            self.longest_burst(variant)
        }
    }

    fn longest_burst(&self, variant: usize) -> u32 {
        let fit = BURST_US / self.variant(variant).eager_us.max(1.0);
        (fit as u32).clamp(2, self.regions.slot_count)
    }

    /// Lengths in the order they are run: bursts at random places among the single calls.
    fn steps(&mut self, plan: &Plan, longest: u32) -> Vec<Step> {
        let timed = |length| Step {
            length,
            looked: false,
        };
        let mut steps = vec![timed(1); plan.singles];
        for length in &plan.bursts {
            let place = self
                .random
                .random_range(0..=steps.len().min(plan.bursts_among));
            // Lengths are in eighths of what there is room for.
            let length = (length * longest).div_ceil(8).clamp(2, longest);
            steps.insert(place, timed(length));
        }
        for _ in 0..plan.looked {
            let most = steps.len().min(plan.bursts_among.max(8));
            let length = if plan.bursts.is_empty() { 1 } else { longest };
            let looked = Step {
                length,
                looked: true,
            };
            steps.insert(self.random.random_range(0..=most), looked);
        }
        // Two untimed calls first: page tables, code caches, lazily created handles.
        steps.splice(0..0, [timed(1), timed(1)]);
        steps
    }

    /// A third of what is timed comes from another distribution, dealt from a shuffled deck: nobody can count calls until
    /// the checks are over, and no distribution stays away for long.
    fn next_transform(&mut self, checked: bool) -> String {
        if !checked {
            return PLAIN.to_owned();
        }
        if self.deck.is_empty() {
            let others = self.loaded.screen.transforms.iter();
            for transform in others.filter(|name| *name != PLAIN) {
                self.deck.push(transform.clone());
                self.deck.extend([PLAIN.to_owned(), PLAIN.to_owned()]);
            }
            self.deck.shuffle(&mut self.random);
        }
        self.deck.pop().unwrap_or_else(|| PLAIN.to_owned())
    }

    /// Timed calls after which every distribution has come up at least once, wherever the deck stood.
    pub(crate) fn least_calls(&self) -> u32 {
        2 * 3 * self.loaded.screen.transforms.len() as u32
    }

    /// Whether a call is short beside what waking a process and changing hands on the device cost.
    fn short(&self, variant: usize) -> bool {
        self.target == Target::Cuda && self.variant(variant).eager_us < SETTLED_BELOW_US
    }

    /// Whether single calls of this shape follow warm-ups, behind which their inputs wait.
    fn veils(&self, variant: usize) -> bool {
        let bytes = self.variant(variant).input_bytes + self.loaded.weights_bytes;
        self.short(variant) && bytes <= VEILED_BYTES && !self.loaded.mutates_inputs
    }

    /// Fills one slot with inputs nobody compares.
    fn fill_any(&mut self, trusted: &mut Trusted, variant: usize) -> Result<u32, JudgeError> {
        let draw = Draw {
            slot: self.random.random_range(0..self.regions.slot_count),
            seed: self.random.random::<u32>().into(),
            transform: PLAIN,
            exact: false,
        };
        let slot = draw.slot;
        trusted.draw(variant, false, false, &[draw])?;
        Ok(slot)
    }

    /// An untimed call on inputs that were there before; the runner cannot tell it from others.
    fn warm_up(
        &mut self,
        runner: &mut Runner<'_>,
        module: &str,
        variant: usize,
        slot: u32,
    ) -> Result<(), CallFailure> {
        let body = serde_json::json!({ "module": module, "label": self.label(), "slots": [slot] });
        let limit = self.call_limit(module, variant, 1);
        runner.channel.request("call", body, &[], limit)?;
        Ok(())
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
            self.limit(variant, calls)
        }
    }

    /// One burst (or single call) in microseconds. The runner rests when this returns.
    fn interval(
        &mut self,
        trusted: &mut Trusted,
        runner: &mut Runner<'_>,
        interval: &Interval<'_>,
    ) -> Result<f64, Stopped> {
        let slots: Vec<u32> = rand::seq::index::sample(
            &mut self.random,
            self.regions.slot_count as usize,
            interval.length as usize,
        )
        .into_iter()
        .map(|slot| slot as u32)
        .collect();
        let veiled = interval.length == 1 && self.veils(interval.variant);
        runner.rest();
        let warming = match self.filled.take() {
            _ if !veiled => None,
            Some((variant, slot)) if variant == interval.variant => Some(slot),
            _ => Some(self.fill_any(trusted, interval.variant)?),
        };
        // What a candidate derived from weights must be worth nothing in the next call, however large they are: what is
        // left alone in most calls is what the median sees.
        if interval.checked {
            self.weights(trusted, veiled)?;
        }
        let transforms: Vec<String> = slots
            .iter()
            .map(|_| self.next_transform(interval.checked))
            .collect();
        let mut draws = Vec::new();
        for (&slot, transform) in slots.iter().zip(&transforms) {
            draws.push(Draw {
                slot,
                seed: self.random.random::<u32>().into(),
                transform,
                exact: transform == "far",
            });
        }
        trusted.draw(interval.variant, interval.checked, veiled, &draws)?;
        self.filled = slots.first().map(|&slot| (interval.variant, slot));
        if interval.checked && self.sampler.is_none() && self.random.random_ratio(1, 8) {
            let waited = trusted.idle_us()?;
            if waited > BUSY_US {
                return Err(Stopped::Busy(waited));
            }
        }
        if self.loaded.mutates_inputs && interval.module != "candidate" {
            runner.wake();
            let body = serde_json::json!({ "slots": slots });
            runner
                .channel
                .request("restage", body, &[], Duration::from_mins(1))
                .map_err(CallFailure::from)?;
            runner.rest();
        }
        let (module, variant) = (interval.module, interval.variant);
        let short = self.short(variant);
        let mut overdrawn = Duration::ZERO;
        if let Some(old) = warming {
            runner.wake();
            for _ in 0..WARM_UPS {
                self.warm_up(runner, module, variant, old)?;
            }
            trusted.reveal(slots[0])?;
        } else if short {
            overdrawn = settle(trusted, runner)?;
        }
        let called = self.call(trusted, runner, (module, !short), variant, &slots)?;
        runner.rest();
        if interval.checked {
            let checks = trusted.check(&called.to_compare(&slots), false)?;
            if let Some(check) = checks.into_iter().find(|check| !check.holds()) {
                return Err(Stopped::Wrong(Box::new(check)));
            }
        }
        Ok((called.elapsed + overdrawn).as_secs_f64() * 1e6)
    }
}

/// Wakes the runner and keeps both processes talking for a while; what that took longer than it should is on the clock.
fn settle(trusted: &mut Trusted, runner: &mut Runner<'_>) -> Result<Duration, Stopped> {
    let begun = Instant::now();
    runner.wake();
    while begun.elapsed() < SETTLE {
        trusted.ping()?;
        runner.ping()?;
    }
    Ok(begun.elapsed().saturating_sub(SETTLE + SETTLE_SLACK))
}

/// Tells a runner which inputs to expect.
pub(crate) fn prepare(
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

fn open_sampler(regions: &Regions, seed: u64) -> Result<Sampler, JudgeError> {
    let [_, _, arena, sample] = regions.fds.as_slice() else {
        return Err(JudgeError::infrastructure(
            "protocol",
            "the trusted process sent no memory",
        ));
    };
    let bytes = rustix::fs::fstat(sample)
        .map_err(std::io::Error::from)
        .map_err(JudgeError::io("measure the sample region"))?;
    let doing = "map shared memory";
    let arena =
        Mapping::new(arena.as_fd(), regions.arena_bytes, false).map_err(JudgeError::io(doing))?;
    let sample =
        Mapping::new(sample.as_fd(), bytes.st_size as u64, true).map_err(JudgeError::io(doing))?;
    Ok(Sampler::new(arena, sample, seed))
}

/// Slots, bytes of a slot, bytes of the arena.
fn layout(loaded: &Loaded, target: Target, device_memory: u64) -> (u32, u64, u64) {
    let inputs = loaded
        .variants
        .iter()
        .map(|variant| variant.input_bytes)
        .max()
        .unwrap_or(0);
    let outputs = loaded
        .variants
        .iter()
        .map(|variant| variant.output_bytes)
        .max()
        .unwrap_or(0);
    let least = match target {
        Target::Cuda => COPIED_BYTES,
        Target::Cpu => 0,
    };
    let slot_bytes = (inputs + 4096).max(least).next_multiple_of(65_536);
    let memory = match target {
        Target::Cuda => device_memory,
        Target::Cpu => warpsmith_machine::memory_bytes(),
    };
    // At most 60 % of the device in flight, the trusted side's private copies and the reference's own needs included.
    let for_slots = match target {
        Target::Cuda => SLOTS_BYTES.min(memory / 8),
        Target::Cpu => memory / 8,
    };
    let for_arena = memory / 4;
    let slots = (for_slots / slot_bytes).clamp(2, u64::from(most_slots(target))) as u32;
    let wanted = (u64::from(slots) + 4) * outputs + 6 * (inputs + outputs) + (64 << 20);
    let least = match target {
        Target::Cuda => 2 << 30,
        Target::Cpu => 0,
    };
    let arena = wanted
        .max(least)
        .min(for_arena.max(3 * outputs + (64 << 20)))
        .next_multiple_of(1 << 21);
    (slots, slot_bytes, arena)
}
