//! The lines of a run's log.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    CandidatePlace, EpisodeDelta, EpisodeMode, Failure, PolicyVersion, Profile, ProposedCandidate,
    ReferenceBound, Target, Task, Trajectory, Verdict,
};

/// One line of a run's `events.jsonl`. The log is the truth about the run: everything else that is shown of it can be
/// derived from its events again.
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
    /// A process began the run, or resumed it.
    RunStarted { run: Box<RunHeader> },
    /// The judge tried a task and can judge it here.
    TaskAccepted { task: String },
    /// The task cannot be judged here; no policy is asked about it any more.
    TaskSkipped { task: String, reason: Failure },
    /// A process began an episode, or resumed it.
    EpisodeStarted { episode: EpisodeId },
    /// A reply came, or was acted on.
    EpisodeProgressed {
        episode: EpisodeId,
        delta: Box<EpisodeDelta>,
    },
    /// A submission has its verdict. The same files are judged once, in whichever episode they come.
    Judged {
        episode: EpisodeId,
        /// Hash of the submission.
        submission: String,
        verdict: Box<Verdict>,
        /// How long it waited for a judge.
        waited_seconds: f64,
        /// How long the judge worked on it.
        seconds: f64,
    },
    /// An episode came to its end.
    EpisodeEnded { trajectory: Box<Trajectory> },
    /// Something of this program or machine failed. It never counts against a candidate.
    InfrastructureFailed {
        episode: Option<EpisodeId>,
        failure: Failure,
        /// Null where there is no retry until the run is resumed.
        retry_in_seconds: Option<f64>,
    },
    /// How the machine is used.
    MetricsSampled { metrics: RunMetrics },
    /// What the policy starts from has its verdict (`optimize`).
    StartJudged {
        task: String,
        author: StartAuthor,
        /// Hash of the submission.
        submission: String,
        verdict: Box<Verdict>,
    },
    /// A task's best submission, judged again with another mode of `torch.compile` as the baseline.
    CompileModeCompared {
        task: String,
        mode: String,
        verdict: Box<Verdict>,
    },
    /// A submission that may be the best of its task, measured afresh: to choose by the first measurement would favour luck.
    Remeasured {
        task: String,
        /// Hash of the submission.
        submission: String,
        /// From one. What is reported is a measurement that chose nothing: of the only candidate the first, else the second.
        round: u32,
        verdict: Box<Verdict>,
    },
    /// Where the time of the reference goes (`evolve`).
    ReferenceProfiled { reference: ReferenceBound },
    /// Where the time of a candidate goes, as prompts have it (`evolve`).
    CandidateProfiled { candidate: u32, text: String },
    /// A candidate was written (`evolve`).
    CandidateProposed { candidate: Box<ProposedCandidate> },
    /// A candidate that passed has its place in the archive (`evolve`).
    CandidatePlaced { place: CandidatePlace },
    /// A finalist was measured afresh, in turn with the others (`evolve`).
    FinalistMeasured {
        candidate: u32,
        /// From one.
        round: u32,
        /// Whether the measurement is reported; else it chose the winner.
        reported: bool,
        verdict: Box<Verdict>,
    },
    /// The process left the run in good order.
    RunEnded {
        /// Episodes that have not ended; resuming continues them.
        unfinished: u32,
        interrupted: bool,
        /// Why the run ended early, where it did.
        failure: Option<Failure>,
    },
}

/// Who wrote the solution that a policy starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StartAuthor {
    /// The compiler, from the module's graph.
    Compiler,
    /// The user, in a folder.
    User,
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
pub struct RunHeader {
    /// `optimize`, `evolve`, `rollout`, `bench` or one of `train`'s.
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
    /// Shapes were divided by this. Results of such a run are not comparable to the benchmark's.
    pub scale: Option<u32>,
    /// Every setting by name.
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

impl PlannedTask {
    pub fn of(task: &Task, part: Option<SplitPart>) -> Self {
        Self {
            id: task.id.clone(),
            name: task.name.clone(),
            level: task.level,
            part,
        }
    }
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
    /// The fastest that passed; where none did, the last that compiled, else the last.
    #[default]
    Best,
    /// The last, whatever came before.
    Final,
}

impl CountedAttempt {
    /// The index of the attempt that counts. `best` is the fastest that passed; `compiled` says of each attempt whether
    /// it compiled.
    pub fn select(self, best: Option<u32>, compiled: impl Iterator<Item = bool>) -> Option<usize> {
        let all: Vec<bool> = compiled.collect();
        let last = all.len().checked_sub(1);
        match (self, best) {
            (Self::Final, _) => last,
            (Self::Best, Some(best)) if (best as usize) < all.len() => Some(best as usize),
            (Self::Best, _) => all.iter().rposition(|compiled| *compiled).or(last),
        }
    }
}

/// How the machine is used. Means and shares are over the time of the process that writes them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunMetrics {
    /// Since this process began or resumed the run.
    pub seconds: f64,
    pub episodes_planned: u32,
    /// By any process.
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
    /// Share of the time in which a judgement had the device to itself: verifying and timing.
    pub device_leased: f64,
    /// Mean share of the time in which the device computed, by its driver; null where no driver says.
    pub device_busy: Option<f64>,
    /// Episodes that wait for a reply now.
    pub asking: u32,
    pub replies: u32,
    /// Mean time from request to reply.
    pub reply_seconds: f64,
    pub completion_tokens: u64,
}
