//! What is measured: how many calls, in bursts of which lengths, in which order, on which inputs.

use std::time::Duration;

use rand::Rng;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};
use warpsmith_schema::{Profile, Target};

use super::interval::SETTLED_BELOW_US;
use super::{PLAIN, Session};
use crate::timing::TimingSamples;

/// How long and how often to measure.
#[derive(Debug, Clone)]
pub(crate) struct MeasurementPlan {
    pub(crate) single_calls: usize,
    /// Lengths of bursts, in eighths of the longest, or [`ONE_CALL`].
    pub(crate) bursts: Vec<u32>,
    /// They come at random places among this many single calls.
    pub(crate) bursts_among: usize,
    /// Calls behind the gate, at such places too.
    pub(crate) gated_calls: usize,
    pub(crate) budget: Duration,
    pub(crate) outputs: OutputHandling,
    /// On other cores every few calls, where cores can be dealt.
    pub(crate) rotate_cores: bool,
    /// Further intervals that do not count, at random places: in these it is looked at what the runner runs.
    pub(crate) sampled_intervals: usize,
}

/// How calls of a shape are measured, which their length decides: one that lies on a border may be measured in either way, and
/// a constant of the one is none of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Regime {
    Short,
    Long,
    /// Single calls decide.
    Single,
}

/// What is done with the outputs of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputHandling {
    /// A candidate's: each is compared, and a wrong one ends it.
    Compared,
    /// A baseline's, or nothing's, where the next call feels what the trusted process did before it: compared for nothing. On
    /// a CPU it starts on other caches; on an H200 it took 300 us longer after 40 ms of the judge's own work.
    ComparedAndDiscarded,
    /// A baseline's.
    Ignored,
}

/// An interval to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlannedInterval {
    pub(super) calls: u32,
    pub(super) kind: IntervalKind,
    pub(super) sampled: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IntervalKind {
    Single,
    Burst,
    /// A single call that waits on the device until its inputs are in place.
    Gated,
}

impl PlannedInterval {
    pub(super) fn record(self, us: f64, raw: &mut TimingSamples) {
        match self.kind {
            IntervalKind::Single => raw.singles.push(us),
            IntervalKind::Burst => raw.bursts.push((self.calls, us)),
            IntervalKind::Gated => raw.gated.push(us),
        }
    }
}

/// Of computing to look at, in all.
const SAMPLED_US: f64 = 10_000.0;

/// Above this single calls alone decide. On a GPU a call that follows a change of context is slower than one that does not
/// (a GEMM of 2.8 ms by 7 % on an H200), so there bursts are worth their time for longer.
fn bursts_below_us(target: Target) -> f64 {
    match target {
        Target::Cuda => 20_000.0,
        Target::Cpu => 2000.0,
    }
}

/// A burst of one call, begun as all bursts are: work that others do once for many calls is all in it.
const ONE_CALL: u32 = 0;

/// No burst need take longer than this, in eager mode's time; of calls that are not short, twice as long: many are several
/// times as quick as eager mode, and what a burst costs besides its calls is the larger share the fewer they are.
const BURST_US: f64 = 20_000.0;

/// In a burst of so few calls a noisy moment weighs.
const SHORT_BURST: u32 = 8;

/// The longest burst of calls that eager mode takes so long for.
pub(super) fn calls_in_burst(eager_us: f64) -> u32 {
    let most_us = if eager_us < SETTLED_BELOW_US {
        BURST_US
    } else {
        2.0 * BURST_US
    };
    (most_us / eager_us.max(1.0)) as u32
}

impl Session {
    /// Whether the bursts of a candidate that count are as long as can be. On a GPU few long ones stand a noisy host better than a
    /// slope: the queue runs ahead of it, and only a burst's ends feel it. On a CPU a burst is too short for that.
    pub(super) fn bursts_alike(&self) -> bool {
        self.target == Target::Cuda
    }

    /// Lengths of the bursts for one shape, in eighths of the longest; none where single calls decide.
    pub(crate) fn bursts(&self, variant: usize, profile: Profile) -> Vec<u32> {
        if self.variant(variant).eager_us > bursts_below_us(self.target) {
            return Vec::new();
        }
        let few = self.longest_burst(variant) <= SHORT_BURST || !self.is_short(variant);
        // Where calls are long, waking the device takes as long as the work that could be looked for; behind a gate it is seen
        // without.
        let short = if self.is_short(variant) && !self.is_gated(variant) {
            4
        } else {
            0
        };
        match (self.bursts_alike(), profile) {
            // Of few calls as many bursts as a baseline has.
            (true, Profile::Rl) if !few => [vec![8; 2], vec![ONE_CALL; short]].concat(),
            (true, _) => [vec![8; 4], vec![ONE_CALL; short]].concat(),
            (false, Profile::Full) => [2, 4, 6, 8].repeat(3),
            (false, Profile::Rl | Profile::Verify) => [2, 4, 6, 8].repeat(2),
        }
    }

    /// The same for the null module: bursts of two lengths tell what a burst costs from what a call does.
    pub(crate) fn null_bursts(&self, variant: usize) -> Vec<u32> {
        let bursts = self.bursts(variant, Profile::Full);
        if self.bursts_alike() && !bursts.is_empty() {
            // Beside a long call what nothing takes need not be known to the microsecond.
            if self.is_short(variant) {
                [vec![ONE_CALL; 6], vec![8; 4]].concat()
            } else {
                [2, 8].repeat(3)
            }
        } else {
            bursts
        }
    }

    /// The same for the null module that wakes the device: what a first call takes for it.
    pub(crate) fn waking_bursts(&self, variant: usize) -> Vec<u32> {
        match self.target {
            Target::Cuda if !self.is_short(variant) => Vec::new(),
            _ => self.null_bursts(variant),
        }
    }

    /// How to measure a baseline of one shape: where calls are short, in all that surrounds them as a candidate. What the judge
    /// does before an interval leaves caches and the device as a candidate finds them too.
    pub(crate) fn baseline_outputs(&self, variant: usize) -> OutputHandling {
        let alike = self.target == Target::Cpu || self.is_short(variant);
        if alike && self.decided_by_bursts(variant) {
            OutputHandling::ComparedAndDiscarded
        } else {
            OutputHandling::Ignored
        }
    }

    /// How to measure what a candidate's call costs with nothing in it. A long one on a GPU feels that it follows the
    /// trusted process's work; the longest feel nothing.
    pub(crate) fn null_outputs(&self, variant: usize) -> OutputHandling {
        if self.decided_by_bursts(variant) {
            OutputHandling::ComparedAndDiscarded
        } else {
            self.baseline_outputs(variant)
        }
    }

    pub(crate) fn regimes(&self) -> Vec<Regime> {
        let of = |variant| {
            if !self.decided_by_bursts(variant) {
                Regime::Single
            } else if self.is_short(variant) {
                Regime::Short
            } else {
                Regime::Long
            }
        };
        (0..self.loaded.variants.len()).map(of).collect()
    }

    fn decided_by_bursts(&self, variant: usize) -> bool {
        !self.bursts(variant, Profile::Full).is_empty()
    }

    /// How many single calls of a baseline, or of nothing. Where on a GPU all that comes between them is work on gigabytes, only
    /// as many as their median needs.
    pub(crate) fn baseline_singles(&self, variant: usize, care: OutputHandling) -> usize {
        match (self.target, care) {
            (Target::Cuda, OutputHandling::ComparedAndDiscarded) if !self.is_short(variant) => 12,
            _ => 30,
        }
    }

    /// How many intervals to look into, so that enough is seen of the shortest call.
    pub(crate) fn sampled_intervals(&self, variant: usize, profile: Profile) -> usize {
        let most = match (self.target, profile) {
            // A host's threads hardly compute there.
            (Target::Cuda, _) => return 0,
            (Target::Cpu, Profile::Full) => 24,
            (Target::Cpu, Profile::Rl | Profile::Verify) => 8,
        };
        let calls = f64::from(self.sampled_calls(variant));
        let fit = SAMPLED_US / (calls * self.variant(variant).eager_us.max(1.0));
        (fit.ceil() as usize).clamp(2, most)
    }

    /// Like what is timed there.
    fn sampled_calls(&self, variant: usize) -> u32 {
        if self.bursts(variant, Profile::Full).is_empty() {
            1
        } else {
            self.longest_burst(variant)
        }
    }

    pub(super) fn longest_burst(&self, variant: usize) -> u32 {
        calls_in_burst(self.variant(variant).eager_us).clamp(2, self.regions.slot_count)
    }

    /// Lengths in the order they are run: bursts at random places among the single calls.
    pub(super) fn intervals(
        &mut self,
        plan: &MeasurementPlan,
        longest: u32,
    ) -> Vec<PlannedInterval> {
        let single = PlannedInterval {
            calls: 1,
            kind: IntervalKind::Single,
            sampled: false,
        };
        let mut steps = vec![single; plan.single_calls];
        for length in &plan.bursts {
            let place = self
                .random
                .random_range(0..=steps.len().min(plan.bursts_among));
            let calls = match *length {
                ONE_CALL => 1,
                // Of what there is room for.
                eighths => (eighths * longest).div_ceil(8).clamp(2, longest),
            };
            let burst = PlannedInterval {
                calls,
                kind: IntervalKind::Burst,
                sampled: false,
            };
            steps.insert(place, burst);
        }
        for _ in 0..plan.gated_calls {
            let most = steps.len().min(plan.bursts_among);
            let gated = PlannedInterval {
                kind: IntervalKind::Gated,
                ..single
            };
            steps.insert(self.random.random_range(0..=most), gated);
        }
        for _ in 0..plan.sampled_intervals {
            let most = steps.len().min(plan.bursts_among.max(8));
            let (calls, kind) = if plan.bursts.is_empty() {
                (1, IntervalKind::Single)
            } else {
                (longest, IntervalKind::Burst)
            };
            let looked = PlannedInterval {
                calls,
                kind,
                sampled: true,
            };
            steps.insert(self.random.random_range(0..=most), looked);
        }
        // Two untimed calls first: page tables, code caches, lazily created handles.
        steps.splice(0..0, [single; 2]);
        steps
    }

    /// A third of what is timed comes from another distribution, dealt from a shuffled deck: nobody can count calls until
    /// the checks are over, and no distribution stays away for long.
    pub(super) fn next_transform(&mut self, answered: bool) -> String {
        if !answered {
            return PLAIN.to_owned();
        }
        if self.transform_deck.is_empty() {
            let others = self.loaded.screen.transforms.iter();
            for transform in others.filter(|name| *name != PLAIN) {
                self.transform_deck.push(transform.clone());
                self.transform_deck
                    .extend([PLAIN.to_owned(), PLAIN.to_owned()]);
            }
            self.transform_deck.shuffle(&mut self.random);
        }
        self.transform_deck
            .pop()
            .unwrap_or_else(|| PLAIN.to_owned())
    }

    /// Timed calls after which every distribution has come up at least once, wherever the deck stood.
    pub(crate) fn least_calls(&self) -> u32 {
        2 * 3 * self.loaded.screen.transforms.len() as u32
    }
}
