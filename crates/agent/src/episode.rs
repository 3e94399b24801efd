//! An episode under way: a trajectory that has no end yet, saved at every step so that another process can resume it.

use std::sync::Arc;
use std::time::Instant;

use warpsmith_model::policy::{Policy, PolicyError, PolicyReply, SamplingParams};
use warpsmith_schema::{
    Attempt, Elision, EpisodeEnding, EpisodeMode, Message, Target, Task, ToolCall, Trajectory,
    Verdict,
};

use crate::token_records::TokenRecords;
use crate::{AgentError, EpisodeObserver, FencedFiles, StartingPoint};

/// One of several episodes of the same task.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// From one.
    pub number: u32,
    /// What an earlier process left of it: it goes on from there.
    pub before: Option<Trajectory>,
    /// What it starts from, where that is not nothing.
    pub start: Option<Arc<StartingPoint>>,
}

/// The seed of one episode, from its run's: every task and every sample has a random stream of its own. A policy counts it
/// up from turn to turn; hashed seeds are too far apart for one to reach another's.
fn episode_seed(run: u64, task: &str, sample: u32) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&run.to_le_bytes());
    hasher.update(&sample.to_le_bytes());
    hasher.update(task.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    // Endpoints take seeds as JSON numbers, which are exact up to 53 bits.
    u64::from_le_bytes(first) >> 12
}

pub(crate) struct Episode {
    begun: Instant,
    seconds_before: f64,
    /// Its ending is `interrupted` until there is another.
    so_far: Trajectory,
    tokens: TokenRecords,
}

impl Episode {
    pub(crate) fn begin(
        sample: Sample,
        policy: &dyn Policy,
        task: &Task,
        (mode, target): (EpisodeMode, Target),
        opening: impl FnOnce() -> Vec<Message>,
    ) -> Self {
        let so_far = match sample.before {
            Some(before) => Trajectory {
                policy: policy.version().clone(),
                ending: EpisodeEnding::Interrupted,
                ..before
            },
            None => Trajectory {
                messages: opening(),
                ..Trajectory::begin(task, target, policy.version(), sample.number, mode)
            },
        };
        let tokens = if replies(&so_far.messages) == 0 {
            TokenRecords::begin()
        } else {
            TokenRecords::resume(so_far.tokens.clone())
        };
        Self {
            begun: Instant::now(),
            seconds_before: so_far.seconds,
            so_far,
            tokens,
        }
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.so_far.messages
    }

    pub(crate) fn elisions(&self) -> &[Elision] {
        &self.so_far.elisions
    }

    pub(crate) fn add_elision(&mut self, elision: Elision) {
        self.so_far.elisions.push(elision);
    }

    pub(crate) fn attempts(&self) -> &[Attempt] {
        &self.so_far.attempts
    }

    /// How often the policy has replied.
    pub(crate) fn replies(&self) -> u32 {
        replies(&self.so_far.messages)
    }

    /// With this episode's own seed, where the run has one.
    pub(crate) fn sampling(&self, run: SamplingParams) -> SamplingParams {
        let Trajectory { task, sample, .. } = &self.so_far;
        SamplingParams {
            seed: run.seed.map(|seed| episode_seed(seed, &task.id, *sample)),
            ..run
        }
    }

    pub(crate) fn add_reply(&mut self, reply: &PolicyReply, calls: Vec<ToolCall>) {
        self.so_far.usage += reply.usage;
        let message = self.so_far.messages.len() as u32;
        self.tokens.add(message, reply.tokens.clone());
        self.add_message(Message::Assistant {
            text: reply.text.clone(),
            calls,
        });
    }

    pub(crate) fn add_message(&mut self, message: Message) {
        self.so_far.messages.push(message);
    }

    /// Adds a judged attempt under the message it came from.
    pub(crate) fn add_attempt(&mut self, message: u32, files: &FencedFiles, verdict: Verdict) {
        self.so_far.attempts.push(Attempt {
            message,
            files: files.clone(),
            verdict,
        });
        self.so_far.best = best(&self.so_far.attempts);
    }

    /// Has the observer keep the episode as it stands, with an ending if it has come to one.
    pub(crate) fn save(
        &mut self,
        ending: Option<EpisodeEnding>,
        observer: &mut dyn EpisodeObserver,
    ) -> Result<(), AgentError> {
        self.so_far.id = identity(&self.so_far.task, &self.so_far.messages);
        self.so_far.seconds = self.seconds_before + self.begun.elapsed().as_secs_f64();
        self.so_far.tokens = self.tokens.so_far();
        if let Some(ending) = ending {
            self.so_far.ending = ending;
        }
        observer.save(&self.so_far)
    }
}

fn replies(messages: &[Message]) -> u32 {
    let is_reply = |message: &&Message| matches!(message, Message::Assistant { .. });
    messages.iter().filter(is_reply).count() as u32
}

/// How an episode ends whose policy has no reply.
pub(crate) fn ending_of(error: &PolicyError) -> EpisodeEnding {
    match error {
        PolicyError::ContextFull { .. } => EpisodeEnding::ContextFull,
        PolicyError::NotCovered { message, .. } => EpisodeEnding::NotCovered {
            message: message.clone(),
        },
        error => EpisodeEnding::PolicyFailed {
            message: with_causes(error),
        },
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// The quickest that passed; where nothing is timed, the last that passed.
fn best(attempts: &[Attempt]) -> Option<u32> {
    let time = |attempt: &Attempt| {
        let times = attempt.verdict.times_us.as_ref();
        times
            .filter(|_| attempt.verdict.passed())
            .map(|times| times.candidate.0)
    };
    let timed = attempts
        .iter()
        .enumerate()
        .filter_map(|(number, attempt)| Some((number, time(attempt)?)));
    let quickest = timed.min_by(|first, second| first.1.total_cmp(&second.1));
    let untimed = || {
        attempts
            .iter()
            .rposition(|attempt| attempt.verdict.passed())
    };
    let best = quickest.map(|(number, _)| number).or_else(untimed);
    best.map(|number| number as u32)
}

/// The same conversation about the same task has the same id, wherever it is read.
pub(crate) fn identity(task: &Task, messages: &[Message]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(task.source.as_bytes());
    for message in messages {
        hasher.update(&(message.text().len() as u64).to_le_bytes());
        hasher.update(message.text().as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_task_and_sample_has_a_random_stream_of_its_own() {
        let mut seeds = BTreeSet::new();
        for run in 0..4 {
            for task in ["level1/1", "level1/2", "level1/11"] {
                seeds.extend((1..=8).map(|sample| episode_seed(run, task, sample)));
            }
        }
        assert_eq!(seeds.len(), 4 * 3 * 8);
        assert!(seeds.iter().all(|seed| *seed < 1 << 53));
    }
}
