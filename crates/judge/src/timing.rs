//! From raw intervals to a time: pure functions, so that every rule here has a table test.
//!
//! Two measurements (see `docs/concepts/timing.md`): *single calls*, where the next input does not exist until the last
//! output was taken away, less the constant a call costs with nothing in it; and *bursts*, over which that constant is
//! spread thin. Work that was batched or put off makes a call in a burst quicker than the single call; then the single
//! call counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A burst may be this much quicker than a single call before work counts as put off.
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
}

impl TimingSamples {
    /// Half an interquartile range over its median: of what the time rests on.
    pub(crate) fn spread(&self) -> f64 {
        relative_spread(&self.decisive())
    }

    /// Bursts, per call, where they are alike and more than one, the longest of the null module's; else single calls.
    fn decisive(&self) -> Vec<f64> {
        if self.alike && self.bursts.len() > 1 {
            let longest = self.bursts.iter().map(|(length, _)| *length).max();
            let each = self.bursts.iter();
            each.filter(|(length, _)| Some(*length) == longest)
                .map(|(length, time)| time / f64::from(*length))
                .collect()
        } else {
            self.singles.clone()
        }
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
        self.singles.len() as u32 + self.bursts.iter().map(|(length, _)| length).sum::<u32>()
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
}

impl CallOverhead {
    /// For calls that go another way.
    pub(crate) const ZERO: Self = Self {
        single_us: 0.0,
        per_call_us: 0.0,
        per_burst_us: 0.0,
    };
}

/// A time and what stands behind it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct TimeEstimate {
    pub(crate) time_us: f64,
    pub(crate) single_us: f64,
    pub(crate) burst_us: Option<f64>,
    /// See [`Raw::spread`].
    pub(crate) spread: f64,
    pub(crate) samples: u32,
    pub(crate) deferred: bool,
}

/// The constant, from single calls of a null module that wakes the device and from bursts of one that does not.
pub(crate) fn call_overhead(singles: &TimingSamples, bursts: &TimingSamples) -> CallOverhead {
    let (slope_us, burst_us) = if bursts.alike {
        null_line(bursts).unwrap_or((0.0, 0.0))
    } else {
        (slope(bursts).unwrap_or(0.0), 0.0)
    };
    CallOverhead {
        single_us: singles.null_single(),
        per_call_us: slope_us.max(0.0),
        per_burst_us: burst_us.max(0.0),
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
    let each = raw.bursts.iter();
    let each: Vec<f64> = each
        // Of what was seen half stays here too.
        .map(|(length, time)| (time - constant.per_burst_us.min(0.5 * time)) / f64::from(*length))
        .collect();
    (!each.is_empty()).then(|| quantile(&each, FAST_QUANTILE))
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

/// The time that counts.
pub(crate) fn estimate(
    raw: &TimingSamples,
    constant: &CallOverhead,
    honest_gap_us: f64,
) -> TimeEstimate {
    let single_us = median(&raw.singles) - constant.single_us;
    // A candidate may answer by a shorter way than the one the constant was measured on: half of what was seen stays.
    let burst_us =
        call_in_burst(raw, constant).map(|call| (call - constant.per_call_us).max(0.5 * call));
    let spread = raw.spread();
    let (time_us, deferred) = match burst_us {
        Some(burst) => {
            let rough = if raw.alike && !raw.warm {
                DEFERRED_COLD_US
            } else {
                DEFERRED_CONSTANT_SHARE * constant.single_us
            };
            let allowance = DEFERRED_US
                .max(DEFERRED_SHARE * single_us)
                .max(rough)
                .max(1.5 * honest_gap_us);
            // Work that bursts batch or put off is in every single call, the quick ones too.
            if burst < raw.fast_single() - constant.single_us - allowance {
                (single_us, true)
            } else {
                (burst, false)
            }
        }
        _ => (single_us, false),
    };
    TimeEstimate {
        time_us: time_us.max(resolution_us(constant)),
        single_us,
        burst_us,
        spread,
        samples: raw.calls(),
        deferred,
    }
}

/// For a candidate that is noisy on a quiet machine: what nine calls in ten stay below.
pub(crate) fn pessimistic(raw: &TimingSamples, constant: &CallOverhead) -> TimeEstimate {
    let single_us = quantile(&raw.singles, 0.9) - constant.single_us;
    TimeEstimate {
        time_us: single_us.max(resolution_us(constant)),
        single_us,
        burst_us: None,
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
    let now = estimate(raw, constant, f64::INFINITY);
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
mod tests {
    use super::*;

    const CONSTANT: CallOverhead = CallOverhead {
        single_us: 180.0,
        per_call_us: 8.0,
        per_burst_us: 0.0,
    };

    fn raw(single: f64, per_call: f64) -> TimingSamples {
        TimingSamples {
            singles: vec![single; 3],
            bursts: [2, 4, 8]
                .iter()
                .map(|&length| (length, single + per_call * f64::from(length - 1)))
                .collect(),
            warm: false,
            alike: false,
            sampled_calls: 0,
        }
    }

    #[test]
    fn honest_work_is_credited_by_its_slope() {
        let estimate = estimate(&raw(180.0 + 100.0, 108.0), &CONSTANT, 0.0);
        assert!((estimate.time_us - 100.0).abs() < 1e-9);
        assert!(!estimate.deferred);
        assert_eq!(estimate.samples, 3 + 14);
    }

    #[test]
    fn batched_work_is_credited_by_its_single_call() {
        // 700 us alone but 50 us each in a burst: something was put off until later calls.
        let estimate = estimate(&raw(180.0 + 700.0, 58.0), &CONSTANT, 0.0);
        assert!(estimate.deferred);
        assert!((estimate.time_us - 700.0).abs() < 1e-9);
    }

    #[test]
    fn a_few_quick_calls_speak_for_an_honest_kernel() {
        let mut noisy = raw(180.0 + 300.0, 108.0);
        noisy.singles = vec![300.0, 305.0, 460.0, 480.0, 490.0, 500.0];
        noisy.alike = true;
        noisy.bursts = vec![(64, 150.0 + 108.0 * 64.0); 5];
        let constant = CallOverhead {
            per_burst_us: 150.0,
            ..CONSTANT
        };
        let honest = estimate(&noisy, &constant, 0.0);
        assert!(!honest.deferred);
        assert!((honest.time_us - 100.0).abs() < 1e-9);
        // Batched work is in every single call.
        noisy.singles = vec![800.0, 805.0, 860.0, 880.0, 890.0, 900.0];
        assert!(estimate(&noisy, &CONSTANT, 0.0).deferred);
    }

    #[test]
    fn batched_long_calls_are_seen_behind_a_large_constant() {
        let constant = CallOverhead {
            single_us: 1000.0,
            per_call_us: 20.0,
            per_burst_us: 800.0,
        };
        let long = |each: f64| TimingSamples {
            singles: (0..20).map(|step| 1950.0 + 5.0 * f64::from(step)).collect(),
            bursts: vec![(12, 800.0 + 12.0 * (each + 20.0)); 4],
            alike: true,
            ..TimingSamples::default()
        };
        let honest = estimate(&long(950.0), &constant, 0.0);
        assert!(!honest.deferred);
        assert!((honest.time_us - 950.0).abs() < 1e-6);
        // A third of the work of every call was shared with others.
        assert!(estimate(&long(690.0), &constant, 0.0).deferred);
    }

    #[test]
    fn no_more_than_half_of_a_burst_is_taken_off() {
        let constant = CallOverhead {
            single_us: 1000.0,
            per_call_us: 0.0,
            per_burst_us: 800.0,
        };
        let quick = TimingSamples {
            singles: vec![1000.0; 8],
            bursts: vec![(4, 840.0); 4],
            alike: true,
            ..TimingSamples::default()
        };
        assert!((estimate(&quick, &constant, 0.0).time_us - 105.0).abs() < 1e-6);
    }

    #[test]
    fn nothing_never_gets_quicker_with_more_calls() {
        let noisy = TimingSamples {
            bursts: vec![(2, 900.0), (3, 800.0)],
            alike: true,
            ..TimingSamples::default()
        };
        let singles = TimingSamples {
            singles: vec![1000.0],
            alike: true,
            ..TimingSamples::default()
        };
        let measured = call_overhead(&singles, &noisy);
        assert_eq!((measured.per_call_us, measured.per_burst_us), (0.0, 900.0));
    }

    #[test]
    fn bursts_after_which_a_core_was_taken_away_do_not_count() {
        let nothing = TimingSamples {
            singles: vec![300.0],
            bursts: [(16, 160.0 + 16.0 * 15.0), (64, 160.0 + 64.0 * 15.0)].repeat(6),
            warm: true,
            alike: true,
            sampled_calls: 0,
        };
        let constant = call_overhead(&nothing, &nothing);
        assert!(
            (constant.per_call_us - 15.0).abs() < 1e-9
                && (constant.per_burst_us - 160.0).abs() < 1e-9
        );
        let clean = 160.0 + 64.0 * (15.0 + 20.0);
        let kernel = TimingSamples {
            singles: vec![330.0; 8],
            bursts: [1.0, 2.2, 1.0, 9.0, 1.0, 1.0, 1.4, 1.0]
                .map(|times| (64, clean * times))
                .to_vec(),
            warm: true,
            alike: true,
            sampled_calls: 0,
        };
        let estimate = estimate(&kernel, &constant, 0.0);
        assert!(
            (estimate.time_us - 20.0).abs() < 1e-9,
            "{}",
            estimate.time_us
        );
        // Noisy single calls are not what the time rests on.
        let mut noisy = kernel.clone();
        noisy.singles = vec![200.0, 300.0, 600.0, 900.0];
        assert!((noisy.spread() - kernel.spread()).abs() < 1e-12);
        noisy.alike = false;
        assert!(noisy.spread() > kernel.spread());
    }

    /// Slow short bursts once made the slope of long ones look small.
    #[test]
    fn slow_short_bursts_gain_nothing_where_bursts_are_alike() {
        let constant = CallOverhead {
            per_burst_us: 160.0,
            ..CONSTANT
        };
        let mut kernel = TimingSamples {
            singles: vec![220.0; 8],
            bursts: vec![(64, 160.0 + 64.0 * 48.0); 6],
            warm: true,
            alike: true,
            sampled_calls: 0,
        };
        let honest = estimate(&kernel, &constant, 0.0).time_us;
        kernel.bursts.push((16, 160.0 + 64.0 * 48.0));
        assert!(estimate(&kernel, &constant, 0.0).time_us >= honest - 1e-9);
    }

    #[test]
    fn small_gaps_are_not_called_deferred() {
        let estimate = estimate(&raw(180.0 + 100.0, 8.0 + 60.0), &CONSTANT, 0.0);
        assert!(!estimate.deferred);
    }

    #[test]
    fn without_bursts_single_calls_decide() {
        let mut raw = raw(180.0 + 5000.0, 1000.0);
        raw.bursts.clear();
        let estimate = estimate(&raw, &CONSTANT, 0.0);
        assert!((estimate.time_us - 5000.0).abs() < 1e-9);
        assert!(!estimate.deferred);
    }

    #[test]
    fn a_constant_from_a_busier_hour_is_noticed() {
        let stale = CallOverhead {
            single_us: 36_900.0,
            per_call_us: 8.0,
            per_burst_us: 0.0,
        };
        assert!(contradicts(&raw(20_000.0, 20_000.0), &stale));
        assert!(!contradicts(&raw(280.0, 108.0), &CONSTANT));
    }

    #[test]
    fn a_constant_after_warm_ups_stands_a_noisy_host() {
        let mut nothing = raw(300.0, 8.0);
        nothing.singles = vec![210.0, 300.0, 310.0, 320.0, 330.0, 340.0];
        nothing.warm = true;
        let measured = call_overhead(&nothing, &nothing);
        assert!(measured.single_us < 260.0, "{}", measured.single_us);
        let mut quick = raw(200.0, 20.0);
        quick.warm = true;
        assert!(!contradicts(&quick, &measured));
        assert!(contradicts(&raw(60.0, 20.0), &measured));
    }

    #[test]
    fn a_time_is_never_zero_or_negative() {
        let estimate = estimate(&raw(170.0, 5.0), &CONSTANT, 0.0);
        assert!(estimate.time_us > 0.0);
    }

    #[test]
    fn one_wild_interval_does_not_move_the_slope() {
        let mut raw = raw(180.0 + 100.0, 108.0);
        raw.bursts.push((4, 90_000.0));
        let estimate = estimate(&raw, &CONSTANT, 0.0);
        assert!(
            (estimate.time_us - 100.0).abs() < 5.0,
            "{}",
            estimate.time_us
        );
    }

    /// Intervals of a machine with busy neighbours, more than half of them interrupted for milliseconds.
    #[test]
    fn a_machine_that_takes_cores_away_does_not_move_a_short_time() {
        let noisy = TimingSamples {
            singles: vec![
                2400.0, 3909.0, 345.0, 10346.0, 7680.0, 340.0, 5824.0, 352.0, 6475.0, 338.0,
            ],
            bursts: vec![
                (2, 2336.0),
                (2, 401.0),
                (2, 8872.0),
                (4, 521.0),
                (4, 3692.0),
                (4, 519.0),
                (6, 643.0),
                (6, 2850.0),
                (6, 7073.0),
                (8, 12225.0),
                (8, 761.0),
                (8, 3230.0),
            ],
            ..TimingSamples::default()
        };
        let nothing = CallOverhead {
            single_us: 300.0,
            per_call_us: 35.0,
            per_burst_us: 0.0,
        };
        let found = estimate(&noisy, &nothing, 0.0);
        // 60 us a call, of which Python takes 35; more than half of it stays.
        assert!((20.0..200.0).contains(&found.time_us), "{}", found.time_us);
        assert!(!found.deferred);
        let gap = honest_gap_us(&noisy, &nothing, &found);
        assert!(gap < 50.0, "{gap}");
    }

    #[test]
    fn long_differences_weigh_more() {
        let values = vec![(1.0, 1.0), (5.0, 10.0), (9.0, 1.0), (2.0, 1.0)];
        assert_eq!(weighted_median(values), Some(5.0));
        assert_eq!(weighted_median(Vec::new()), None);
    }

    #[test]
    fn shapes_combine_by_geometric_mean() {
        let one = estimate(&raw(180.0 + 100.0, 108.0), &CONSTANT, 0.0);
        let mut two = one;
        two.time_us = 400.0;
        assert!((combine(&[one, two]).unwrap().time_us - 200.0).abs() < 1e-6);
    }

    #[test]
    fn clear_of_a_line_needs_samples_and_distance() {
        let mut raw = raw(180.0 + 100.0, 108.0);
        assert!(!is_clear_of(&raw, &CONSTANT, &[200.0]));
        raw.singles = (0..16).map(|step| 280.0 + f64::from(step % 3)).collect();
        assert!(is_clear_of(&raw, &CONSTANT, &[200.0]));
        assert!(!is_clear_of(&raw, &CONSTANT, &[100.5]));
    }
}
