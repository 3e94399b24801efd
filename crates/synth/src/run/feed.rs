//! Where candidates come from, and which are wanted.

use std::collections::BTreeMap;

use warpsmith_decontaminate::Benchmark;

use super::{Plan, Progress, SynthError};
use crate::candidate::Candidate;
use crate::compose::{Composer, Unmade};
use crate::filter::Dropped;
use crate::mix::Group;
use crate::record::{Fate, Record};
use crate::spent::Spent;

/// Candidates are composed until so many of each task wanted have been tried.
const CANDIDATES_A_TASK: u64 = 60;

/// Where candidates come from.
pub(super) struct Feed<'a> {
    pub(super) plan: &'a Plan,
    pub(super) quotas: &'a BTreeMap<Group, usize>,
    pub(super) composer: &'a mut dyn Composer,
    pub(super) excluded: &'a Benchmark,
    pub(super) next: u64,
    pub(super) in_hand: BTreeMap<Group, usize>,
}

impl Feed<'_> {
    pub(super) fn in_hand(&self) -> usize {
        self.in_hand.values().sum()
    }

    /// Nothing new is to be expected of it.
    fn is_dry(&self, group: Group, progress: &Progress) -> bool {
        let tried = progress.tried_of.get(&group).copied().unwrap_or(0);
        self.composer
            .supply(group)
            .is_some_and(|supply| tried >= supply)
    }

    /// How many of a group the set takes. The largest group makes up for those that are dry.
    fn quota(&self, group: Group, progress: &Progress) -> usize {
        let quota = self.quotas.get(&group).copied().unwrap_or(0);
        if self.is_dry(group, progress) {
            return progress.kept_of(group);
        }
        let flowing = self
            .quotas
            .iter()
            .filter(|(group, _)| !self.is_dry(**group, progress));
        let largest = flowing
            .max_by_key(|(_, quota)| **quota)
            .map(|(group, _)| *group);
        if largest != Some(group) {
            return quota;
        }
        let dry = self
            .quotas
            .iter()
            .filter(|(group, _)| self.is_dry(**group, progress));
        let missing = dry.map(|(group, quota)| quota.saturating_sub(progress.kept_of(*group)));
        quota + missing.sum::<usize>()
    }

    /// A group that is dry may still get what is in hand of it.
    pub(super) fn is_full(&self, group: Group, progress: &Progress) -> bool {
        let wanted = self.quotas.get(&group).copied().unwrap_or(0);
        progress.kept_of(group) >= wanted.max(self.quota(group, progress))
    }

    /// Whether another one of this group could still be of use.
    fn wanted(&self, group: Group, progress: &Progress) -> bool {
        let left = self
            .quota(group, progress)
            .saturating_sub(progress.kept_of(group));
        let in_hand = self.in_hand.get(&group).copied().unwrap_or(0);
        // Not all that are in hand will be kept.
        !self.is_dry(group, progress) && in_hand < 2 * left
    }

    /// The next candidate worth running, or what became of one that is not.
    pub(super) fn next(
        &mut self,
        progress: &Progress,
        own: &Benchmark,
    ) -> Result<Next, SynthError> {
        let limit = CANDIDATES_A_TASK * (self.plan.count as u64).max(20);
        if !self
            .quotas
            .keys()
            .any(|group| self.wanted(*group, progress))
        {
            return Ok(Next::Wait);
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
            let record = |fate, nearest| Record {
                index,
                group,
                nearest,
                spent: Spent::default(),
                fate,
            };
            let mut candidate = match self.composer.compose(index, group) {
                Ok(candidate) => candidate,
                Err(Unmade::Nothing) => continue,
                Err(Unmade::Nonsense(dropped)) => {
                    return Ok(Next::Over(record(Fate::Dropped(dropped), None)));
                }
                Err(Unmade::Failed(error)) => return Err(SynthError::Composer(error)),
            };
            candidate.nearest = self.excluded.nearest(&candidate.structure);
            if let Some(near) = candidate.nearest.as_ref().filter(|near| near.is_twin()) {
                let detail = format!("{} of `{}`", near.similarity, near.id);
                let dropped = Dropped::new("in_benchmark", detail);
                return Ok(Next::Over(record(
                    Fate::Dropped(dropped),
                    candidate.nearest,
                )));
            }
            if let Some(near) = own.twin(&candidate.structure) {
                let dropped = Dropped::new("near_duplicate", format!("of `{}`", near.id));
                return Ok(Next::Over(record(
                    Fate::Dropped(dropped),
                    candidate.nearest,
                )));
            }
            *self.in_hand.entry(group).or_default() += 1;
            return Ok(Next::Run(Box::new(candidate)));
        }
        Ok(Next::Exhausted)
    }
}

pub(super) enum Next {
    Run(Box<Candidate>),
    Over(Record),
    /// What is in hand may be enough.
    Wait,
    Exhausted,
}
