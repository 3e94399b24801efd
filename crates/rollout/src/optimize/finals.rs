//! Which of all passed submissions is the best.
//!
//! The fastest of many measurements is the luckiest of them, so it proves nothing by itself. Submissions that may be the best
//! are measured afresh. Where that had to choose between several, the winner is measured once more: the number that is
//! reported chose nothing.

use std::collections::{BTreeSet, HashMap};

use warpsmith_judge::Judge;
use warpsmith_schema::{EventKind, StartAuthor, Submission, Task, Trajectory, Verdict};
use warpsmith_tasks::submission_from_text;

use super::StartSolution;
use crate::RolloutError;
use crate::history::RemeasuredKey;
use crate::recorder::EventRecorder;

/// The most submissions that are measured afresh.
const MAX_FINALISTS: usize = 3;
/// How far behind the first a finalist may lie: more than measurements of the same submission differ by.
const MAX_RATIO_TO_FIRST: f64 = 1.10;

/// Who wrote a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Author {
    /// Whoever wrote what the policy started from.
    Start(StartAuthor),
    /// The policy, in this sample.
    Policy { sample: u32 },
}

impl Author {
    /// As JSON has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start(StartAuthor::Compiler) => "compiler",
            Self::Start(StartAuthor::User) => "user",
            Self::Policy { .. } => "policy",
        }
    }

    /// The sample, where a policy wrote it.
    pub fn sample(self) -> Option<u32> {
        match self {
            Self::Start(_) => None,
            Self::Policy { sample } => Some(sample),
        }
    }
}

/// A submission that passed whenever it was judged.
#[derive(Debug)]
pub struct Winner {
    pub author: Author,
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
    Finalist {
        author: Author,
    },
    /// The fastest of several finalists once more.
    Winner {
        author: Author,
    },
}

struct Candidate {
    author: Author,
    submission: Submission,
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
        start: Option<&StartSolution>,
        trajectories: &[Trajectory],
    ) -> Result<Option<Winner>, RolloutError> {
        let mut finalists: Vec<(f64, Winner)> = Vec::new();
        let ranked = ranked(start, trajectories);
        let slowest = ranked
            .first()
            .map_or(0.0, |first| MAX_RATIO_TO_FIRST * first.us);
        for candidate in ranked {
            let enough = finalists.len() >= MAX_FINALISTS || candidate.us > slowest;
            if !finalists.is_empty() && enough {
                break;
            }
            let author = candidate.author;
            (self.on_round)(FinalRound::Finalist { author });
            let verdict = self.measure(&candidate.submission, 1)?;
            if let Some(us) = passed_time(&verdict) {
                let winner = Winner {
                    author,
                    submission: candidate.submission,
                    verdict,
                };
                finalists.push((us, winner));
            }
        }
        finalists.sort_by(|(first, _), (second, _)| first.total_cmp(second));
        let several = finalists.len() > 1;
        for (_, mut winner) in finalists {
            if several {
                let author = winner.author;
                (self.on_round)(FinalRound::Winner { author });
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

/// Every submission that passed, the fastest first, each once. What a policy repeated is still its author's.
fn ranked(start: Option<&StartSolution>, trajectories: &[Trajectory]) -> Vec<Candidate> {
    let start = start.and_then(|start| {
        Some(Candidate {
            author: Author::Start(start.author),
            us: passed_time(&start.verdict)?,
            submission: start.submission.clone(),
        })
    });
    let attempts = trajectories
        .iter()
        .flat_map(|one| one.attempts.iter().map(|attempt| (one.sample, attempt)))
        .filter_map(|(sample, attempt)| {
            Some(Candidate {
                author: Author::Policy { sample },
                us: passed_time(&attempt.verdict)?,
                submission: submission_from_text(&attempt.files),
            })
        });
    let mut ranked: Vec<Candidate> = start.into_iter().chain(attempts).collect();
    let mut seen = BTreeSet::new();
    ranked.retain(|candidate| seen.insert(candidate.submission.content_hash()));
    ranked.sort_by(|first, second| first.us.total_cmp(&second.us));
    ranked
}

fn passed_time(verdict: &Verdict) -> Option<f64> {
    let times = verdict.times_us.as_ref();
    times
        .filter(|_| verdict.passed())
        .map(|times| times.candidate.0)
}
