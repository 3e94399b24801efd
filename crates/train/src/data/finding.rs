//! What the judges found of a trajectory, whichever reward counts.

use serde::{Deserialize, Serialize};
use warpsmith_schema::{Attempt, CountedAttempt, Reward, Rule, Status, Trajectory};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The robust reward of the attempt that counts: −1 wrong, 1 correct, 2 faster than eager, 3 than `torch.compile` too.
    pub robust: f64,
    /// Nothing that was said could be read as a submission.
    pub unreadable: bool,
    /// An attempt broke a rule that is not one of form.
    pub cheated: bool,
}

impl Finding {
    /// Of an episode in which nothing was judged.
    pub const NOTHING: Self = Self {
        robust: -1.0,
        unreadable: true,
        cheated: false,
    };

    pub fn of(trajectory: &Trajectory, counts: CountedAttempt) -> Self {
        let attempts = &trajectory.attempts;
        let Some(attempt) = counted(trajectory, counts) else {
            return Self::NOTHING;
        };
        let cheated = |attempt: &Attempt| match attempt.verdict.status {
            Status::Cheating => true,
            Status::Rejected => attempt.verdict.rule != Some(Rule::Form),
            _ => false,
        };
        Self {
            robust: attempt.verdict.reward.robust,
            unreadable: attempt.verdict.rule == Some(Rule::Form),
            cheated: attempts.iter().any(cheated),
        }
    }

    pub fn passed(&self) -> bool {
        self.robust > 0.0
    }

    /// Than eager, by the 5 % that noise cannot explain.
    pub fn faster(&self) -> bool {
        self.robust >= 2.0
    }
}

/// The attempt that counts, where there is one.
pub(crate) fn counted(trajectory: &Trajectory, counts: CountedAttempt) -> Option<&Attempt> {
    let attempts = &trajectory.attempts;
    let compiled = attempts.iter().map(|attempt| attempt.verdict.compiled);
    let place = counts.select(trajectory.best, compiled)?;
    attempts.get(place)
}

/// Of the attempt that counts, or the least there is.
pub(super) fn rewards(trajectory: &Trajectory, counts: CountedAttempt) -> Reward {
    counted(trajectory, counts).map_or_else(Reward::lowest, |attempt| attempt.verdict.reward)
}

/// What many episodes came to. All shares are of episodes but `solved`, which is of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Standings {
    pub episodes: usize,
    pub tasks: usize,
    /// Mean of the robust reward.
    pub reward: f64,
    pub passed: f64,
    pub faster: f64,
    /// Tasks that at least one of their episodes solved: pass@k with as many as there are.
    pub solved: f64,
    pub unreadable: f64,
    pub cheated: f64,
}

impl Standings {
    /// Findings with the names of their tasks. `None` where there are none.
    pub fn of<'a>(found: impl IntoIterator<Item = (&'a str, Finding)>) -> Option<Self> {
        let found: Vec<(&str, Finding)> = found.into_iter().collect();
        let mut tasks: Vec<&str> = found.iter().map(|(task, _)| *task).collect();
        let mut solved: Vec<&str> = found
            .iter()
            .filter(|(_, finding)| finding.passed())
            .map(|(task, _)| *task)
            .collect();
        for names in [&mut tasks, &mut solved] {
            names.sort_unstable();
            names.dedup();
        }
        let count = found.len() as f64;
        let share = |holds: &dyn Fn(&Finding) -> bool| {
            found.iter().filter(|(_, finding)| holds(finding)).count() as f64 / count
        };
        let robust = found.iter().map(|(_, finding)| finding.robust);
        (!found.is_empty()).then(|| Self {
            episodes: found.len(),
            tasks: tasks.len(),
            reward: robust.sum::<f64>() / count,
            passed: share(&Finding::passed),
            faster: share(&Finding::faster),
            solved: solved.len() as f64 / tasks.len() as f64,
            unreadable: share(&|finding| finding.unreadable),
            cheated: share(&|finding| finding.cheated),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_of_episodes_and_solved_of_tasks() {
        let robust = |robust| Finding {
            robust,
            unreadable: false,
            cheated: false,
        };
        let cheated = Finding {
            cheated: true,
            ..robust(-1.0)
        };
        let found = [
            ("a", robust(-1.0)),
            ("a", robust(3.0)),
            ("b", Finding::NOTHING),
            ("b", cheated),
        ];
        let expected = Standings {
            episodes: 4,
            tasks: 2,
            reward: 0.0,
            passed: 0.25,
            faster: 0.25,
            solved: 0.5,
            unreadable: 0.25,
            cheated: 0.25,
        };
        assert_eq!(Standings::of(found), Some(expected));
        assert_eq!(Standings::of([]), None);
    }
}
