//! Where candidates come from, and which are wanted.

use std::collections::BTreeMap;

use warpsmith_decontaminate::FingerprintIndex;

use super::{SynthError, SynthPlan, SynthProgress};
use crate::candidate::TaskCandidate;
use crate::compose::{ComposeError, TaskComposer};
use crate::filter::FilterRejection;
use crate::filter::FilterSeconds;
use crate::mix::TaskGroup;
use crate::record::{CandidateOutcome, CandidateRecord};

/// Candidates are composed until so many of each task wanted have been tried.
const MAX_CANDIDATES_PER_TASK: u64 = 60;

/// Where candidates come from.
pub(super) struct CandidateFeed<'a> {
    pub(super) plan: &'a SynthPlan,
    pub(super) quotas: &'a BTreeMap<TaskGroup, usize>,
    pub(super) composer: &'a mut dyn TaskComposer,
    pub(super) excluded: &'a FingerprintIndex,
    pub(super) next: u64,
    pub(super) in_hand: BTreeMap<TaskGroup, usize>,
}

impl CandidateFeed<'_> {
    pub(super) fn in_hand(&self) -> usize {
        self.in_hand.values().sum()
    }

    /// Nothing new is to be expected of it.
    fn is_exhausted(&self, group: TaskGroup, progress: &SynthProgress) -> bool {
        let tried = progress.tried_of.get(&group).copied().unwrap_or(0);
        self.composer
            .supply(group)
            .is_some_and(|supply| tried >= supply)
    }

    /// How many of a group the set takes. The largest group makes up for those that are dry.
    fn quota(&self, group: TaskGroup, progress: &SynthProgress) -> usize {
        let quota = self.quotas.get(&group).copied().unwrap_or(0);
        if self.is_exhausted(group, progress) {
            return progress.kept_of(group);
        }
        let flowing = self
            .quotas
            .iter()
            .filter(|(group, _)| !self.is_exhausted(**group, progress));
        let largest = flowing
            .max_by_key(|(_, quota)| **quota)
            .map(|(group, _)| *group);
        if largest != Some(group) {
            return quota;
        }
        let dry = self
            .quotas
            .iter()
            .filter(|(group, _)| self.is_exhausted(**group, progress));
        let missing = dry.map(|(group, quota)| quota.saturating_sub(progress.kept_of(*group)));
        quota + missing.sum::<usize>()
    }

    /// A group that is dry may still get what is in hand of it.
    pub(super) fn is_full(&self, group: TaskGroup, progress: &SynthProgress) -> bool {
        let wanted = self.quotas.get(&group).copied().unwrap_or(0);
        progress.kept_of(group) >= wanted.max(self.quota(group, progress))
    }

    /// Whether another one of this group could still be of use.
    fn wanted(&self, group: TaskGroup, progress: &SynthProgress) -> bool {
        let left = self
            .quota(group, progress)
            .saturating_sub(progress.kept_of(group));
        let in_hand = self.in_hand.get(&group).copied().unwrap_or(0);
        // Not all that are in hand will be kept.
        !self.is_exhausted(group, progress) && in_hand < 2 * left
    }

    /// The next candidate worth running, or what became of one that is not.
    pub(super) fn next(
        &mut self,
        progress: &SynthProgress,
        own: &FingerprintIndex,
    ) -> Result<NextCandidate, SynthError> {
        let limit = MAX_CANDIDATES_PER_TASK * (self.plan.count as u64).max(20);
        if !self
            .quotas
            .keys()
            .any(|group| self.wanted(*group, progress))
        {
            return Ok(NextCandidate::Wait);
        }
        while self.next < limit {
            let index = self.next;
            self.next += 1;
            if progress.tried.contains(&index) {
                continue;
            }
            let Some(group) = self.plan.mix.group(self.plan.seed, index) else {
                continue;
            };
            if !self.wanted(group, progress) {
                continue;
            }
            let record = |outcome, nearest| CandidateRecord {
                index,
                group,
                nearest,
                seconds: FilterSeconds::default(),
                outcome,
            };
            let mut candidate = match self.composer.compose(index, group) {
                Ok(candidate) => candidate,
                Err(ComposeError::NoFit) => continue,
                Err(ComposeError::Invalid(dropped)) => {
                    return Ok(NextCandidate::Dropped(record(
                        CandidateOutcome::Dropped(dropped),
                        None,
                    )));
                }
                Err(ComposeError::Policy(error)) => return Err(SynthError::Composer(error)),
            };
            candidate.nearest = self.excluded.nearest(&candidate.structure);
            if let Some(near) = candidate
                .nearest
                .as_ref()
                .filter(|near| near.is_near_duplicate())
            {
                let detail = format!("{} of `{}`", near.similarity, near.id);
                let dropped = FilterRejection::new("in_benchmark", detail);
                return Ok(NextCandidate::Dropped(record(
                    CandidateOutcome::Dropped(dropped),
                    candidate.nearest,
                )));
            }
            if let Some(near) = own.near_duplicate(&candidate.structure) {
                let dropped = FilterRejection::new("near_duplicate", format!("of `{}`", near.id));
                return Ok(NextCandidate::Dropped(record(
                    CandidateOutcome::Dropped(dropped),
                    candidate.nearest,
                )));
            }
            *self.in_hand.entry(group).or_default() += 1;
            return Ok(NextCandidate::Run(Box::new(candidate)));
        }
        Ok(NextCandidate::Exhausted)
    }
}

pub(super) enum NextCandidate {
    Run(Box<TaskCandidate>),
    Dropped(CandidateRecord),
    /// What is in hand may be enough.
    Wait,
    Exhausted,
}
