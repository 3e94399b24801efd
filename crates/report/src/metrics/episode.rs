use std::cmp::Ordering;
use std::collections::BTreeMap;

use warpsmith_schema::{Attempt, CountedAttempt, EpisodeEnding, Profile, Trajectory, Verdict};

use super::Measured;

/// One episode and the attempt of it that counts.
#[derive(Debug, Clone, Copy)]
pub struct EpisodeMetrics<'a> {
    pub trajectory: &'a Trajectory,
    /// `None` where nothing was judged.
    pub attempt: Option<&'a Attempt>,
    pub outcome: EpisodeOutcome,
}

/// What an attempt came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum EpisodeOutcome {
    Failed {
        compiled: bool,
    },
    /// With its times, where it was timed.
    Correct(Option<Measured>),
}

impl EpisodeOutcome {
    fn of(verdict: &Verdict) -> Self {
        let measured = Measured::of(verdict);
        // Where the judge times what passes, a verdict without a usable time earns nothing as a reward either.
        let is_whole = measured.is_some() || verdict.profile == Profile::Verify;
        if verdict.passed() && is_whole {
            Self::Correct(measured)
        } else {
            Self::Failed {
                compiled: verdict.compiled,
            }
        }
    }
}

impl EpisodeMetrics<'_> {
    pub fn compiled(&self) -> bool {
        match self.outcome {
            EpisodeOutcome::Correct(_) => true,
            EpisodeOutcome::Failed { compiled } => compiled,
        }
    }

    pub fn correct(&self) -> bool {
        matches!(self.outcome, EpisodeOutcome::Correct(_))
    }

    /// The times of a correct one that was timed.
    pub fn measured(&self) -> Option<Measured> {
        match self.outcome {
            EpisodeOutcome::Correct(measured) => measured,
            EpisodeOutcome::Failed { .. } => None,
        }
    }

    pub fn task(&self) -> &str {
        &self.trajectory.task.id
    }

    /// Tasks as a benchmark numbers them.
    fn place(&self) -> impl Ord + use<'_> {
        let task = &self.trajectory.task;
        // What has no level comes last.
        let level = (task.level.is_none(), task.level);
        (level, task.problem_id, &task.id, self.trajectory.sample)
    }

    /// How good it is: correct before compiled before not, and of two that are correct the quicker.
    fn order(&self, other: &Self) -> Ordering {
        match (self.measured(), other.measured()) {
            (Some(one), Some(another)) => another.runtime_us.total_cmp(&one.runtime_us),
            _ => (self.correct(), self.compiled()).cmp(&(other.correct(), other.compiled())),
        }
    }
}

/// The episodes that came to an end of their own, in the order of their tasks.
pub fn episodes(trajectories: &[Trajectory], counted: CountedAttempt) -> Vec<EpisodeMetrics<'_>> {
    let mut episodes: Vec<EpisodeMetrics<'_>> = trajectories
        .iter()
        .filter(|one| {
            !matches!(
                one.ending,
                EpisodeEnding::Interrupted | EpisodeEnding::PolicyFailed { .. }
            )
        })
        .map(|trajectory| {
            let attempt = attempt(trajectory, counted);
            let nothing = EpisodeOutcome::Failed { compiled: false };
            let outcome = attempt.map_or(nothing, |attempt| EpisodeOutcome::of(&attempt.verdict));
            EpisodeMetrics {
                trajectory,
                attempt,
                outcome,
            }
        })
        .collect();
    episodes.sort_by(|one, other| one.place().cmp(&other.place()));
    episodes
}

fn attempt(trajectory: &Trajectory, counted: CountedAttempt) -> Option<&Attempt> {
    let compiled = trajectory.attempts.iter().map(|one| one.verdict.compiled);
    let place = counted.select(trajectory.best, compiled)?;
    trajectory.attempts.get(place)
}

/// Of every task its best episode, of equals the first.
pub fn best_of_samples<'a>(episodes: &[EpisodeMetrics<'a>]) -> Vec<EpisodeMetrics<'a>> {
    let best = |of_one: &Vec<EpisodeMetrics<'a>>| {
        of_one
            .iter()
            .rev()
            .max_by(|one, other| one.order(other))
            .copied()
    };
    by_task(episodes).iter().filter_map(best).collect()
}

/// The episodes of every task together.
pub fn by_task<'a>(episodes: &[EpisodeMetrics<'a>]) -> Vec<Vec<EpisodeMetrics<'a>>> {
    let mut tasks: Vec<Vec<EpisodeMetrics<'a>>> = Vec::new();
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    for episode in episodes {
        let task = episode.trajectory.task.id.as_str();
        let place = *places.entry(task).or_insert(tasks.len());
        if place == tasks.len() {
            tasks.push(Vec::new());
        }
        tasks[place].push(*episode);
    }
    tasks
}
