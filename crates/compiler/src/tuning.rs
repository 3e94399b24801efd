//! Choosing by measuring: variants of a solution are tried by a measuring function, and the fastest is kept.
//!
//! One knob after the other, those of the largest kernels first, each value once. What is faster stays, and the rest is tried on
//! top of it. When a whole pass has changed nothing, the hints to compilers that stand in the text are tried
//! ([`parameters`](crate::parameters)); then nothing is left.
//!
//! The search keeps nothing between calls: with the same measurements it goes the same way. Whoever keeps those, by the text of
//! the solution, resumes it for nothing.

use std::collections::{BTreeMap, BTreeSet};

use warpsmith_schema::{Target, Task};

use crate::knob::Knob;
use crate::not_covered::NotCovered;
use crate::parameters::parameters;
use crate::plan::Strategy;
use crate::solution::{CompileOptions, SolutionFiles, WrittenKernel, compile_with};

/// What came of measuring a variant.
#[derive(Debug, Clone, PartialEq)]
pub enum MeasuredTime {
    /// It is right, and takes this long.
    Us(f64),
    /// It is wrong, does not compile or has no time: it is out.
    Failed { reason: String },
    /// No time is left to measure it.
    Stopped,
}

/// A solution that decides something else than the usual one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TuningVariant {
    /// What it decides otherwise: `softmax: threads of a row 128 -> 256`.
    pub changes: Vec<String>,
    pub files: SolutionFiles,
    /// As they are without changed hints.
    pub kernels: Vec<WrittenKernel>,
}

/// How far a tuning is, for whoever waits.
#[derive(Debug, Clone, PartialEq)]
pub struct TuningProgress {
    pub tried: usize,
    /// Values that this pass may yet try.
    pub left: usize,
    pub failed: usize,
    pub usual_us: f64,
    pub best_us: f64,
}

/// Measures variants.
pub trait MeasureVariant {
    /// Its own: nothing is tried after it.
    type Error: From<NotCovered>;

    fn measure(&mut self, variant: &TuningVariant) -> Result<MeasuredTime, Self::Error>;

    /// What is measured next, so that it can be built at once.
    fn expect(&mut self, variants: &[&TuningVariant]);

    fn progressed(&mut self, progress: &TuningProgress);
}

/// What tuning found.
#[derive(Debug, Clone, PartialEq)]
pub struct TunedSolution {
    pub usual: TuningVariant,
    pub usual_us: f64,
    /// The fastest variant; the usual one where none is faster.
    pub best: TuningVariant,
    pub best_us: f64,
    /// Variants that were measured, and how many of these were out.
    pub tried: usize,
    pub failed: usize,
    /// Nothing was left to try.
    pub exhausted: bool,
}

/// Less is noise.
const LEAST_GAIN: f64 = 0.015;

/// Tries variants of a task's solution until nothing is left or the measurer has no time. None where the usual solution has none
/// either.
pub fn tune<M: MeasureVariant>(
    task: &Task,
    target: Target,
    options: &CompileOptions,
    measurer: &mut M,
) -> Result<Option<TunedSolution>, M::Error> {
    let solution = compile_with(task, target, options)?;
    let usual = TuningVariant {
        changes: Vec::new(),
        files: solution.files,
        kernels: solution.kernels,
    };
    let tuner = Tuner {
        task,
        target,
        measurer,
        known: BTreeMap::new(),
        failed: 0,
    };
    let start = Standing {
        variant: usual,
        options: options.clone(),
        knobs: solution.knobs,
        us: f64::INFINITY,
    };
    tuner.run(start)
}

struct Tuner<'a, M> {
    task: &'a Task,
    target: Target,
    measurer: &'a mut M,
    /// Two ways to the same text are one.
    known: BTreeMap<SolutionFiles, MeasuredTime>,
    failed: usize,
}

/// A variant with all that can be changed in it.
#[derive(Clone)]
struct Standing {
    variant: TuningVariant,
    options: CompileOptions,
    knobs: Vec<Knob>,
    us: f64,
}

/// Changes with one more; of the same knob the last counts.
fn changed(before: &[String], name: &str, value: &str, choice: &str) -> Vec<String> {
    let own = format!("{name} ");
    let (same, mut changes): (Vec<String>, Vec<String>) = before
        .iter()
        .cloned()
        .partition(|change| change.starts_with(&own));
    let earlier = same.first().and_then(|change| {
        let values = change.strip_prefix(&own)?;
        values.split(" -> ").next().map(str::to_owned)
    });
    let usual = earlier.unwrap_or_else(|| value.to_owned());
    if usual != choice {
        changes.push(format!("{own}{usual} -> {choice}"));
    }
    changes
}

/// What came of trying several variants.
struct Round {
    faster: Option<Standing>,
    stopped: bool,
}

impl<M: MeasureVariant> Tuner<'_, M> {
    fn run(mut self, mut best: Standing) -> Result<Option<TunedSolution>, M::Error> {
        let usual = best.variant.clone();
        let usual_us = match self.measurer.measure(&usual)? {
            MeasuredTime::Us(us) => us,
            MeasuredTime::Failed { .. } | MeasuredTime::Stopped => return Ok(None),
        };
        best.us = usual_us;
        self.known
            .insert(usual.files.clone(), MeasuredTime::Us(usual_us));
        let mut stopped = false;
        loop {
            let before = best.us;
            stopped = stopped || self.pass_over_knobs(&mut best, usual_us)?;
            if stopped || best.us >= before {
                break;
            }
        }
        if !stopped {
            stopped = self.try_simpler(&mut best, usual_us)?;
        }
        let exhausted = !stopped && !self.pass_over_text(&mut best, usual_us)?;
        Ok(Some(TunedSolution {
            usual,
            usual_us,
            best_us: best.us,
            best: best.variant,
            tried: self.known.len() - 1,
            failed: self.failed,
            exhausted,
        }))
    }

    /// Simpler kernels, of which there is one form, are sometimes faster than any other.
    fn try_simpler(&mut self, best: &mut Standing, usual_us: f64) -> Result<bool, M::Error> {
        let simpler = CompileOptions {
            strategy: Strategy::Fused,
            ..best.options.clone()
        };
        let change = vec!["simpler kernels".to_owned()];
        let simpler = self.compiled(simpler, change).into_iter().collect();
        let round = self.try_all(simpler, best, 0, usual_us)?;
        if let Some(faster) = round.faster {
            *best = faster;
        }
        Ok(round.stopped)
    }

    /// Every value of every knob, on top of what was best so far. Says whether time ended.
    fn pass_over_knobs(&mut self, best: &mut Standing, usual_us: f64) -> Result<bool, M::Error> {
        let mut done: BTreeSet<String> = BTreeSet::new();
        loop {
            let mut open: Vec<&Knob> = best
                .knobs
                .iter()
                .filter(|knob| !done.contains(&knob.name))
                .collect();
            // Of one kernel in the order of asking: what comes first decides most.
            open.sort_by_key(|knob| std::cmp::Reverse(knob.bytes));
            let Some(next) = open.first() else {
                return Ok(false);
            };
            done.insert(next.name.clone());
            let left = open[1..].iter().map(|knob| knob.choices.len()).sum();
            let candidates = next
                .choices
                .iter()
                .filter_map(|choice| self.with_choice(best, next, choice))
                .collect();
            let round = self.try_all(candidates, best, left, usual_us)?;
            if let Some(faster) = round.faster {
                *best = faster;
            }
            if round.stopped {
                return Ok(true);
            }
        }
    }

    /// The same for hints to compilers.
    fn pass_over_text(&mut self, best: &mut Standing, usual_us: f64) -> Result<bool, M::Error> {
        let count = parameters(&best.variant.files).len();
        for place in 0..count {
            // Values change, places stay.
            let all = parameters(&best.variant.files);
            let Some(parameter) = all.get(place).filter(|one| one.kind.is_hint()) else {
                continue;
            };
            let later = all[place + 1..].iter().filter(|one| one.kind.is_hint());
            let left = later.map(|one| one.choices.len()).sum();
            let candidates = parameter.choices.iter().map(|choice| {
                let mut next = best.clone();
                let what = parameter.describe(choice);
                let kind = parameter.kind.name();
                next.variant.files = parameter.set(&best.variant.files, choice);
                next.variant.changes.push(format!("{kind}: {what}"));
                next
            });
            let round = self.try_all(candidates.collect(), best, left, usual_us)?;
            if let Some(faster) = round.faster {
                *best = faster;
            }
            if round.stopped {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The best so far with another value; none where that is no solution.
    fn with_choice(&self, best: &Standing, knob: &Knob, choice: &str) -> Option<Standing> {
        let mut options = best.options.clone();
        options.config.insert(knob.name.clone(), choice.to_owned());
        let changes = changed(&best.variant.changes, &knob.name, &knob.value, choice);
        self.compiled(options, changes)
    }

    fn compiled(&self, options: CompileOptions, changes: Vec<String>) -> Option<Standing> {
        let solution = compile_with(self.task, self.target, &options).ok()?;
        Some(Standing {
            variant: TuningVariant {
                changes,
                files: solution.files,
                kernels: solution.kernels,
            },
            options,
            knobs: solution.knobs,
            us: f64::INFINITY,
        })
    }

    fn try_all(
        &mut self,
        candidates: Vec<Standing>,
        best: &Standing,
        left: usize,
        usual_us: f64,
    ) -> Result<Round, M::Error> {
        let is_new = |one: &&Standing| !self.known.contains_key(&one.variant.files);
        let unknown: Vec<&TuningVariant> = candidates
            .iter()
            .filter(is_new)
            .map(|one| &one.variant)
            .collect();
        self.measurer.expect(&unknown);
        let mut round = Round {
            faster: None,
            stopped: false,
        };
        let mut least = best.us * (1.0 - LEAST_GAIN);
        let count = candidates.len();
        for (place, mut candidate) in candidates.into_iter().enumerate() {
            let measured = match self.known.get(&candidate.variant.files) {
                Some(known) => known.clone(),
                None => self.measurer.measure(&candidate.variant)?,
            };
            match &measured {
                MeasuredTime::Us(us) => candidate.us = *us,
                MeasuredTime::Failed { .. } => {}
                MeasuredTime::Stopped => {
                    round.stopped = true;
                    return Ok(round);
                }
            }
            let files = candidate.variant.files.clone();
            if let (None, MeasuredTime::Failed { .. }) =
                (self.known.insert(files, measured.clone()), &measured)
            {
                self.failed += 1;
            }
            if candidate.us < least {
                least = candidate.us;
                round.faster = Some(candidate);
            }
            self.measurer.progressed(&TuningProgress {
                tried: self.known.len() - 1,
                left: left + count - place - 1,
                failed: self.failed,
                usual_us,
                best_us: round.faster.as_ref().map_or(best.us, |faster| faster.us),
            });
        }
        Ok(round)
    }
}
