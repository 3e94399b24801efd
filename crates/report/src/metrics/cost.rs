use serde::Serialize;
use warpsmith_schema::Usage;

use super::{EpisodeMetrics, Summary};

/// What a task took, all its samples together: means over tasks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cost {
    pub prompt_tokens_per_task: Option<f64>,
    pub completion_tokens_per_task: Option<f64>,
    /// From the first prompt to the last verdict.
    pub seconds_per_task: Option<f64>,
    pub attempts_per_task: Option<f64>,
}

impl Cost {
    pub(super) fn of(episodes: &[EpisodeMetrics<'_>]) -> Self {
        let tasks = Summary::of(episodes).tasks;
        if tasks == 0 {
            return Self::default();
        }
        let mut usage = Usage::default();
        let (mut seconds, mut attempts) = (0.0, 0);
        for episode in episodes {
            usage += episode.trajectory.usage;
            seconds += episode.trajectory.seconds;
            attempts += episode.trajectory.attempts.len();
        }
        let per_task = |total: f64| Some(total / tasks as f64);
        Self {
            prompt_tokens_per_task: per_task(usage.prompt_tokens as f64),
            completion_tokens_per_task: per_task(usage.completion_tokens as f64),
            seconds_per_task: per_task(seconds),
            attempts_per_task: per_task(attempts as f64),
        }
    }
}

/// Where the seconds of all episodes went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Budget {
    pub compile: f64,
    pub verify: f64,
    pub time: f64,
    /// The judge's other work, as starting processes.
    pub judge_other: f64,
    /// What is left of the episodes: generation, tools, and waiting for others.
    pub generation: f64,
}

impl Budget {
    pub(super) fn of(episodes: &[EpisodeMetrics<'_>]) -> Self {
        let mut budget = Self::default();
        for episode in episodes {
            let mut judged = 0.0;
            for attempt in &episode.trajectory.attempts {
                let seconds = &attempt.verdict.seconds;
                let stages = seconds.compile + seconds.verify + seconds.time;
                budget.compile += seconds.compile;
                budget.verify += seconds.verify;
                budget.time += seconds.time;
                budget.judge_other += (seconds.total - stages).max(0.0);
                judged += seconds.total.max(stages);
            }
            // A verdict that was remembered took no time again, so it may add up to more than the episode.
            budget.generation += (episode.trajectory.seconds - judged).max(0.0);
        }
        budget
    }

    pub fn parts(&self) -> [(&'static str, f64); 5] {
        [
            ("generation, tools and waiting", self.generation),
            ("compile", self.compile),
            ("verify", self.verify),
            ("time", self.time),
            ("judge, other", self.judge_other),
        ]
    }
}
