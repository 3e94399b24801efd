//! Which of all passed submissions is the best.
//!
//! The fastest of many measurements is the luckiest of them, so it proves nothing by itself. Submissions that may be the best
//! are measured afresh. Where that had to choose between several, the winner is measured once more: the number that is
//! reported chose nothing.

use std::collections::{BTreeSet, HashMap};

use warpsmith_judge::Judge;
use warpsmith_schema::{Attempt, EventKind, Submission, Task, Trajectory, Verdict};
use warpsmith_tasks::submission_from_text;

use crate::RolloutError;
use crate::history::RemeasuredKey;
use crate::recorder::EventRecorder;

/// The most submissions that are measured afresh.
const MAX_FINALISTS: usize = 3;
/// How far behind the first a finalist may lie: more than measurements of the same submission differ by.
const MAX_RATIO_TO_FIRST: f64 = 1.10;

/// A submission that passed whenever it was judged.
#[derive(Debug)]
pub struct Winner {
    pub sample: u32,
    pub submission: Submission,
    /// Of the measurement that is reported.
    pub verdict: Verdict,
}

impl Winner {
    pub(crate) fn improves(&self) -> bool {
        let matched = self.verdict.matched_precision;
        matched.is_some_and(|matched| matched.speedup.eager.0 > 1.0)
    }
}

/// A measurement that is about to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalRound {
    /// A finalist, of this sample.
    Finalist { sample: u32 },
    /// The fastest of several finalists once more.
    Winner { sample: u32 },
}

struct Candidate<'a> {
    sample: u32,
    attempt: &'a Attempt,
    us: f64,
}

pub(super) struct Finals<'a> {
    pub(super) task: &'a Task,
    pub(super) judge: &'a mut dyn Judge,
    pub(super) recorder: EventRecorder,
    /// What an earlier process measured afresh.
    pub(super) measured: HashMap<RemeasuredKey, Verdict>,
    pub(super) on_round: &'a mut dyn FnMut(FinalRound),
}

impl Finals<'_> {
    pub(super) fn choose(
        &mut self,
        trajectories: &[Trajectory],
    ) -> Result<Option<Winner>, RolloutError> {
        let mut finalists: Vec<(f64, Winner)> = Vec::new();
        let ranked = ranked(trajectories);
        let slowest = ranked
            .first()
            .map_or(0.0, |first| MAX_RATIO_TO_FIRST * first.us);
        for candidate in ranked {
            let enough = finalists.len() >= MAX_FINALISTS || candidate.us > slowest;
            if !finalists.is_empty() && enough {
                break;
            }
            let sample = candidate.sample;
            (self.on_round)(FinalRound::Finalist { sample });
            let submission = submission_from_text(&candidate.attempt.files);
            let verdict = self.measure(&submission, 1)?;
            if let Some(us) = passed_time(&verdict) {
                let winner = Winner {
                    sample,
                    submission,
                    verdict,
                };
                finalists.push((us, winner));
            }
        }
        finalists.sort_by(|(first, _), (second, _)| first.total_cmp(second));
        let several = finalists.len() > 1;
        for (_, mut winner) in finalists {
            if several {
                let sample = winner.sample;
                (self.on_round)(FinalRound::Winner { sample });
                winner.verdict = self.measure(&winner.submission, 2)?;
            }
            if winner.verdict.passed() {
                return Ok(Some(winner));
            }
        }
        Ok(None)
    }

    /// A measurement that an earlier process made is not made again.
    fn measure(&mut self, submission: &Submission, round: u32) -> Result<Verdict, RolloutError> {
        let task = self.task.id.clone();
        let key = (task.clone(), submission.content_hash(), round);
        if let Some(verdict) = self.measured.get(&key) {
            return Ok(verdict.clone());
        }
        let verdict = self.judge.judge_afresh(self.task, submission)?;
        self.recorder
            .write(EventKind::Remeasured {
                task,
                submission: key.1,
                round,
                verdict: Box::new(verdict.clone()),
            })
            .map_err(RolloutError::Log)?;
        Ok(verdict)
    }
}

/// Every submission that passed, the fastest first, each once.
fn ranked(trajectories: &[Trajectory]) -> Vec<Candidate<'_>> {
    let mut ranked: Vec<Candidate<'_>> = trajectories
        .iter()
        .flat_map(|one| one.attempts.iter().map(|attempt| (one.sample, attempt)))
        .filter_map(|(sample, attempt)| {
            let us = passed_time(&attempt.verdict)?;
            Some(Candidate {
                sample,
                attempt,
                us,
            })
        })
        .collect();
    ranked.sort_by(|first, second| first.us.total_cmp(&second.us));
    let mut seen = BTreeSet::new();
    ranked.retain(|candidate| seen.insert(&candidate.attempt.files));
    ranked
}

fn passed_time(verdict: &Verdict) -> Option<f64> {
    let times = verdict.times_us.as_ref();
    times
        .filter(|_| verdict.passed())
        .map(|times| times.candidate.0)
}
