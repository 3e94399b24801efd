//! What is measured: how many calls, in bursts of which lengths, in which order, on which inputs.

use std::time::Duration;

use rand::Rng;
use rand::seq::SliceRandom;
use warpsmith_schema::{Profile, Target};

use super::{PLAIN, Session};

/// How long and how often to measure.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) singles: usize,
    /// Lengths of bursts, in eighths of the longest.
    pub(crate) bursts: Vec<u32>,
    /// They come at random places among this many single calls.
    pub(crate) bursts_among: usize,
    pub(crate) budget: Duration,
    pub(crate) care: Care,
    /// On other cores every few calls, where cores can be dealt.
    pub(crate) dealt: bool,
    /// Further intervals that do not count, at random places: in these it is looked at what the runner runs.
    pub(crate) looked: usize,
}

/// What is done with the outputs of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Care {
    /// A candidate's: each is compared, and a wrong one ends it.
    Checked,
    /// A baseline's, where calls are short: compared for nothing. What the trusted process does between two calls is left
    /// in the caches that the next one starts on, so the constant is another without it.
    AsIfChecked,
    /// A baseline's.
    Trusted,
}

/// An interval to come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) length: u32,
    pub(super) looked: bool,
}

/// Of computing to look at, in all.
const LOOKED_US: f64 = 10_000.0;

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

/// In a burst of so few calls a restless moment weighs.
const SHORT_BURST: u32 = 8;

impl Session {
    /// Whether all bursts of a candidate are as long as can be. On a GPU few long ones stand a restless host better than a
    /// slope: the queue runs ahead of it, and only a burst's ends feel it. On a CPU a burst is too short for that.
    pub(super) fn bursts_alike(&self) -> bool {
        self.target == Target::Cuda
    }

    /// Lengths of the bursts for one shape, in eighths of the longest; none where single calls decide.
    pub(crate) fn bursts(&self, variant: usize, profile: Profile) -> Vec<u32> {
        if self.variant(variant).eager_us > bursts_below_us(self.target) {
            return Vec::new();
        }
        let short = self.longest_burst(variant) <= SHORT_BURST;
        match (self.bursts_alike(), profile) {
            // Of short ones as many as a baseline has.
            (true, Profile::Rl) if !short => vec![8; 2],
            (true, _) => vec![8; 4],
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

    /// How to measure a baseline of one shape.
    pub(crate) fn care(&self, variant: usize) -> Care {
        let short = !self.bursts(variant, Profile::Full).is_empty();
        match self.target {
            Target::Cpu if short => Care::AsIfChecked,
            _ => Care::Trusted,
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

    pub(super) fn longest_burst(&self, variant: usize) -> u32 {
        let fit = BURST_US / self.variant(variant).eager_us.max(1.0);
        (fit as u32).clamp(2, self.regions.slot_count)
    }

    /// Lengths in the order they are run: bursts at random places among the single calls.
    pub(super) fn steps(&mut self, plan: &Plan, longest: u32) -> Vec<Step> {
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
    pub(super) fn next_transform(&mut self, answered: bool) -> String {
        if !answered {
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
}
