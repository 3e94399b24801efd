//! Of trajectories that may be imitated, how many of each task: no solution twice, and most of tasks that are neither easy nor
//! solved by chance.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// How many trajectories of one task are imitated, at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerTask {
    pub most: usize,
}

/// Of tasks that were solved by this share of their trajectories, `most` are imitated: 2 to 7 of 8.
const LEARNABLE: std::ops::RangeInclusive<f64> = 0.25..=0.875;
/// Of other tasks: what always succeeds has little left to teach, what succeeded once may be chance.
const OF_OTHERS: usize = 1;

/// A trajectory that may be imitated.
#[derive(Debug, Clone, PartialEq)]
pub struct ImitationCandidate<'a> {
    pub task: &'a str,
    /// The same for trajectories that teach the same.
    pub solution: String,
    pub reward: f64,
    /// How long it is, in whichever measure: of equals the shorter is preferred.
    pub length: usize,
}

/// What becomes of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImitationChoice {
    Imitated,
    /// Another one says the same.
    Duplicate,
    /// There are enough better ones of its task.
    Surplus,
}

impl PerTask {
    /// One choice for each candidate. `solved` has the share of each task's trajectories that solved it.
    pub fn choose(
        &self,
        candidates: &[ImitationCandidate<'_>],
        solved: &BTreeMap<&str, f64>,
    ) -> Vec<ImitationChoice> {
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by(|one, other| {
            let (one, other) = (&candidates[*one], &candidates[*other]);
            let better = other.reward.total_cmp(&one.reward);
            better.then(one.length.cmp(&other.length))
        });
        let mut known: BTreeSet<(&str, &str)> = BTreeSet::new();
        let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
        let mut choices = vec![ImitationChoice::Surplus; candidates.len()];
        for place in order {
            let ImitationCandidate { task, solution, .. } = &candidates[place];
            let learnable = solved.get(task).is_some_and(|one| LEARNABLE.contains(one));
            let most = if learnable {
                self.most
            } else {
                self.most.min(OF_OTHERS)
            };
            let taken = taken.entry(task).or_default();
            choices[place] = if !known.insert((task, solution)) {
                ImitationChoice::Duplicate
            } else if *taken < most {
                *taken += 1;
                ImitationChoice::Imitated
            } else {
                ImitationChoice::Surplus
            };
        }
        choices
    }
}

#[cfg(test)]
mod tests {
    use super::ImitationChoice::{Duplicate, Imitated, Surplus};
    use super::*;

    fn candidate(
        task: &'static str,
        solution: &str,
        reward: f64,
        length: usize,
    ) -> ImitationCandidate<'static> {
        ImitationCandidate {
            task,
            solution: solution.to_owned(),
            reward,
            length,
        }
    }

    #[test]
    fn the_best_of_each_task_and_none_twice() {
        let candidates = [
            candidate("some", "a", 1.0, 9),
            candidate("some", "a", 1.0, 7),
            candidate("some", "b", 2.0, 9),
            candidate("some", "c", 1.0, 8),
            candidate("some", "d", 1.0, 20),
            // The same solution of another task is another.
            candidate("every", "a", 1.0, 9),
            candidate("every", "b", 1.0, 3),
            candidate("once", "a", 1.0, 9),
        ];
        let solved = BTreeMap::from([("some", 5.0 / 8.0), ("every", 1.0), ("once", 1.0 / 8.0)]);
        let choices = PerTask { most: 3 }.choose(&candidates, &solved);
        let expected = [
            Duplicate, Imitated, Imitated, Imitated, Surplus, Surplus, Imitated, Imitated,
        ];
        assert_eq!(choices, expected);
    }
}
