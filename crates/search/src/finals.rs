//! The finish: the best few measured afresh, in turn with each other. The fastest of many measurements is the luckiest, so what
//! chose a candidate is never what is reported of it.

use std::collections::BTreeSet;

use warpsmith_judge::Judge;
use warpsmith_schema::{EventKind, SearchMove, Submission, Task, Verdict};

use crate::candidate::{Candidate, passed_us};
use crate::error::SearchError;
use crate::logged::LoggedSearch;
use crate::plan::SearchProgress;
use crate::statistics::{SpeedInterval, interval_of};

/// How far behind the first a finalist may lie: more than quick measurements of the same candidate differ by.
const MAX_RATIO_TO_FIRST: f64 = 1.15;

/// What was measured in the finish.
#[derive(Debug, Clone)]
pub struct Finals {
    /// In the order of their first measurement.
    pub finalists: Vec<Finalist>,
    pub winner: Option<SearchWinner>,
    /// Judgements of the finish, by whichever process.
    pub verdicts: Vec<Verdict>,
}

/// A candidate that was measured afresh.
#[derive(Debug, Clone)]
pub struct Finalist {
    pub number: u32,
    /// The measurement that made it a finalist.
    pub first_us: f64,
    /// What chose among finalists; none where there was nothing to choose, or where it did not pass again.
    pub chosen_by: Option<SpeedInterval>,
}

/// The candidate that the search comes to, by measurements that chose nothing.
#[derive(Debug, Clone)]
pub struct SearchWinner {
    pub number: u32,
    pub submission: Submission,
    pub first_us: f64,
    pub us: SpeedInterval,
    /// Over eager in its own precision class.
    pub speedup_eager: Option<SpeedInterval>,
    pub speedup_compile: Option<SpeedInterval>,
    /// Over what the search started from, measured in turn with it. None where it is what the search started from, or started
    /// from nothing that passed.
    pub speedup_start: Option<SpeedInterval>,
    /// The candidate that was the fastest so far, where it is not faster than what the search started from by more than the
    /// interval: then that is kept.
    pub challenger: Option<Challenger>,
    /// The last of the measurements.
    pub verdict: Verdict,
}

/// A candidate that seemed faster than what the search started from, and could not be shown to be.
#[derive(Debug, Clone, Copy)]
pub struct Challenger {
    pub number: u32,
    pub speedup_start: SpeedInterval,
}

impl SearchWinner {
    /// Whether it is faster than the original by more than the interval.
    pub fn improves(&self) -> bool {
        self.speedup_eager.is_some_and(|over| over.low > 1.0)
    }
}

/// Measures, and writes down what was measured.
pub(crate) struct Finish<'a> {
    pub(crate) task: &'a Task,
    pub(crate) candidates: &'a [Candidate],
    pub(crate) judge: &'a mut dyn Judge,
    pub(crate) logged: &'a LoggedSearch,
    pub(crate) finalists: u32,
    pub(crate) rounds: u32,
    pub(crate) record: &'a dyn Fn(EventKind) -> Result<(), SearchError>,
    pub(crate) stopped: &'a dyn Fn() -> bool,
    pub(crate) on_progress: &'a mut dyn FnMut(SearchProgress<'_>),
}

impl Finish<'_> {
    /// `None` where it was stopped: resumed, it goes on with the next measurement.
    pub(crate) fn run(mut self) -> Result<Option<Finals>, SearchError> {
        let (chosen, start) = finalists(self.candidates, self.finalists);
        let base = self.base(&chosen);
        let mut finals = Finals {
            finalists: chosen
                .iter()
                .filter_map(|number| {
                    let first_us = self.candidate(*number)?.us()?;
                    Some(Finalist {
                        number: *number,
                        first_us,
                        chosen_by: None,
                    })
                })
                .collect(),
            winner: None,
            verdicts: Vec::new(),
        };
        let mut alive = chosen;
        if alive.len() > 1 {
            let Some(measured) = self.measure(&mut alive, base, false, &mut finals.verdicts)?
            else {
                return Ok(None);
            };
            for finalist in &mut finals.finalists {
                let place = alive.iter().position(|number| *number == finalist.number);
                let us = place.map(|place| times(&measured[place]));
                finalist.chosen_by = us.and_then(|us| interval_of(&us));
            }
            let mean = |number: &u32| {
                let of = finals.finalists.iter().find(|one| one.number == *number);
                of.and_then(|one| one.chosen_by)
                    .map_or(f64::INFINITY, |interval| interval.mean)
            };
            alive.sort_by(|one, other| mean(one).total_cmp(&mean(other)));
        }
        // Whoever fails now leaves the place to the next.
        while let Some(number) = alive.first().copied() {
            let mut pair: Vec<u32> = [number]
                .into_iter()
                .chain(start.filter(|one| *one != number))
                .collect();
            let Some(measured) = self.measure(&mut pair, base, true, &mut finals.verdicts)? else {
                return Ok(None);
            };
            if pair.first() == Some(&number) {
                finals.winner = self.winner(number, &pair, &measured);
                break;
            }
            alive.remove(0);
        }
        Ok(Some(finals))
    }

    fn candidate(&self, number: u32) -> Option<&Candidate> {
        self.candidates.get(number.checked_sub(1)? as usize)
    }

    /// Rounds of an earlier finish with other finalists do not count: they were not measured in turn with these.
    fn base(&self, finalists: &[u32]) -> u32 {
        let keys = || self.logged.finals.keys();
        let rounds = keys().map(|(_, round, _)| *round).max().unwrap_or_default();
        let before: BTreeSet<u32> = keys()
            .filter(|(_, round, _)| *round == rounds)
            .map(|(number, ..)| *number)
            .collect();
        let is_same = before.iter().all(|number| finalists.contains(number));
        let session = rounds.saturating_sub(1) / self.rounds * self.rounds;
        if is_same {
            session
        } else {
            session + self.rounds
        }
    }

    /// Every candidate in every round, in an order that rotates. Those that fail are taken out of the list. `None` where it was
    /// stopped.
    fn measure(
        &mut self,
        numbers: &mut Vec<u32>,
        base: u32,
        reported: bool,
        verdicts: &mut Vec<Verdict>,
    ) -> Result<Option<Vec<Vec<Verdict>>>, SearchError> {
        let mut measured: Vec<Vec<Verdict>> = vec![Vec::new(); numbers.len()];
        let mut failed = BTreeSet::new();
        for round in 1..=self.rounds {
            for turn in 0..numbers.len() {
                let place = (turn + round as usize - 1) % numbers.len();
                let number = numbers[place];
                if failed.contains(&number) {
                    continue;
                }
                if (self.stopped)() {
                    return Ok(None);
                }
                let Some(verdict) = self.verdict(number, base + round, (round, reported))? else {
                    return Ok(None);
                };
                if passed_us(&verdict).is_none() {
                    failed.insert(number);
                }
                measured[place].push(verdict.clone());
                verdicts.push(verdict);
            }
        }
        let keep: Vec<bool> = numbers
            .iter()
            .map(|number| !failed.contains(number))
            .collect();
        let mut kept = keep.iter();
        numbers.retain(|_| *kept.next().unwrap_or(&false));
        let mut kept = keep.iter();
        measured.retain(|_| *kept.next().unwrap_or(&false));
        Ok(Some(measured))
    }

    fn verdict(
        &mut self,
        number: u32,
        round: u32,
        (shown, reported): (u32, bool),
    ) -> Result<Option<Verdict>, SearchError> {
        if let Some(known) = self.logged.finals.get(&(number, round, reported)) {
            return Ok(Some(known.clone()));
        }
        let Some(submission) = self.candidate(number).and_then(Candidate::submission) else {
            return Ok(None);
        };
        (self.on_progress)(SearchProgress::Measuring {
            candidate: number,
            round: shown,
            of: self.rounds,
            reported,
        });
        let judged = self.judge.judge_afresh(self.task, &submission);
        if (self.stopped)() && judged.is_err() {
            return Ok(None);
        }
        let verdict = judged?;
        (self.record)(EventKind::FinalistMeasured {
            candidate: number,
            round,
            reported,
            verdict: Box::new(verdict.clone()),
        })?;
        (self.on_progress)(SearchProgress::Measured {
            candidate: number,
            verdict: &verdict,
        });
        Ok(Some(verdict))
    }

    /// The fastest, or what the search started from where nothing is faster by more than the interval.
    fn winner(&self, number: u32, pair: &[u32], measured: &[Vec<Verdict>]) -> Option<SearchWinner> {
        let own = measured.first()?;
        let Some((start, others)) = pair.get(1).zip(measured.get(1)) else {
            return self.reported(number, own);
        };
        // Round by round: what slows one down slows the other down too.
        let pairs = times(others).into_iter().zip(times(own));
        let ratios: Vec<f64> = pairs.map(|(start, own)| start / own).collect();
        let over = interval_of(&ratios)?;
        if over.low > 1.0 {
            return Some(SearchWinner {
                speedup_start: Some(over),
                ..self.reported(number, own)?
            });
        }
        Some(SearchWinner {
            challenger: Some(Challenger {
                number,
                speedup_start: over,
            }),
            ..self.reported(*start, others)?
        })
    }

    fn reported(&self, number: u32, own: &[Verdict]) -> Option<SearchWinner> {
        let candidate = self.candidate(number)?;
        let over = |of: fn(&Verdict) -> Option<f64>| {
            let all: Option<Vec<f64>> = own.iter().map(of).collect();
            all.and_then(|all| interval_of(&all))
        };
        Some(SearchWinner {
            number,
            submission: candidate.submission()?,
            first_us: candidate.us()?,
            us: interval_of(&times(own))?,
            speedup_eager: over(|one| Some(one.matched_precision?.speedup.eager.0)),
            speedup_compile: over(|one| Some(one.matched_precision?.speedup.compile?.0)),
            speedup_start: None,
            challenger: None,
            verdict: own.last()?.clone(),
        })
    }
}

fn times(verdicts: &[Verdict]) -> Vec<f64> {
    verdicts.iter().filter_map(passed_us).collect()
}

/// Who is measured afresh, fastest first, and the fastest of what the search started from, which is one of them.
fn finalists(candidates: &[Candidate], most: u32) -> (Vec<u32>, Option<u32>) {
    let mut ranked: Vec<(f64, u32)> = candidates
        .iter()
        .filter_map(|one| Some((one.us()?, one.number())))
        .collect();
    ranked.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let starts = |number: u32| {
        let mut all = candidates.iter();
        all.any(|one| one.number() == number && one.proposed.made_by == SearchMove::Start)
    };
    let start = ranked
        .iter()
        .map(|(_, number)| *number)
        .find(|number| starts(*number));
    let slowest = ranked
        .first()
        .map_or(0.0, |(us, _)| MAX_RATIO_TO_FIRST * us);
    let best = ranked
        .iter()
        .filter(|(us, _)| *us <= slowest)
        .take(most as usize);
    let mut chosen: Vec<u32> = best.map(|(_, number)| *number).collect();
    if let Some(start) = start
        && !chosen.contains(&start)
    {
        chosen.push(start);
    }
    (chosen, start)
}
