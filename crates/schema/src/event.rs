use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Attempt, Elision, EpisodeMode, Failure, Message, PolicyVersion, Profile, Target, TokenRecord,
    Trajectory, Usage, Verdict,
};

/// One line of a run's `events.jsonl`, which is the truth about the run: whatever else is shown of it can be made anew
/// from its events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    pub format: u32,
    /// When, in UTC.
    pub at: String,
    pub event: EventKind,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EventKind {
    /// A process took the run up, for the first time or again.
    RunBegun { run: Box<RunHead> },
    /// The judge looked at a task and can judge it here.
    Surveyed { task: String },
    /// Nobody is asked about this task, or not any more: it cannot be judged here.
    LeftOut { task: String, why: Failure },
    /// A process took an episode up, for the first time or again.
    EpisodeBegun { episode: EpisodeId },
    /// A reply came, or was acted on.
    Progressed {
        episode: EpisodeId,
        step: Box<EpisodeStep>,
    },
    /// A submission has its verdict. The same files are not judged again, in whichever episode they come.
    Judged {
        episode: EpisodeId,
        /// Hash of the submission.
        submission: String,
        verdict: Box<Verdict>,
        /// How long it waited for a judge.
        waited_seconds: f64,
        /// How long the judge was at it.
        seconds: f64,
    },
    /// An episode came to its end.
    EpisodeEnded { trajectory: Box<Trajectory> },
    /// Something of ours failed. It never counts against a candidate.
    Hitch {
        episode: Option<EpisodeId>,
        failure: Failure,
        /// Null where it was given up, until the run is resumed.
        again_in_seconds: Option<f64>,
    },
    /// How the machine is used.
    Measured { gauges: Gauges },
    /// A task's best submission, judged once more beside another mode of `torch.compile`.
    Compared {
        task: String,
        mode: String,
        verdict: Box<Verdict>,
    },
    /// The process let go of the run in good order.
    RunEnded {
        /// Episodes that have no end yet; resuming goes on with them.
        unfinished: u32,
        interrupted: bool,
        /// Why it ended early, where it did.
        failure: Option<Failure>,
    },
}

/// One of several episodes of a task.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct EpisodeId {
    /// The task's id.
    pub task: String,
    /// From one.
    pub sample: u32,
}

impl EpisodeId {
    pub fn of(trajectory: &Trajectory) -> Self {
        Self {
            task: trajectory.task.id.clone(),
            sample: trajectory.sample,
        }
    }
}

impl std::fmt::Display for EpisodeId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}, sample {}", self.task, self.sample)
    }
}

/// What a run is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunHead {
    /// `rollout` or `bench`.
    pub verb: String,
    /// Whether an earlier process began it.
    pub resumed: bool,
    pub policy: PolicyVersion,
    pub target: Target,
    pub device: String,
    pub mode: EpisodeMode,
    pub profile: Profile,
    /// The mode of `torch.compile` that is the baseline beside eager; null for eager alone.
    pub compile_mode: Option<String>,
    pub tasks: Vec<PlannedTask>,
    /// Episodes of each task.
    pub samples: u32,
    pub counts: CountedAttempt,
    /// Shapes were divided by this. Such a run is none of the benchmark and stands in no table of it.
    pub scale: Option<u32>,
    /// Everything that was set, by name.
    pub settings: BTreeMap<String, serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedTask {
    pub id: String,
    pub name: String,
    pub level: Option<u32>,
    /// Which part of the split of level 1 it is in; null for other levels.
    pub part: Option<SplitPart>,
}

/// The parts of a split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SplitPart {
    Train,
    Test,
}

impl SplitPart {
    /// The word used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "test",
        }
    }
}

/// Which submission of an episode is its result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CountedAttempt {
    /// The quickest that passed; where none did, the last of those that compiled, else the last.
    #[default]
    Best,
    /// The last, whatever came before.
    Final,
}

impl CountedAttempt {
    /// Its place among attempts of which this is known: the quickest that passed, and which compiled.
    pub fn place(self, best: Option<u32>, compiled: impl Iterator<Item = bool>) -> Option<usize> {
        let all: Vec<bool> = compiled.collect();
        let last = all.len().checked_sub(1);
        match (self, best) {
            (Self::Final, _) => last,
            (Self::Best, Some(best)) if (best as usize) < all.len() => Some(best as usize),
            (Self::Best, _) => all.iter().rposition(|compiled| *compiled).or(last),
        }
    }
}

/// How the machine is used. Means and shares are over this process's time at the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gauges {
    /// Since this process took the run up.
    pub seconds: f64,
    pub episodes_planned: u32,
    /// By whichever process.
    pub episodes_ended: u32,
    pub episodes_running: u32,
    /// Verdicts of this process.
    pub judgements: u32,
    pub judgements_per_minute: f64,
    /// Submissions that wait for a judge now.
    pub judge_queue: u32,
    /// Mean wait of a submission for a judge.
    pub judge_wait_seconds: f64,
    /// Share of the judges' time in which they had work.
    pub judges_busy: f64,
    /// Share of the time in which a judgement had the device for itself: verifying and timing.
    pub device_leased: f64,
    /// Mean share of the time in which the device computed, as its driver says; null where there is none to ask.
    pub device_busy: Option<f64>,
    /// Episodes that wait for a reply now.
    pub asking: u32,
    pub replies: u32,
    /// Mean time from question to reply.
    pub reply_seconds: f64,
    pub completion_tokens: u64,
}

/// What an episode came to since its event before. All steps of an episode together are its trajectory so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EpisodeStep {
    pub messages: Vec<Message>,
    pub elisions: Vec<Elision>,
    pub attempts: Vec<Attempt>,
    /// As the trajectory has it now.
    pub best: Option<u32>,
    /// In all.
    pub usage: Usage,
    /// In all.
    pub seconds: f64,
    /// Null where the policy cannot account for every reply.
    pub tokens: Option<Vec<TokenPiece>>,
}

/// Tokens that were added.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TokenPiece {
    /// To the last sequence; else they begin another.
    pub goes_on: bool,
    pub record: TokenRecord,
}

/// How far an episode was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepCursor {
    messages: usize,
    elisions: usize,
    attempts: usize,
    /// Tokens and replies of each sequence.
    tokens: Vec<(usize, usize)>,
}

impl StepCursor {
    pub fn all_of(trajectory: &Trajectory) -> Self {
        let records = trajectory.tokens.iter().flatten();
        Self {
            messages: trajectory.messages.len(),
            elisions: trajectory.elisions.len(),
            attempts: trajectory.attempts.len(),
            tokens: records
                .map(|record| (record.ids.len(), record.replies.len()))
                .collect(),
        }
    }
}

impl EpisodeStep {
    /// What has not been told yet.
    pub fn since(told: &StepCursor, now: &Trajectory) -> Self {
        let pieces = |records: &Vec<TokenRecord>| {
            let mut pieces = Vec::new();
            for (index, record) in records.iter().enumerate() {
                match told.tokens.get(index) {
                    Some(&(ids, _)) if ids == record.ids.len() => {}
                    Some(&(ids, replies)) => pieces.push(TokenPiece {
                        goes_on: true,
                        record: TokenRecord {
                            ids: record.ids[ids..].to_vec(),
                            logprobs: record.logprobs[ids..].to_vec(),
                            loss_mask: record.loss_mask[ids..].to_vec(),
                            replies: record.replies[replies..].to_vec(),
                            template: record.template.clone(),
                            tokenizer: record.tokenizer.clone(),
                        },
                    }),
                    None => pieces.push(TokenPiece {
                        goes_on: false,
                        record: record.clone(),
                    }),
                }
            }
            pieces
        };
        Self {
            messages: now.messages[told.messages..].to_vec(),
            elisions: now.elisions[told.elisions..].to_vec(),
            attempts: now.attempts[told.attempts..].to_vec(),
            best: now.best,
            usage: now.usage,
            seconds: now.seconds,
            tokens: now.tokens.as_ref().map(pieces),
        }
    }

    /// Adds it to what was told before.
    pub fn add_to(self, trajectory: &mut Trajectory) {
        trajectory.messages.extend(self.messages);
        trajectory.elisions.extend(self.elisions);
        trajectory.attempts.extend(self.attempts);
        trajectory.best = self.best;
        trajectory.usage = self.usage;
        trajectory.seconds = self.seconds;
        let before = trajectory.tokens.take();
        trajectory.tokens = self.tokens.map(|pieces| {
            let mut records = before.unwrap_or_default();
            for TokenPiece { goes_on, record } in pieces {
                match records.last_mut().filter(|_| goes_on) {
                    Some(last) => {
                        last.ids.extend(record.ids);
                        last.logprobs.extend(record.logprobs);
                        last.loss_mask.extend(record.loss_mask);
                        last.replies.extend(record.replies);
                    }
                    None => records.push(record),
                }
            }
            records
        });
    }
}
