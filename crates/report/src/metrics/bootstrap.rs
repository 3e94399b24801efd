//! How far a number may be chance. Tasks are drawn again with replacement, each with all its samples: samples of one task
//! resemble each other, so drawing episodes would promise too much.

use serde::Serialize;

use super::episode::by_task;
use super::{Baseline, EpisodeMetrics, Share, Speed, Way};

/// How often the tasks are drawn anew.
pub const RESAMPLES: usize = 1000;
/// The same where a task is one number, and a draw costs little.
pub const MEAN_RESAMPLES: usize = 10_000;
/// 95 % lie between.
const TAILS: (f64, f64) = (0.025, 0.975);

/// Between these lie 95 % of what resampling gives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
}

/// Null where there are fewer than two tasks, or where most resamples have no such number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Intervals {
    pub compiled: Option<Interval>,
    pub correct: Option<Interval>,
    /// By the bar of 5 %.
    pub faster_than_eager: Option<Interval>,
    pub faster_than_compile: Option<Interval>,
    /// Geometric means over the correct.
    pub speedup_eager: Option<Interval>,
    pub speedup_compile: Option<Interval>,
}

/// Any number that can be worked out from episodes.
type Statistic = fn(&[EpisodeMetrics<'_>]) -> Option<f64>;

impl Intervals {
    pub(super) fn of(episodes: &[EpisodeMetrics<'_>], seed: u64) -> Self {
        let statistics: [Statistic; 6] = [
            |drawn| Share::among(drawn, EpisodeMetrics::compiled).value(),
            |drawn| Share::among(drawn, EpisodeMetrics::correct).value(),
            |drawn| clearly_faster(drawn, Baseline::EAGER),
            |drawn| clearly_faster(drawn, Baseline::COMPILE),
            |drawn| speedup(drawn, Baseline::EAGER),
            |drawn| speedup(drawn, Baseline::COMPILE),
        ];
        let [compiled, correct, than_eager, than_compile, eager, compile] =
            intervals(&by_task(episodes), seed, statistics);
        // What was never measured has no interval either.
        let measured = Speed::of(episodes, Baseline::COMPILE).is_some();
        Self {
            compiled,
            correct,
            faster_than_eager: than_eager,
            faster_than_compile: than_compile.filter(|_| measured),
            speedup_eager: eager,
            speedup_compile: compile,
        }
    }
}

impl Intervals {
    pub fn faster(&self, way: Way) -> Option<Interval> {
        match way {
            Way::Eager => self.faster_than_eager,
            Way::Compile => self.faster_than_compile,
        }
    }

    pub fn speedup(&self, way: Way) -> Option<Interval> {
        match way {
            Way::Eager => self.speedup_eager,
            Way::Compile => self.speedup_compile,
        }
    }
}

fn clearly_faster(episodes: &[EpisodeMetrics<'_>], baseline: Baseline) -> Option<f64> {
    Speed::of(episodes, baseline)?.clearly_faster.value()
}

fn speedup(episodes: &[EpisodeMetrics<'_>], baseline: Baseline) -> Option<f64> {
    Speed::of(episodes, baseline)?.geomean
}

fn intervals<const N: usize>(
    tasks: &[Vec<EpisodeMetrics<'_>>],
    seed: u64,
    statistics: [Statistic; N],
) -> [Option<Interval>; N] {
    if tasks.len() < 2 {
        return [None; N];
    }
    let mut draws = Draws(seed);
    let mut drawn = Vec::new();
    let mut found = statistics.map(|statistic| (statistic, Vec::with_capacity(RESAMPLES)));
    for _ in 0..RESAMPLES {
        drawn.clear();
        for _ in tasks {
            drawn.extend(&tasks[draws.below(tasks.len())]);
        }
        for (statistic, values) in &mut found {
            values.extend(statistic(&drawn));
        }
    }
    found.map(|(_, values)| (values.len() > RESAMPLES / 2).then(|| interval(values)))
}

/// Of at least one value.
fn interval(mut values: Vec<f64>) -> Interval {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[(share * (values.len() - 1) as f64).round() as usize];
    Interval {
        low: at(TAILS.0),
        high: at(TAILS.1),
    }
}

/// How far a mean over tasks may be chance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeanBootstrap {
    pub interval: Interval,
    /// Two-sided: how often resamples give a mean on the other side of zero, twice. Of differences it is a paired test.
    pub p_value: f64,
}

impl MeanBootstrap {
    /// Of one number for each task; `None` below two tasks.
    pub(super) fn of(tasks: &[f64], seed: u64) -> Option<Self> {
        if tasks.len() < 2 {
            return None;
        }
        let mut draws = Draws(seed);
        let mut mean = || {
            let drawn = tasks.iter().map(|_| tasks[draws.below(tasks.len())]);
            drawn.sum::<f64>() / tasks.len() as f64
        };
        let means: Vec<f64> = (0..MEAN_RESAMPLES).map(|_| mean()).collect();
        let below = means.iter().filter(|mean| **mean <= ROUNDING).count();
        let above = means.iter().filter(|mean| **mean >= -ROUNDING).count();
        // What was observed counts as one more, so that it is never zero.
        let tail = (1 + below.min(above)) as f64 / (1 + MEAN_RESAMPLES) as f64;
        Some(Self {
            interval: interval(means),
            p_value: (2.0 * tail).min(1.0),
        })
    }
}

/// Shares whose sum is zero may miss it by this.
const ROUNDING: f64 = 1e-12;

/// `SplitMix64`: the same intervals from the same seed, whatever version of which library is about.
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::{Draws, MeanBootstrap};

    /// A mean of 100 tasks that are 1 or 0: by the normal distribution 0.5 ± 1.96 · sqrt(0.25 / 100) = 0.402 to 0.598.
    #[test]
    fn a_mean_is_as_uncertain_as_the_normal_distribution_says() {
        let tasks: Vec<f64> = (0..100).map(|task| f64::from(task % 2)).collect();
        let found = MeanBootstrap::of(&tasks, 0).unwrap();
        assert!((found.interval.low - 0.402).abs() < 0.015, "{found:?}");
        assert!((found.interval.high - 0.598).abs() < 0.015, "{found:?}");
        assert_eq!(Some(found), MeanBootstrap::of(&tasks, 0));
        // Never zero in a resample, so as unlikely as 10,000 of them can say.
        assert!((found.p_value - 2.0 / 10_001.0).abs() < 1e-12);
        assert_eq!(MeanBootstrap::of(&tasks[..1], 0), None);
    }

    /// 15 tasks better, 5 worse, 80 the same: z = 0.1 / sqrt((0.2 − 0.01) / 100) = 2.29, p = 0.022.
    #[test]
    fn a_paired_test_has_the_p_value_of_the_normal_distribution() {
        let tasks: Vec<f64> = (0..100)
            .map(|task| match task {
                0..15 => 1.0,
                15..20 => -1.0,
                _ => 0.0,
            })
            .collect();
        let found = MeanBootstrap::of(&tasks, 0).unwrap();
        assert!((0.012..0.04).contains(&found.p_value), "{found:?}");
        assert!(
            found.interval.low > 0.0 && found.interval.high < 0.2,
            "{found:?}"
        );
        // As often better as worse.
        let found = MeanBootstrap::of(&[1.0, -1.0, 0.5, -0.5, 0.0], 0).unwrap();
        assert!(found.p_value > 0.9, "{found:?}");
        // All the same.
        let found = MeanBootstrap::of(&[0.0; 5], 0).unwrap();
        assert_eq!(
            (found.p_value, found.interval.low, found.interval.high),
            (1.0, 0.0, 0.0)
        );
    }

    /// The first outputs of the published generator for seed 1234567.
    #[test]
    fn draws_are_those_of_splitmix() {
        let mut draws = Draws(1_234_567);
        let found: Vec<u64> = (0..3).map(|_| draws.next()).collect();
        assert_eq!(
            found,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }
}
