//! Which of all passed submissions is the best.
//!
//! The quickest of many measurements is the luckiest of them, so it proves nothing by itself: those that may be the best are
//! measured afresh, and where that had to choose between several, the number that is reported is one that chose nothing.

use std::collections::BTreeSet;

use warpsmith_schema::{Attempt, Submission, Trajectory, Verdict};

use super::court::Bench;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::source::submission;

/// Most that are measured afresh, and how far behind the first they may lie: more than measurements differ by.
const FINALISTS: usize = 3;
const MAY_BE_THE_BEST: f64 = 1.10;

/// A submission that passed whenever it was judged.
pub(super) struct Winner {
    pub(super) sample: u32,
    pub(super) submission: Submission,
    pub(super) verdict: Verdict,
}

struct Candidate<'a> {
    sample: u32,
    attempt: &'a Attempt,
    us: f64,
}

pub(super) fn choose<'a>(
    trajectories: impl Iterator<Item = &'a Trajectory>,
    bench: &mut Bench<'_>,
    printer: &Printer,
) -> Result<Option<Winner>, Stop> {
    let mut again: Vec<(f64, Winner)> = Vec::new();
    let ranked = ranked(trajectories);
    let near = ranked
        .first()
        .map_or(0.0, |first| MAY_BE_THE_BEST * first.us);
    for candidate in ranked {
        if !again.is_empty() && (again.len() >= FINALISTS || candidate.us > near) {
            break;
        }
        let sample = candidate.sample;
        printer.note(&format!("measuring afresh: what sample {sample} submitted"));
        let submission = submission(&candidate.attempt.files);
        let verdict = bench.afresh(&submission, 1)?;
        if let Some(us) = time(&verdict) {
            let winner = Winner {
                sample,
                submission,
                verdict,
            };
            again.push((us, winner));
        }
    }
    again.sort_by(|(first, _), (second, _)| first.total_cmp(second));
    let several = again.len() > 1;
    for (_, mut winner) in again {
        if several {
            let sample = winner.sample;
            printer.note(&format!(
                "measuring once more: the quickest, of sample {sample}"
            ));
            winner.verdict = bench.afresh(&winner.submission, 2)?;
        }
        if winner.verdict.passed() {
            return Ok(Some(winner));
        }
    }
    Ok(None)
}

/// Every submission that passed, the quickest first, each once.
fn ranked<'a>(trajectories: impl Iterator<Item = &'a Trajectory>) -> Vec<Candidate<'a>> {
    let mut ranked: Vec<Candidate<'a>> = trajectories
        .flat_map(|one| one.attempts.iter().map(|attempt| (one.sample, attempt)))
        .filter_map(|(sample, attempt)| {
            let us = time(&attempt.verdict)?;
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

fn time(verdict: &Verdict) -> Option<f64> {
    let times = verdict.times_us.as_ref();
    times
        .filter(|_| verdict.passed())
        .map(|times| times.candidate.0)
}
