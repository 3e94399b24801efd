//! Tuning by a judge: its own times choose between variants of the compiler's solution, and what is wrong is dropped.
//!
//! Every measurement is a line of a log in the user's cache before anything follows from it. The log is named by the graph, the
//! device and what else times depend on, and knows variants by the text of their kernels, so that another version of the compiler
//! finds in it what it still writes. A process that was killed loses the measurement it was at; another run of the same module
//! takes what it needs and goes on.

mod log;

use std::time::{Duration, Instant};

use warpsmith_compiler::{
    CompileOptions, MeasureVariant, MeasuredTime, SolutionFiles, TunedSolution, TuningProgress,
    TuningVariant, tune,
};
use warpsmith_judge::{CANCELLED, Judge, JudgeError};
use warpsmith_schema::{Submission, Target, Task, Verdict};
use warpsmith_tasks::submission_from_text;

pub use log::{BaselineTimes, TuningKey, TuningLog};

use crate::RolloutError;

/// How often the usual solution and the best variant are measured in turn before it counts as faster: the fastest of many
/// measurements is the luckiest of them.
const ROUNDS: usize = 2;
/// By how much it must be faster then.
const LEAST_GAIN: f64 = 0.01;
/// Failures of ours in a row after which nothing more is tried.
const MAX_FAILURES: usize = 3;

/// What a tuning needs.
pub struct TuningRequest<'a> {
    /// With its graph.
    pub task: &'a Task,
    pub target: Target,
    pub options: CompileOptions,
    /// For measurements that the log does not have; without one nothing is measured.
    pub budget: Option<Duration>,
    pub log: TuningLog,
    pub judge: &'a mut dyn Judge,
    /// Whether somebody wants the process to end.
    pub stop: &'a dyn Fn() -> bool,
    pub watch: &'a mut dyn FnMut(TuningEvent<'_>),
}

/// What happens, for whoever waits.
#[derive(Debug)]
pub enum TuningEvent<'a> {
    Progressed(&'a TuningProgress),
    /// A variant is out.
    Dropped {
        variant: &'a TuningVariant,
        reason: &'a str,
    },
    /// The best is measured in turn with the usual one.
    Comparing,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct TuningOutcome {
    pub found: TunedSolution,
    /// Medians of measurements in turn; none where nothing was faster, or was not measured again.
    pub compared: Option<ComparedTimes>,
    pub baselines: Option<BaselineTimes>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComparedTimes {
    pub usual_us: f64,
    pub tuned_us: f64,
}

impl TuningOutcome {
    /// The variant to use, where there is one that is faster.
    pub fn faster(&self) -> Option<&SolutionFiles> {
        let compared = self.compared?;
        let is_faster = compared.tuned_us < compared.usual_us * (1.0 - LEAST_GAIN);
        is_faster.then_some(&self.found.best.files)
    }
}

/// Tunes the compiler's solution of a task. None where its usual solution has no time.
pub fn tune_by_judge(request: TuningRequest<'_>) -> Result<Option<TuningOutcome>, RolloutError> {
    let TuningRequest {
        task,
        target,
        options,
        budget,
        log,
        judge,
        stop,
        watch,
    } = request;
    let mut measurer = JudgedVariants {
        task,
        log,
        judge,
        stop,
        watch,
        budget,
        deadline: None,
        slowest: Duration::ZERO,
        failures: 0,
    };
    let Some(found) = tune(task, target, &options, &mut measurer)? else {
        return Ok(None);
    };
    let compared = measurer.compare(&found)?;
    Ok(Some(TuningOutcome {
        found,
        compared,
        baselines: measurer.log.baselines(),
    }))
}

struct JudgedVariants<'a> {
    task: &'a Task,
    log: TuningLog,
    judge: &'a mut dyn Judge,
    stop: &'a dyn Fn() -> bool,
    watch: &'a mut dyn FnMut(TuningEvent<'_>),
    budget: Option<Duration>,
    /// Begins with the first measurement's end: that one may have to measure baselines.
    deadline: Option<Instant>,
    /// The longest measurement so far.
    slowest: Duration,
    failures: usize,
}

fn time_of(verdict: &Verdict) -> Option<f64> {
    let times = verdict.times_us.as_ref();
    times
        .filter(|_| verdict.passed())
        .map(|times| times.candidate.0)
}

impl JudgedVariants<'_> {
    /// Whether there is time for one more measurement, and for those that compare in the end.
    fn has_time(&self) -> bool {
        if self.budget.is_none() || (self.stop)() || self.failures >= MAX_FAILURES {
            return false;
        }
        let reserve = self.slowest * (2 * ROUNDS as u32 + 1);
        self.deadline
            .is_none_or(|deadline| Instant::now() + reserve < deadline)
    }

    /// The judge's word; none where it could not say.
    fn judged(&mut self, submission: &Submission) -> Result<Result<Verdict, String>, RolloutError> {
        let begun = Instant::now();
        let judged = self.judge.time_briefly(self.task, submission);
        if self.deadline.is_none() {
            self.deadline = self
                .budget
                .and_then(|budget| Instant::now().checked_add(budget));
        } else {
            self.slowest = self.slowest.max(begun.elapsed());
        }
        match judged {
            Ok(verdict) => {
                self.failures = 0;
                Ok(Ok(verdict))
            }
            // Ours, and not the variant's: others may be judged.
            Err(error @ JudgeError::Infrastructure { code, .. }) if code != CANCELLED => {
                self.failures += 1;
                Ok(Err(error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The best beside the usual one, measured in turn. What an earlier process compared is not compared again.
    fn compare(&mut self, found: &TunedSolution) -> Result<Option<ComparedTimes>, RolloutError> {
        if found.best.files == found.usual.files {
            return Ok(None);
        }
        let key = (log::hash(&found.usual.files), log::hash(&found.best.files));
        if let Some(known) = self.log.compared(&key) {
            return Ok(Some(known));
        }
        if self.budget.is_none() || (self.stop)() {
            return Ok(None);
        }
        (self.watch)(TuningEvent::Comparing);
        let both = [&found.usual, &found.best].map(|variant| submission_from_text(&variant.files));
        let mut times: [Vec<f64>; 2] = Default::default();
        for _ in 0..ROUNDS {
            for (submission, times) in both.iter().zip(&mut times) {
                let Some(us) = self.judged(submission)?.ok().as_ref().and_then(time_of) else {
                    return Ok(None);
                };
                times.push(us);
            }
        }
        let [usual_us, tuned_us] = times.map(median);
        let compared = ComparedTimes { usual_us, tuned_us };
        self.log.keep_comparison(key, found, compared)?;
        Ok(Some(compared))
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let middle = times.len() / 2;
    match times.len() {
        0 => f64::INFINITY,
        count if count % 2 == 1 => times[middle],
        _ => f64::midpoint(times[middle - 1], times[middle]),
    }
}

impl MeasureVariant for JudgedVariants<'_> {
    type Error = RolloutError;

    fn measure(&mut self, variant: &TuningVariant) -> Result<MeasuredTime, RolloutError> {
        if let Some(known) = self.log.known(&variant.files) {
            return Ok(known);
        }
        if !self.has_time() {
            return Ok(MeasuredTime::Stopped);
        }
        let submission = submission_from_text(&variant.files);
        let verdict = match self.judged(&submission)? {
            Ok(verdict) => verdict,
            Err(reason) => return Ok(MeasuredTime::Failed { reason }),
        };
        let measured = if let Some(us) = time_of(&verdict) {
            MeasuredTime::Us(us)
        } else {
            let reason = verdict.reason.as_deref().unwrap_or_default();
            let reason = reason.lines().next().unwrap_or_default();
            let reason = format!("{}: {reason}", verdict.status.name());
            (self.watch)(TuningEvent::Dropped {
                variant,
                reason: &reason,
            });
            MeasuredTime::Failed { reason }
        };
        let baselines = verdict.times_us.as_ref().map(|times| BaselineTimes {
            eager_us: times.eager.0,
            compile_us: times.compile.as_ref().map(|us| us.0),
        });
        self.log.keep(variant, &measured, baselines)?;
        Ok(measured)
    }

    fn expect(&mut self, variants: &[&TuningVariant]) {
        if !self.has_time() {
            return;
        }
        let unknown = variants
            .iter()
            .filter(|variant| self.log.known(&variant.files).is_none());
        let submissions: Vec<Submission> = unknown
            .map(|variant| submission_from_text(&variant.files))
            .collect();
        // What went wrong comes up again when it is judged.
        let _ = self.judge.build_ahead(&submissions);
    }

    fn progressed(&mut self, progress: &TuningProgress) {
        (self.watch)(TuningEvent::Progressed(progress));
    }
}
