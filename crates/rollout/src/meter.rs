//! Counts and times behind a run's gauges.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warpsmith_schema::{RunMetrics, Usage, Verdict};

/// Sums over this process's time at the run.
pub(crate) struct Meter {
    begun: Instant,
    judges: usize,
    sums: Mutex<Sums>,
}

#[derive(Default)]
struct Sums {
    judgements: u32,
    waited: Duration,
    judging: Duration,
    leased_seconds: f64,
    replies: u32,
    replying: Duration,
    asking: u32,
    completion_tokens: u64,
    /// Sum over samples of how busy the device was.
    busy: f64,
    busy_samples: u32,
}

impl Meter {
    pub(crate) fn new(judges: usize) -> Self {
        Self {
            begun: Instant::now(),
            judges,
            sums: Mutex::default(),
        }
    }

    fn sums(&self) -> MutexGuard<'_, Sums> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A judge worked for so long.
    pub(crate) fn judge_worked(&self, worked: Duration) {
        self.sums().judging += worked;
    }

    /// A submission that had waited so long has its verdict.
    pub(crate) fn judged(&self, verdict: &Verdict, waited: Duration) {
        let mut sums = self.sums();
        sums.judgements += 1;
        sums.waited += waited;
        sums.leased_seconds += verdict.seconds.verify + verdict.seconds.time;
    }

    pub(crate) fn asked(&self) {
        self.sums().asking += 1;
    }

    pub(crate) fn replied(&self, after: Duration, usage: Option<Usage>) {
        let mut sums = self.sums();
        sums.asking -= 1;
        if let Some(usage) = usage {
            sums.replies += 1;
            sums.replying += after;
            sums.completion_tokens += usage.completion_tokens;
        }
    }

    pub(crate) fn device_sampled(&self, busy: Option<f64>) {
        if let Some(busy) = busy {
            let mut sums = self.sums();
            sums.busy += busy;
            sums.busy_samples += 1;
        }
    }

    pub(crate) fn asking(&self) -> u32 {
        self.sums().asking
    }

    /// Adds what is measured here to what was counted elsewhere.
    pub(crate) fn gauges(&self, counted: RunMetrics) -> RunMetrics {
        let sums = self.sums();
        let seconds = self.begun.elapsed().as_secs_f64();
        let mean = |sum: f64, count: u32| {
            if count == 0 {
                0.0
            } else {
                sum / f64::from(count)
            }
        };
        RunMetrics {
            seconds,
            judgements: sums.judgements,
            judgements_per_minute: 60.0 * f64::from(sums.judgements) / seconds,
            judge_wait_seconds: mean(sums.waited.as_secs_f64(), sums.judgements),
            judges_busy: sums.judging.as_secs_f64() / seconds / self.judges as f64,
            device_leased: sums.leased_seconds / seconds,
            device_busy: (sums.busy_samples > 0).then(|| mean(sums.busy, sums.busy_samples)),
            asking: sums.asking,
            replies: sums.replies,
            reply_seconds: mean(sums.replying.as_secs_f64(), sums.replies),
            completion_tokens: sums.completion_tokens,
            ..counted
        }
    }
}
