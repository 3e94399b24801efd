//! What a run came to, in numbers whose size does not depend on the number of episodes.

use std::collections::BTreeMap;

use serde::Serialize;
use warpsmith_agent::FencedFiles;
use warpsmith_schema::{EpisodeEnding, Trajectory, Usage};

/// Counts over the episodes that ended, in whichever process.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Tally {
    pub episodes: u32,
    /// Episodes with a submission that passed.
    pub passed: u32,
    pub attempts: u32,
    pub endings: BTreeMap<&'static str, u32>,
    pub usage: Usage,
    pub tasks: BTreeMap<String, TaskTally>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct TaskTally {
    pub episodes: u32,
    /// Episodes with a submission that compiled.
    pub compiled: u32,
    pub passed: u32,
    pub best: Option<BestAttempt>,
}

/// The quickest submission of a task that passed.
#[derive(Debug, Clone, Serialize)]
pub struct BestAttempt {
    pub sample: u32,
    pub us: f64,
    /// Over eager in its own precision class.
    pub speedup: Option<f64>,
    #[serde(skip)]
    pub files: FencedFiles,
}

impl Tally {
    pub(crate) fn add(&mut self, ended: &Trajectory) {
        self.episodes += 1;
        self.passed += u32::from(ended.best.is_some());
        self.attempts += ended.attempts.len() as u32;
        *self.endings.entry(name(&ended.ending)).or_default() += 1;
        self.usage += ended.usage;
        let task = self.tasks.entry(ended.task.id.clone()).or_default();
        task.episodes += 1;
        let compiled = ended.attempts.iter().any(|one| one.verdict.compiled);
        task.compiled += u32::from(compiled);
        task.passed += u32::from(ended.best.is_some());
        let Some(best) = best(ended) else { return };
        if task.best.as_ref().is_none_or(|so_far| best.us < so_far.us) {
            task.best = Some(best);
        }
    }
}

fn best(ended: &Trajectory) -> Option<BestAttempt> {
    let attempt = ended.attempts.get(ended.best? as usize)?;
    let verdict = &attempt.verdict;
    let matched = verdict.matched_precision.as_ref();
    Some(BestAttempt {
        sample: ended.sample,
        us: verdict.times_us.as_ref()?.candidate.0,
        speedup: matched.map(|matched| matched.speedup.eager.0),
        files: attempt.files.clone(),
    })
}

fn name(ending: &EpisodeEnding) -> &'static str {
    match ending {
        EpisodeEnding::Finished => "finished",
        EpisodeEnding::Limit { .. } => "limit",
        EpisodeEnding::ContextFull => "context_full",
        EpisodeEnding::NothingUsable => "nothing_usable",
        EpisodeEnding::Looping => "looping",
        EpisodeEnding::NotCovered { .. } => "not_covered",
        EpisodeEnding::PolicyFailed { .. } => "policy_failed",
        EpisodeEnding::Interrupted => "interrupted",
    }
}
