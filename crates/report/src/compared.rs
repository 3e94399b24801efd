use std::collections::BTreeMap;

use serde::Serialize;
use warpsmith_schema::{Verdict, is_faster};

use crate::metrics::{Baseline, Measured, PrecisionClass, Share, Way, geomean};

/// Verdicts by mode and task.
pub(super) type Compared = BTreeMap<String, BTreeMap<String, Verdict>>;

/// The best submissions of a run beside another mode of `torch.compile` than the run's own.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedMode {
    pub mode: String,
    /// By the 5 % that noise does not explain, of those that passed once more, in their own precision.
    pub faster: Share,
    /// Geometric mean; null where nothing passed.
    pub speedup: Option<f64>,
}

pub(super) fn by_mode(compared: &Compared) -> Vec<ComparedMode> {
    let beside = Baseline::new(Way::Compile, PrecisionClass::Matched);
    let of = |(mode, verdicts): (&String, &BTreeMap<String, Verdict>)| {
        let times: Vec<(f64, f64)> = (verdicts.values())
            .filter_map(Measured::of)
            .filter_map(|one| Some((one.runtime_us, one.baseline_us(beside)?)))
            .collect();
        let ratios: Vec<f64> = times.iter().map(|(ours, theirs)| theirs / ours).collect();
        let quicker = times
            .iter()
            .filter(|(ours, theirs)| is_faster(*ours, *theirs));
        ComparedMode {
            mode: mode.clone(),
            faster: Share {
                count: quicker.count(),
                of: times.len(),
            },
            speedup: geomean(&ratios),
        }
    };
    compared.iter().map(of).collect()
}
