use serde::Serialize;

use super::{Baseline, EpisodeMetrics, PrecisionClass, Way};

/// Points of a curve: p from 0 to 3, twenty to each.
const STEPS: u32 = 60;
const STEPS_PER_ONE: f64 = 20.0;

/// A curve's points, p first.
pub type Curve = Vec<(f64, f64)>;

/// The share of all episodes that are correct and more than `p` times as fast as the baseline; at 0, that are correct.
/// `None` of no episodes.
pub fn fast_p(episodes: &[EpisodeMetrics<'_>], baseline: Baseline, p: f64) -> Option<f64> {
    let counts = |episode: &&EpisodeMetrics<'_>| {
        let speedup = episode.measured().and_then(|one| one.speedup(baseline));
        // Any time is below a baseline's divided by nothing, also where one of them was not measured.
        episode.correct() && speedup.map_or(p <= 0.0, |speedup| speedup > p)
    };
    let count = episodes.iter().filter(counts).count();
    (!episodes.is_empty()).then(|| count as f64 / episodes.len() as f64)
}

/// The curves over every baseline that was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FastP {
    pub eager: Curve,
    pub compile: Option<Curve>,
    pub matched_eager: Option<Curve>,
    pub matched_compile: Option<Curve>,
}

impl FastP {
    pub(super) fn of(episodes: &[EpisodeMetrics<'_>]) -> Self {
        let curve = |baseline| -> Curve {
            (0..=STEPS)
                .map(|step| f64::from(step) / STEPS_PER_ONE)
                .filter_map(|p| Some((p, fast_p(episodes, baseline, p)?)))
                .collect()
        };
        let measured = |baseline| {
            let mut found = episodes.iter().filter_map(EpisodeMetrics::measured);
            let any = found.any(|one| one.baseline_us(baseline).is_some());
            any.then(|| curve(baseline))
        };
        Self {
            eager: curve(Baseline::EAGER),
            compile: measured(Baseline::COMPILE),
            matched_eager: measured(Baseline::new(Way::Eager, PrecisionClass::Matched)),
            matched_compile: measured(Baseline::new(Way::Compile, PrecisionClass::Matched)),
        }
    }
}
