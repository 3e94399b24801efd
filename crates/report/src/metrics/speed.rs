use serde::Serialize;
use warpsmith_schema::{Number, Verdict, is_faster};

use super::{EpisodeMetrics, Share, geomean, median};

/// The times of a correct attempt, all finite and above zero.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    pub runtime_us: f64,
    /// In strict fp32.
    pub strict: Baselines,
    /// In the attempt's own precision class.
    pub matched: Option<Baselines>,
}

/// What the original takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Baselines {
    pub eager_us: f64,
    /// `None` where it was not measured.
    pub compile_us: Option<f64>,
}

/// How the original is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    Eager,
    Compile,
}

/// The precision of the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PrecisionClass {
    /// Fp32 whatever the attempt does.
    Strict,
    /// That of the attempt, TF32 against TF32.
    Matched,
}

/// What a runtime is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Baseline {
    pub way: Way,
    pub class: PrecisionClass,
}

impl Baseline {
    pub const EAGER: Self = Self::new(Way::Eager, PrecisionClass::Strict);
    pub const COMPILE: Self = Self::new(Way::Compile, PrecisionClass::Strict);

    pub const fn new(way: Way, class: PrecisionClass) -> Self {
        Self { way, class }
    }
}

impl Baselines {
    fn of(eager: Number, compile: Option<Number>) -> Option<Self> {
        Some(Self {
            eager_us: positive(eager)?,
            compile_us: compile.and_then(positive),
        })
    }
}

impl Measured {
    /// `None` where there are no times, or none that can be divided by.
    pub fn of(verdict: &Verdict) -> Option<Self> {
        let times = verdict.times_us.as_ref()?;
        let matched = verdict.matched_precision;
        Some(Self {
            runtime_us: positive(times.candidate)?,
            strict: Baselines::of(times.eager, times.compile)?,
            matched: matched.and_then(|found| Baselines::of(found.eager_us, found.compile_us)),
        })
    }

    pub fn baseline_us(&self, baseline: Baseline) -> Option<f64> {
        let of = match baseline.class {
            PrecisionClass::Strict => self.strict,
            PrecisionClass::Matched => self.matched?,
        };
        match baseline.way {
            Way::Eager => Some(of.eager_us),
            Way::Compile => of.compile_us,
        }
    }

    /// How many times as fast as the baseline.
    pub fn speedup(&self, baseline: Baseline) -> Option<f64> {
        Some(self.baseline_us(baseline)? / self.runtime_us)
    }
}

fn positive(number: Number) -> Option<f64> {
    Some(number.0).filter(|value| value.is_finite() && *value > 0.0)
}

/// Speed-ups over one baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Speed {
    /// Of all episodes, those that are correct and below the baseline's time (a bar of 0 %).
    pub faster: Share,
    /// Those below 95 % of it (a bar of 5 %), which noise does not explain.
    pub clearly_faster: Share,
    /// Over the correct ones.
    pub geomean: Option<f64>,
    pub median: Option<f64>,
    /// Over all, a failure counted as 1: who gets nothing better keeps the original.
    pub geomean_all: Option<f64>,
    pub median_all: Option<f64>,
    /// Correct ones without this baseline. They count as not faster, and are in no mean.
    pub not_measured: usize,
}

/// Speed-ups over both ways to run the original.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Against {
    pub eager: Option<Speed>,
    pub compile: Option<Speed>,
}

impl Against {
    pub(super) fn of(episodes: &[EpisodeMetrics<'_>], class: PrecisionClass) -> Self {
        Self {
            eager: Speed::of(episodes, Baseline::new(Way::Eager, class)),
            compile: Speed::of(episodes, Baseline::new(Way::Compile, class)),
        }
    }

    pub fn over(&self, way: Way) -> Option<&Speed> {
        match way {
            Way::Eager => self.eager.as_ref(),
            Way::Compile => self.compile.as_ref(),
        }
    }
}

impl Speed {
    /// `None` where the baseline was measured for no correct episode.
    pub fn of(episodes: &[EpisodeMetrics<'_>], baseline: Baseline) -> Option<Self> {
        let correct: Vec<_> = episodes
            .iter()
            .filter_map(EpisodeMetrics::measured)
            .collect();
        let pairs: Vec<(f64, f64)> = correct
            .iter()
            .filter_map(|one| Some((one.runtime_us, one.baseline_us(baseline)?)))
            .collect();
        let untimed = |one: &&EpisodeMetrics<'_>| one.correct() && one.measured().is_none();
        let untimed = episodes.iter().filter(untimed).count();
        let not_measured = correct.len() - pairs.len() + untimed;
        if pairs.is_empty() && not_measured > 0 {
            return None;
        }
        let below = |bar: fn(f64, f64) -> bool| Share {
            count: pairs.iter().filter(|(time, of)| bar(*time, *of)).count(),
            of: episodes.len(),
        };
        let speedups: Vec<f64> = pairs.iter().map(|(time, of)| of / time).collect();
        let failed = episodes.len() - correct.len();
        let all = [speedups.as_slice(), &vec![1.0; failed]].concat();
        Some(Self {
            faster: below(|time, of| time < of),
            clearly_faster: below(is_faster),
            geomean: geomean(&speedups),
            median: median(&speedups),
            geomean_all: geomean(&all),
            median_all: median(&all),
            not_measured,
        })
    }
}
