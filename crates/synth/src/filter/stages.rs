//! Where a candidate's time went.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// The filters that run a candidate, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilterStage {
    Screen,
    Compile,
    Time,
    Survey,
}

impl FilterStage {
    pub fn name(self) -> &'static str {
        match self {
            Self::Screen => "screen",
            Self::Compile => "compile",
            Self::Time => "time",
            Self::Survey => "survey",
        }
    }
}

/// Seconds in each stage that a candidate came to, without what it waited for its turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FilterSeconds(BTreeMap<FilterStage, f64>);

impl FilterSeconds {
    pub(crate) fn measure<T>(&mut self, stage: FilterStage, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = work();
        *self.0.entry(stage).or_default() += begun.elapsed().as_millis() as f64 / 1e3;
        done
    }

    pub(crate) fn stages(&self) -> impl Iterator<Item = (FilterStage, f64)> {
        self.0.iter().map(|(stage, seconds)| (*stage, *seconds))
    }

    /// How far it came.
    pub(crate) fn last(&self) -> Option<FilterStage> {
        self.0.keys().next_back().copied()
    }
}

/// All candidates in one stage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FilterStageSummary {
    pub came: usize,
    /// Those it found nothing against.
    pub left: usize,
    pub seconds: f64,
    pub median_seconds: f64,
}

impl FilterStageSummary {
    /// `seconds` of each that came; `stopped` of them went no further.
    pub(crate) fn new(mut seconds: Vec<f64>, stopped: usize) -> Self {
        seconds.sort_by(f64::total_cmp);
        Self {
            came: seconds.len(),
            left: seconds.len() - stopped,
            seconds: seconds.iter().sum(),
            median_seconds: seconds.get(seconds.len() / 2).copied().unwrap_or(0.0),
        }
    }
}
