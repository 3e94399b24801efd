//! A batch before the judges, and what its verdicts change.

use super::RunningSearch;
use crate::archive::Elite;
use crate::budget::SearchLimit;
use crate::candidate::Candidate;
use crate::descriptor::cell_of;
use crate::error::SearchError;
use crate::plan::SearchProgress;
use std::collections::BTreeMap;
use std::thread;
use std::time::Instant;
use warpsmith_judge::CANCELLED;
use warpsmith_judge::JudgeError;
use warpsmith_schema::EventKind;
use warpsmith_schema::Failure;
use warpsmith_schema::FailureKind;
use warpsmith_schema::ProposedCandidate;
use warpsmith_schema::Verdict;

/// After so many failures of ours in a row the next candidate would fail too.
const MAX_FAILURES: u32 = 3;

impl RunningSearch<'_> {
    /// Has a batch judged, side by side, and takes it up in the order of its numbers. Says why the search is over, if it is.
    pub(super) fn judge_batch(
        &mut self,
        batch: Vec<ProposedCandidate>,
    ) -> Result<Option<SearchLimit>, SearchError> {
        let since = Instant::now();
        let mut ended = None;
        let mut waiting = Vec::new();
        let mut taken = Vec::new();
        for mut candidate in batch {
            // Two of the same batch may be the same.
            let earlier = taken.iter().find(|one: &&ProposedCandidate| {
                one.files.is_some() && one.files == candidate.files
            });
            if let Some(earlier) = earlier {
                candidate.duplicate_of.get_or_insert(earlier.number);
            }
            let is_judged = candidate.files.is_some()
                && candidate.duplicate_of.is_none()
                && !self.logged.is_left_out(candidate.number);
            let known = self.logged.verdicts.get(&candidate.number).cloned();
            if is_judged && known.is_none() {
                // Nothing new is begun once a limit is reached; what was written is judged when the search is resumed.
                if let Some(limit) = self.limit(candidate.number) {
                    ended = Some(limit);
                    break;
                }
                (self.on_progress)(SearchProgress::Judging {
                    number: candidate.number,
                });
                waiting.push(candidate.number);
            }
            taken.push(candidate);
        }
        let judged = self.judge(&taken, &waiting);
        self.waited += since.elapsed();
        for candidate in taken {
            let number = candidate.number;
            let verdict = match judged.get(&number) {
                Some(Ok(verdict)) => {
                    self.failures = 0;
                    Some(verdict.clone())
                }
                Some(Err(failure)) => {
                    if failure.code == CANCELLED || self.stopped() {
                        return Ok(Some(SearchLimit::Interrupted));
                    }
                    self.failed(number, failure)?;
                    None
                }
                None => self.logged.verdicts.get(&number).cloned(),
            };
            self.take_up(candidate, verdict)?;
        }
        Ok(ended)
    }

    fn judge(
        &self,
        batch: &[ProposedCandidate],
        waiting: &[u32],
    ) -> BTreeMap<u32, Result<Verdict, Failure>> {
        let task = &self.plan.task;
        thread::scope(|scope| {
            let jobs = batch.iter().filter(|one| waiting.contains(&one.number));
            let jobs: Vec<_> = jobs
                .filter_map(|one| {
                    let files = one.files.as_ref()?;
                    let submission = warpsmith_tasks::submission_from_text(files);
                    let mut judge = self.judges.judge(self.id(one.number), task.clone());
                    let job = scope.spawn(move || {
                        let judged = judge.judge(task, &submission);
                        judged.map_err(|error: JudgeError| error.failure())
                    });
                    Some((one.number, job))
                })
                .collect();
            jobs.into_iter()
                .map(|(number, job)| {
                    (
                        number,
                        job.join().unwrap_or_else(|_| Err(Failure::panicked())),
                    )
                })
                .collect()
        })
    }

    /// A failure of ours is no verdict. The candidate is left without one; several in a row end the search.
    fn failed(&mut self, number: u32, failure: &Failure) -> Result<(), SearchError> {
        // It ends the search at once, and nothing is made after the candidate: a resumed search has it judged.
        if failure.kind != FailureKind::Infrastructure {
            return Err(SearchError::Failed(failure.clone()));
        }
        self.judges.record(EventKind::InfrastructureFailed {
            episode: Some(self.id(number)),
            failure: failure.clone(),
            retry_in_seconds: None,
        })?;
        self.failures += 1;
        self.last_failure = Some(failure.clone());
        if self.failures >= MAX_FAILURES {
            return Err(SearchError::Failed(failure.clone()));
        }
        Ok(())
    }

    fn take_up(
        &mut self,
        proposed: ProposedCandidate,
        verdict: Option<Verdict>,
    ) -> Result<(), SearchError> {
        let (number, island) = (proposed.number, proposed.island);
        let best = self.state.archive.best();
        let mut candidate = Candidate {
            proposed,
            verdict,
            cell: None,
        };
        let us = candidate.us();
        if let (Some(files), Some(verdict), true) =
            (candidate.files(), &candidate.verdict, us.is_some())
        {
            let known = self.logged.cells.get(&number).cloned();
            candidate.cell =
                Some(known.unwrap_or_else(|| cell_of(files, verdict, self.reference.as_ref())));
        }
        let leads = us.is_some_and(|us| best.is_none_or(|best| us < best.us));
        let policy = candidate.proposed.policy.clone();
        let was_dropped = policy
            .as_ref()
            .is_some_and(|policy| self.state.is_dropped(policy));
        self.state.conclude(candidate);
        let Some(candidate) = self.state.candidates.last() else {
            return Ok(());
        };
        if let (Some(cell), Some(us)) = (candidate.cell.clone(), us) {
            let elite = Elite {
                candidate: number,
                us,
            };
            let place = self.state.archive.offer(island, cell, elite);
            if !self.logged.placed.contains(&(number, island)) {
                self.judges.record(EventKind::CandidatePlaced { place })?;
            }
        }
        let spent = self.spent();
        let best_us = self.state.archive.best().map(|best| best.us);
        let Some(candidate) = self.state.candidates.last() else {
            return Ok(());
        };
        if !self.logged.verdicts.contains_key(&number) {
            (self.on_progress)(SearchProgress::Concluded {
                candidate,
                leads,
                best_us,
                spent,
            });
        }
        if let Some(policy) = policy.filter(|policy| !was_dropped && self.state.is_dropped(policy))
        {
            let why = candidate.proposed.unusable.as_deref().unwrap_or_default();
            (self.on_progress)(SearchProgress::PolicyDropped {
                policy: &policy,
                why,
            });
        }
        Ok(())
    }
}
