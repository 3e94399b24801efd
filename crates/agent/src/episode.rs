//! An episode on its way: a trajectory that has no end yet, kept at every step so that another process can go on with it.

use std::time::Instant;

use warpsmith_model::policy::{Policy, PolicyError, Reply, Sampling};
use warpsmith_schema::{
    Attempt, Elision, EpisodeEnding, EpisodeMode, Message, PolicyVersion, Target, Task, ToolCall,
    Trajectory, Verdict,
};

use crate::Files;
use crate::court::{AgentError, Watch};
use crate::prompt;
use crate::records::Records;

/// One of several episodes of the same task.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// From one.
    pub number: u32,
    /// What an earlier run has of it: it goes on from there.
    pub before: Option<Trajectory>,
}

/// A turn of one sample may not have the luck of another's.
const SEEDS_APART: u64 = 1 << 16;

pub(crate) struct Episode {
    begun: Instant,
    seconds_before: f64,
    /// Its ending is `interrupted` until there is another.
    so_far: Trajectory,
    records: Records,
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
        let records = if replies(&so_far.messages) == 0 {
            Records::begin()
        } else {
            Records::resume(so_far.tokens.clone())
        };
        Self {
            begun: Instant::now(),
            seconds_before: so_far.seconds,
            so_far,
            records,
        }
    }

    pub(crate) fn sample(&self) -> u32 {
        self.so_far.sample
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.so_far.messages
    }

    pub(crate) fn elisions(&self) -> &[Elision] {
        &self.so_far.elisions
    }

    pub(crate) fn elided(&mut self, elision: Elision) {
        self.so_far.elisions.push(elision);
    }

    pub(crate) fn attempts(&self) -> &[Attempt] {
        &self.so_far.attempts
    }

    /// How often the policy has replied.
    pub(crate) fn replies(&self) -> u32 {
        replies(&self.so_far.messages)
    }

    /// Since this process took it up.
    pub(crate) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Samples of one run differ, however it was seeded.
    pub(crate) fn sampling(&self, of_the_run: Sampling) -> Sampling {
        let apart = u64::from(self.so_far.sample - 1) * SEEDS_APART;
        Sampling {
            seed: of_the_run.seed.map(|seed| seed.wrapping_add(apart)),
            ..of_the_run
        }
    }

    pub(crate) fn said(&mut self, reply: &Reply, calls: Vec<ToolCall>) {
        self.so_far.usage += reply.usage;
        let message = self.so_far.messages.len() as u32;
        self.records.add(message, reply.tokens.clone());
        self.told(Message::Assistant {
            text: reply.text.clone(),
            calls,
        });
    }

    pub(crate) fn told(&mut self, message: Message) {
        self.so_far.messages.push(message);
    }

    /// Keeps a judged attempt under the message it came from.
    pub(crate) fn attempted(&mut self, message: u32, files: &Files, verdict: Verdict) {
        self.so_far.attempts.push(Attempt {
            message,
            files: files.clone(),
            verdict,
        });
        self.so_far.best = best(&self.so_far.attempts);
    }

    /// Hands over where it stands, to be kept; with an ending if it has come to one.
    pub(crate) fn reach(
        &mut self,
        ending: Option<EpisodeEnding>,
        watch: &mut dyn Watch,
    ) -> Result<(), AgentError> {
        self.so_far.id = identity(&self.so_far.task, &self.so_far.messages);
        self.so_far.seconds = self.seconds_before + self.seconds();
        self.so_far.tokens = self.records.so_far();
        if let Some(ending) = ending {
            self.so_far.ending = ending;
        }
        watch.reached(&self.so_far)
    }
}

fn replies(messages: &[Message]) -> u32 {
    let said = |message: &&Message| matches!(message, Message::Assistant { .. });
    messages.iter().filter(said).count() as u32
}

/// What it means for an episode that a policy has no reply.
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

/// The quickest that passed.
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
    quickest.map(|(number, _)| number as u32)
}

/// A single turn that nobody judged: what a policy is told, and what it says.
pub fn unjudged(
    task: &Task,
    target: Target,
    policy: &PolicyVersion,
    sample: u32,
    reply: String,
) -> Trajectory {
    let mut messages = prompt::opening(task, target);
    messages.push(Message::Assistant {
        text: reply,
        calls: Vec::new(),
    });
    Trajectory {
        id: identity(task, &messages),
        messages,
        ending: EpisodeEnding::Finished,
        ..Trajectory::begin(task, target, policy, sample, EpisodeMode::Single)
    }
}

/// The same conversation about the same task has the same name, wherever it is read.
fn identity(task: &Task, messages: &[Message]) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(task.source.as_bytes());
    for message in messages {
        hasher.update(&(message.text().len() as u64).to_le_bytes());
        hasher.update(message.text().as_bytes());
    }
    hasher.finalize().to_hex()[..16].to_owned()
}
