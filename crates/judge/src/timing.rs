//! From raw intervals to a time: pure functions, so that every rule here has a table test.
//!
//! Two measurements (see `docs/concepts/timing.md`): *single calls*, where the next input does not exist until the last
//! output was taken away, less the constant a call costs with nothing in it; and *bursts*, over which that constant is
//! spread thin. Work that was batched or put off makes a call in a burst quicker than the single call; then the single
//! call counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Work that a burst does once, beyond a single call of nothing: so much of it is a first look at weights, code and tables that
/// the calls after it find in caches.
const ONCE_US: f64 = 20.0;
const ONCE_SHARE: f64 = 0.10;
/// Eager mode has such a first look too. Of a task's weights it is as long; more of it than this share of a call is eager's own.
const ONCE_EAGER_SHARE: f64 = 0.25;
/// So many times eager's own is allowed.
const ONCE_EAGER_TIMES: f64 = 1.5;

/// A call of a burst may take so much less than one behind the gate, whose caches are colder.
const GATED_US: f64 = 10.0;
const GATED_SHARE: f64 = 0.10;

/// A burst may be this much quicker than a single call before work counts as put off, on a GPU, whose contexts change hands
/// before a single call but not within a burst.
const DEFERRED_US: f64 = 25.0;
const DEFERRED_SHARE: f64 = 0.10;
/// A single call runs on cold caches and a freshly woken context, which the constant covers only roughly: honest kernels of
/// 20 to 40 us were seen up to a quarter of it above their bursts on an H200.
const DEFERRED_CONSTANT_SHARE: f64 = 0.35;
/// On a GPU without warm-ups the constant is three times as large, and covers as much: honest kernels of 400 us were seen 80 us
/// above their bursts.
const DEFERRED_COLD_US: f64 = 120.0;

/// Of intervals that are alike the quick ones count: a core that was taken away for a moment made one burst in ten take twice
/// or ten times as long on a virtual machine with an H200, and more than half of all intervals on one of two cores with busy
/// neighbours; nothing ever made one quicker. A cheat cannot make some of them quick either, since every output is compared.
const FAST_QUANTILE: f64 = 0.2;
/// After warm-ups what is left of noise only ever adds to a call: the host of an H200 was seen to take 200 or 340 us for the
/// same one, in phases as long as a judgement.
const FAST_QUANTILE_WARM: f64 = 0.1;

/// Intervals as measured, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct TimingSamples {
    pub(crate) singles: Vec<f64>,
    /// Length and interval.
    pub(crate) bursts: Vec<(u32, f64)>,
    /// Calls behind the gate: of the device's work alone, see `harness/gate.py`.
    #[serde(default)]
    pub(crate) gated: Vec<f64>,
    /// Single calls followed warm-ups.
    #[serde(default)]
    pub(crate) warm: bool,
    /// All bursts have one length, and what they cost besides their calls is known from the null module's. Else their
    /// lengths differ, and the slope tells.
    #[serde(default)]
    pub(crate) alike: bool,
    /// Further calls, in which it was looked at what runs.
    #[serde(default)]
    pub(crate) sampled_calls: u32,
    /// Intervals that were measured again, since a thread of theirs had to wait for a core.
    #[serde(default)]
    pub(crate) disturbed: u32,
    /// How many cores others had at work, where so many intervals were disturbed that those count too.
    #[serde(default)]
    pub(crate) crowded_by: Option<f64>,
}

impl TimingSamples {
    /// Half an interquartile range over its median: of what the time rests on.
    pub(crate) fn spread(&self) -> f64 {
        relative_spread(&self.decisive())
    }

    /// Bursts, per call, where they are alike and more than one, of the longest; else single calls.
    fn decisive(&self) -> Vec<f64> {
        if self.alike && self.bursts.len() > 1 {
            self.longest_bursts()
                .map(|(length, time)| time / f64::from(length))
                .collect()
        } else {
            self.singles.clone()
        }
    }

    fn longest_bursts(&self) -> impl Iterator<Item = (u32, f64)> {
        let longest = self.bursts.iter().map(|(length, _)| *length).max();
        let bursts = self.bursts.iter().copied();
        bursts.filter(move |(length, _)| Some(*length) == longest)
    }

    /// Bursts of so few calls that work done once a burst shows: less than half as long as the longest.
    fn short_bursts(&self) -> impl Iterator<Item = (u32, f64)> {
        let longest = self.bursts.iter().map(|(length, _)| *length).max();
        let bursts = self.bursts.iter().copied();
        bursts.filter(move |(length, _)| longest.is_some_and(|longest| 2 * length < longest))
    }

    /// Takes in a second measurement.
    pub(crate) fn extend(&mut self, more: Self) {
        self.singles.extend(more.singles);
        self.bursts.extend(more.bursts);
        self.gated.extend(more.gated);
        self.sampled_calls += more.sampled_calls;
        self.disturbed += more.disturbed;
        self.crowded_by = self.crowded_by.or(more.crowded_by);
    }

    /// What a single call takes when nothing is in its way.
    fn fast_single(&self) -> f64 {
        quantile(
            &self.singles,
            if self.warm {
                FAST_QUANTILE_WARM
            } else {
                FAST_QUANTILE
            },
        )
    }

    /// The same of a call with nothing in it. On a GPU, without warm-ups, a quick one may be luck: the device had not changed
    /// hands.
    fn null_single(&self) -> f64 {
        if self.alike && !self.warm {
            median(&self.singles)
        } else {
            self.fast_single()
        }
    }

    /// What bursts of one length take when nothing is in their way, for each length.
    fn fast_bursts(&self) -> Vec<(f64, f64)> {
        let mut by_length: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for (length, time) in &self.bursts {
            by_length.entry(*length).or_default().push(*time);
        }
        // Of few the quickest: between it and the next there may be milliseconds.
        let quick = |(length, mut times): (u32, Vec<f64>)| {
            times.sort_by(f64::total_cmp);
            let place = (FAST_QUANTILE * (times.len() - 1) as f64) as usize;
            (f64::from(length), times[place])
        };
        by_length.into_iter().map(quick).collect()
    }

    pub(crate) fn calls(&self) -> u32 {
        let in_bursts: u32 = self.bursts.iter().map(|(length, _)| length).sum();
        (self.singles.len() + self.gated.len()) as u32 + in_bursts
    }
}

/// What a call costs with nothing in it.
#[expect(
    clippy::struct_field_names,
    reason = "each says its unit, as all times here do"
)]
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct CallOverhead {
    pub(crate) single_us: f64,
    /// Per call inside a burst.
    pub(crate) per_call_us: f64,
    /// Per burst, whatever its length; only where a candidate's bursts are alike.
    #[serde(default)]
    pub(crate) per_burst_us: f64,
    /// The same of calls that touch the device, which a context must wake for.
    #[serde(default)]
    pub(crate) per_waking_us: f64,
    /// Of a call behind the gate.
    #[serde(default)]
    pub(crate) gated_us: Option<f64>,
}

impl CallOverhead {
    /// For calls that go another way.
    pub(crate) const ZERO: Self = Self {
        single_us: 0.0,
        per_call_us: 0.0,
        per_burst_us: 0.0,
        per_waking_us: 0.0,
        gated_us: None,
    };
}

/// A time and what stands behind it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct TimeEstimate {
    pub(crate) time_us: f64,
    pub(crate) single_us: f64,
    pub(crate) burst_us: Option<f64>,
    /// What a burst takes beyond its calls and a call of nothing: what was done once for all of them.
    #[serde(default)]
    pub(crate) once_us: Option<f64>,
    /// What the device takes for a call that it cannot have begun before.
    #[serde(default)]
    pub(crate) gated_us: Option<f64>,
    /// See [`Raw::spread`].
    pub(crate) spread: f64,
    pub(crate) samples: u32,
    pub(crate) deferred: bool,
}

/// The constant, from calls of a null module that wakes the device and from bursts of one that does not.
pub(crate) fn call_overhead(waking: &TimingSamples, bursts: &TimingSamples) -> CallOverhead {
    let (slope_us, burst_us) = if bursts.alike {
        null_line(bursts).unwrap_or((0.0, 0.0))
    } else {
        (slope(bursts).unwrap_or(0.0), 0.0)
    };
    let waking_us = null_line(waking).map_or(burst_us, |(_, start)| start);
    CallOverhead {
        single_us: waking.null_single(),
        per_call_us: slope_us.max(0.0),
        per_burst_us: burst_us.max(0.0),
        per_waking_us: waking_us.max(burst_us).max(0.0),
        gated_us: (!waking.gated.is_empty()).then(|| quantile(&waking.gated, FAST_QUANTILE)),
    }
}

/// Slope and start of the line through the quick ones of the shortest and of the longest bursts.
fn null_line(raw: &TimingSamples) -> Option<(f64, f64)> {
    let bursts = raw.fast_bursts();
    let (shortest, longest) = (bursts.first()?, bursts.last()?);
    let slope = (longest.1 - shortest.1) / (longest.0 - shortest.0).max(1.0);
    let slope = slope.max(0.0);
    Some((slope, shortest.1 - slope * shortest.0))
}

/// What a call adds to a burst, the null module's share included.
fn call_in_burst(raw: &TimingSamples, constant: &CallOverhead) -> Option<f64> {
    if !raw.alike {
        return slope(raw);
    }
    let each: Vec<f64> = raw
        .longest_bursts()
        // Of what was seen half stays here too.
        .map(|(length, time)| (time - constant.per_burst_us.min(0.5 * time)) / f64::from(length))
        .collect();
    (!each.is_empty()).then(|| quantile(&each, FAST_QUANTILE))
}

/// What a burst takes beyond its calls and beyond a burst of nothing: the start of the line of its times over its lengths, less
/// that of the null module. Work that is done once for all calls lies there, whichever call does it; so does a first look at
/// what later calls find in caches.
///
/// A candidate that knows the lengths can only add to an interval. To hide work it must slow the long bursts until the line
/// that starts at one call, which has all of it, lies low: then every call of a burst takes what that one does.
fn once_us(raw: &TimingSamples, constant: &CallOverhead) -> Option<f64> {
    let call_us = call_in_burst(raw, constant)?;
    if !raw.alike {
        let start_of_null = constant.single_us - constant.per_call_us;
        return Some(raw.fast_single() - call_us - start_of_null);
    }
    // The work is in the calls of the long bursts too, a little of it in each.
    let longest = f64::from(raw.longest_bursts().next()?.0);
    let each: Vec<f64> = raw
        .short_bursts()
        .map(|(length, time)| {
            let length = f64::from(length);
            (time - constant.per_waking_us - length * call_us) / (1.0 - length / longest)
        })
        .collect();
    (!each.is_empty()).then(|| quantile(&each, FAST_QUANTILE_WARM))
}

/// The same of a baseline, that nobody could tamper with. On a GPU it may be below nothing's: a call that wakes the device for one
/// tiny kernel was seen to take 60 us more beyond its share of a burst than eager mode's do.
pub(crate) fn honest_once_us(
    raw: &TimingSamples,
    constant: &CallOverhead,
    baseline: &TimeEstimate,
) -> f64 {
    let seen = once_us(raw, constant).unwrap_or(0.0);
    let own = seen.min(ONCE_EAGER_SHARE * baseline.time_us.max(0.0));
    if raw.alike { own } else { own.max(0.0) }
}

/// What the device takes for a call that was queued before its inputs were in place. Nothing of it can have been done ahead or
/// in another call, and no process is woken meanwhile.
fn gated_us(raw: &TimingSamples, constant: &CallOverhead, share: f64) -> Option<f64> {
    let empty = constant.gated_us?;
    (!raw.gated.is_empty()).then(|| quantile(&raw.gated, share) - empty)
}

/// How much quicker a baseline's call in a burst is than one behind the gate: on warm caches, mostly.
pub(crate) fn honest_gate_gap_us(
    raw: &TimingSamples,
    constant: &CallOverhead,
    baseline: &TimeEstimate,
) -> f64 {
    let gated = gated_us(raw, constant, FAST_QUANTILE).unwrap_or(0.0);
    let gap = gated - baseline.burst_us.unwrap_or(gated);
    gap.clamp(0.0, ONCE_EAGER_SHARE * baseline.time_us.max(0.0))
}

/// How much quicker bursts are than single calls for honest reasons, learnt from a baseline nobody could tamper with. On a GPU
/// that covers a host's phases too; interruptions on a CPU would widen it without end.
pub(crate) fn honest_gap_us(
    raw: &TimingSamples,
    constant: &CallOverhead,
    baseline: &TimeEstimate,
) -> f64 {
    let single_us = if raw.alike {
        baseline.single_us
    } else {
        raw.fast_single() - constant.single_us
    };
    let burst_us = baseline.burst_us.unwrap_or(single_us);
    (single_us - burst_us).max(0.0)
}

/// What is known of honest modules, that nobody could tamper with.
#[expect(
    clippy::struct_field_names,
    reason = "each says its unit, as all times here do"
)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HonestGaps {
    /// See [`honest_gap_us`].
    pub(crate) single_us: f64,
    /// See [`honest_once_us`].
    pub(crate) once_us: f64,
    /// See [`honest_gate_gap_us`].
    pub(crate) gated_us: f64,
}

impl HonestGaps {
    /// A baseline's own.
    pub(crate) const ANY: Self = Self {
        single_us: f64::INFINITY,
        once_us: f64::INFINITY,
        gated_us: f64::INFINITY,
    };
}

/// The time that counts.
pub(crate) fn estimate(
    raw: &TimingSamples,
    constant: &CallOverhead,
    honest: HonestGaps,
) -> TimeEstimate {
    let single_us = median(&raw.singles) - constant.single_us;
    // A candidate may answer by a shorter way than the one the constant was measured on: half of what was seen stays.
    let burst_us =
        call_in_burst(raw, constant).map(|call| (call - constant.per_call_us).max(0.5 * call));
    let once_us = once_us(raw, constant);
    let gated = gated_us(raw, constant, 0.5);
    let (time_us, deferred) = match burst_us {
        None => (single_us, false),
        Some(burst) if is_batched(raw, constant, honest, burst) => {
            (gated.unwrap_or(burst).max(burst), true)
        }
        Some(burst) => match deferred_us(raw, constant, honest, burst) {
            // A single call has all the work, whatever else is in it.
            Some(deferred) => ((burst + deferred).min(single_us).max(burst), true),
            None => (burst, false),
        },
    };
    TimeEstimate {
        time_us: time_us.max(resolution_us(constant)),
        single_us,
        burst_us,
        once_us,
        gated_us: gated,
        spread: raw.spread(),
        samples: raw.calls(),
        deferred,
    }
}

/// Whether a call of a burst takes less than one behind the gate, beyond what honest modules show too: work of several calls was
/// done at once, or work that depends on weights alone once for all of them.
fn is_batched(
    raw: &TimingSamples,
    constant: &CallOverhead,
    honest: HonestGaps,
    burst_us: f64,
) -> bool {
    gated_us(raw, constant, FAST_QUANTILE).is_some_and(|gated| {
        let allowed = GATED_US.max(GATED_SHARE * gated);
        burst_us < gated - allowed.max(ONCE_EAGER_TIMES * honest.gated_us)
    })
}

/// What of a call's work is not in a call of a burst, beyond what honest modules show too.
fn deferred_us(
    raw: &TimingSamples,
    constant: &CallOverhead,
    honest: HonestGaps,
    burst_us: f64,
) -> Option<f64> {
    let once = once_us(raw, constant).unwrap_or(0.0);
    let allowed = ONCE_US.max(ONCE_SHARE * burst_us);
    let allowed = allowed.max(ONCE_EAGER_TIMES * honest.once_us);
    // Where nothing took longer to begin than eager mode does, it is eager mode that tells what a beginning takes.
    let once = once - honest.once_us.min(0.0);
    let once = (once > allowed).then_some(once);
    let single_us = raw.fast_single() - constant.single_us;
    if !raw.alike {
        return once;
    }
    // Contexts of a GPU change hands before a single call, so there it tells less; but it has all the work.
    let rough = if raw.warm {
        DEFERRED_CONSTANT_SHARE * constant.single_us
    } else {
        DEFERRED_COLD_US
    };
    let allowed = DEFERRED_US
        .max(DEFERRED_SHARE * single_us)
        .max(rough)
        .max(1.5 * honest.single_us);
    if burst_us < single_us - allowed {
        return Some(median(&raw.singles) - constant.single_us - burst_us);
    }
    once
}

/// For a candidate that is noisy on a quiet machine: what nine calls in ten stay below.
pub(crate) fn pessimistic(raw: &TimingSamples, constant: &CallOverhead) -> TimeEstimate {
    let single_us = quantile(&raw.singles, 0.9) - constant.single_us;
    TimeEstimate {
        time_us: single_us.max(resolution_us(constant)),
        single_us,
        burst_us: None,
        once_us: None,
        gated_us: None,
        spread: raw.spread(),
        samples: raw.calls(),
        deferred: false,
    }
}

/// Whether the constant cannot belong to this measurement: nothing takes less than a call with nothing in it. After warm-ups
/// the constant is small, and the phases of a host are a larger share of it; without them, on a GPU, it is a process just
/// woken, which one is sooner than another.
pub(crate) fn contradicts(raw: &TimingSamples, constant: &CallOverhead) -> bool {
    let share = if raw.warm || raw.alike { 0.5 } else { 0.25 };
    median(&raw.singles) < (1.0 - share) * constant.single_us
}

/// What cannot be told apart from nothing: a small share of the constant. Candidates and baselines below it count as equal.
fn resolution_us(constant: &CallOverhead) -> f64 {
    (0.02 * constant.single_us).max(1.0)
}

/// Several shapes count as one by their geometric mean.
pub(crate) fn combine(estimates: &[TimeEstimate]) -> Option<TimeEstimate> {
    let (first, rest) = estimates.split_first()?;
    if rest.is_empty() {
        return Some(*first);
    }
    let mean = |of: &dyn Fn(&TimeEstimate) -> f64| {
        (estimates
            .iter()
            .map(|estimate| of(estimate).max(0.5).ln())
            .sum::<f64>()
            / estimates.len() as f64)
            .exp()
    };
    Some(TimeEstimate {
        time_us: mean(&|estimate| estimate.time_us),
        single_us: mean(&|estimate| estimate.single_us),
        burst_us: estimates
            .iter()
            .all(|e| e.burst_us.is_some())
            .then(|| mean(&|e| e.burst_us.unwrap_or(e.single_us))),
        once_us: estimates.iter().filter_map(|e| e.once_us).reduce(f64::max),
        gated_us: estimates.iter().filter_map(|e| e.gated_us).reduce(f64::max),
        spread: estimates
            .iter()
            .map(|estimate| estimate.spread)
            .fold(0.0, f64::max),
        samples: estimates.iter().map(|estimate| estimate.samples).sum(),
        deferred: estimates.iter().any(|estimate| estimate.deferred),
    })
}

/// Whether the time is clear of every line by three standard errors of its median.
pub(crate) fn is_clear_of(raw: &TimingSamples, constant: &CallOverhead, lines_us: &[f64]) -> bool {
    if raw.singles.len() < 8 {
        return false;
    }
    let now = estimate(raw, constant, HonestGaps::ANY);
    // The standard error of a median is 1.2533 sigma / sqrt(n); sigma is 0.7413 interquartile ranges.
    let decisive = raw.decisive();
    let error = 3.0 * 1.2533 * 0.7413 * interquartile(&decisive) / (decisive.len() as f64).sqrt();
    lines_us
        .iter()
        .all(|line| (now.time_us - line).abs() > error)
}

/// Theil-Sen, weighted, over the quick intervals of each length: the median of the slopes of all pairs, each with the weight
/// of its difference in length, since an error of an interval moves a short difference most. Single calls are bursts of one.
fn slope(raw: &TimingSamples) -> Option<f64> {
    if raw.bursts.is_empty() || raw.singles.is_empty() {
        return None;
    }
    let mut points = vec![(1.0, raw.fast_single())];
    points.extend(raw.fast_bursts());
    let mut slopes = Vec::new();
    for (index, first) in points.iter().enumerate() {
        for second in &points[index + 1..] {
            let longer = second.0 - first.0;
            if longer > 0.5 {
                slopes.push(((second.1 - first.1) / longer, longer));
            }
        }
    }
    weighted_median(slopes)
}

fn weighted_median(mut values: Vec<(f64, f64)>) -> Option<f64> {
    values.sort_by(|first, second| first.0.total_cmp(&second.0));
    let half = values.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut below = 0.0;
    for (value, weight) in values {
        below += weight;
        if below >= half {
            return Some(value);
        }
    }
    None
}

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

fn interquartile(values: &[f64]) -> f64 {
    quantile(values, 0.75) - quantile(values, 0.25)
}

fn relative_spread(values: &[f64]) -> f64 {
    let middle = median(values);
    if middle > 0.0 {
        0.5 * interquartile(values) / middle
    } else {
        f64::NAN
    }
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted: Vec<f64> = values
        .iter()
        .copied()
        .filter(|value| value.is_finite())
        .collect();
    if sorted.is_empty() {
        return f64::NAN;
    }
    sorted.sort_by(f64::total_cmp);
    let place = share * (sorted.len() - 1) as f64;
    let low = place.floor() as usize;
    let high = place.ceil() as usize;
    sorted[low] + (sorted[high] - sorted[low]) * (place - low as f64)
}

#[cfg(test)]
mod attackers;
#[cfg(test)]
mod tests;
