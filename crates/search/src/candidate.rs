//! A candidate with what came of it.

use warpsmith_agent::FencedFiles;
use warpsmith_schema::{ArchiveCell, ProposedCandidate, Status, Submission, Verdict};
use warpsmith_tasks::submission_from_text;

use crate::bandit::SECONDS_PER_DOLLAR;

/// A candidate, and its verdict where it was judged.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub proposed: ProposedCandidate,
    pub verdict: Option<Verdict>,
    /// Where it came to lie in the archive of its island, if it passed.
    pub cell: Option<ArchiveCell>,
}

impl Candidate {
    pub fn number(&self) -> u32 {
        self.proposed.number
    }

    pub fn files(&self) -> Option<&FencedFiles> {
        self.proposed.files.as_ref()
    }

    pub fn submission(&self) -> Option<Submission> {
        self.files().map(submission_from_text)
    }

    /// Its time, if it passed and was timed.
    pub fn us(&self) -> Option<f64> {
        self.verdict.as_ref().and_then(passed_us)
    }

    /// What making and judging it cost, in seconds. Only numbers that the log has: choices that depend on it are made again.
    pub(crate) fn cost(&self) -> f64 {
        let judged = self
            .verdict
            .as_ref()
            .map_or(0.0, |verdict| verdict.seconds.total);
        self.proposed.reply_seconds + judged + SECONDS_PER_DOLLAR * self.proposed.dollars
    }

    /// Whether little may be missing: it is worth being mended.
    pub(crate) fn is_near_miss(&self) -> bool {
        /// Of the elements that are right.
        const ENOUGH_RIGHT: f64 = 0.2;
        let Some(verdict) = &self.verdict else {
            return false;
        };
        match verdict.status {
            Status::CompileFailed | Status::Crashed => true,
            Status::Mismatch => {
                let share = verdict.progress.share_within_tolerance;
                share.is_some_and(|share| share >= ENOUGH_RIGHT)
            }
            Status::Passed | Status::Rejected | Status::TimedOut | Status::Cheating => false,
        }
    }
}

/// The time in a verdict that passed.
pub(crate) fn passed_us(verdict: &Verdict) -> Option<f64> {
    let us = verdict.times_us.as_ref()?.candidate.0;
    (verdict.passed() && us.is_finite() && us > 0.0).then_some(us)
}
