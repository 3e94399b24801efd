//! What the stages of a run would need, from what is known before it begins.

use serde::Serialize;
use warpsmith_model::ModelConfig;

use super::{Hardware, Memory, Networks, Seconds, Speeds, Work, weights};
use crate::recipes::TuningOptions;

/// Whose measured speeds an estimate is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EstimateMachine {
    /// Two cores of a shared virtual machine.
    Cpu,
    /// One GPU of this kind.
    H200,
}

/// Speeds that somebody gave; others are as measured on the machine.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GivenSpeeds {
    /// Tokens trained a second, forward and backward.
    pub learn: Option<f64>,
    /// Tokens generated a second, all episodes together.
    pub generate: Option<f64>,
    /// Judgements a minute.
    pub judge: Option<f64>,
}

/// A speed, and how it is known.
struct Speed {
    rate: f64,
    /// Of a model with so many weights: others are as much slower as they are larger.
    weights: Option<f64>,
    source: &'static str,
}

impl Speed {
    /// What was given wins.
    fn of(&self, given: Option<f64>, weights: f64) -> f64 {
        let measured = self
            .weights
            .map_or(self.rate, |own| self.rate * own / weights);
        given.unwrap_or(measured)
    }

    fn source(&self, given: Option<f64>) -> &'static str {
        given.map_or(self.source, |_| "as given")
    }
}

const SMOLLM: Option<f64> = Some(134.5e6);
/// Of the file, whose output layer is by itself.
const QWEN: Option<f64> = Some(1.777e9);

impl EstimateMachine {
    fn hardware(self) -> Hardware {
        match self {
            Self::Cpu => Hardware::Processor,
            Self::H200 => Hardware::Gpu,
        }
    }

    fn learn(self) -> Speed {
        match self {
            Self::Cpu => Speed {
                rate: 99.0,
                weights: SMOLLM,
                source: "assumed for the size of the model: two cores at 80 Gflop/s, six for each weight; not measured",
            },
            Self::H200 => Speed {
                rate: 352_076.0,
                weights: SMOLLM,
                source: "by the size of the model, from docs/results/training.md: full fine-tuning, 135M, 16 x 2048",
            },
        }
    }

    fn generate(self) -> Speed {
        match self {
            Self::Cpu => Speed {
                rate: 48.5,
                weights: QWEN,
                source: "by the size of the model, from docs/results/models.md: 16 replies at once, 1.5B, two cores",
            },
            Self::H200 => Speed {
                rate: 64.0 / 2.115e-3,
                weights: QWEN,
                source: "by the size of the model, from docs/results/models.md: 64 at once, 1.5B, 2.115 ms a step",
            },
        }
    }

    fn judge(self) -> Speed {
        match self {
            Self::Cpu => Speed {
                rate: 10.4,
                weights: None,
                source: "docs/results/judge.md: profile `rl`, two cores",
            },
            Self::H200 => Speed {
                rate: 87.7,
                weights: None,
                source: "docs/results/judge.md: profile `rl`, four judges",
            },
        }
    }
}

/// What is known before a run begins.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownBefore {
    pub config: ModelConfig,
    pub file_bytes: u64,
    pub machine: EstimateMachine,
    pub speeds: GivenSpeeds,
    /// Tokens of a task's prompt, and of a usual reply.
    pub prompt_tokens: f64,
    pub reply_tokens: f64,
    pub tasks: u64,
    pub held_out: u64,
    pub trajectories: u64,
}

/// One stage's.
#[derive(Debug, Clone, Serialize)]
pub struct StageEstimate {
    pub stage: &'static str,
    pub steps: u64,
    pub episodes: u64,
    pub work: Work,
    pub memory: Memory,
    pub bytes: u64,
    pub seconds: Seconds,
}

/// A stage that learns from trajectories there are.
#[derive(Debug, Clone)]
pub struct OfflineStage {
    pub stage: &'static str,
    pub tuning: TuningOptions,
    pub tokens_per_microbatch: usize,
    pub epochs: u32,
    pub batch: u32,
    /// Share of the tasks that is not learnt from.
    pub held_out: f64,
    /// Replies of a trajectory.
    pub replies: f64,
    /// Longer sequences are not learnt, where there is such a limit.
    pub max_tokens: Option<u32>,
    /// Whether every pass scores before it learns, as a critic's does.
    pub scores: bool,
}

/// A stage in which a policy tries and learns.
#[derive(Debug, Clone)]
pub struct ReinforceStage {
    pub stage: &'static str,
    pub tuning: TuningOptions,
    pub tokens_per_microbatch: usize,
    pub steps: u32,
    pub tasks_per_step: u32,
    pub samples: u32,
    /// Times that a step collects again, at most.
    pub refills: u32,
    pub evaluate_every: u32,
    pub validation_samples: u32,
    pub ppo_epochs: u32,
    /// Passes of the critic, for those who have one.
    pub critic_ppo_epochs: Option<u32>,
    /// Whether a frozen copy of the policy scores too.
    pub reference: bool,
    /// Replies and judgements of an episode, at most.
    pub replies: f64,
    pub judgements: f64,
    /// The most tokens of a conversation, where that is not what the replies come to.
    pub longest: Option<u64>,
    /// Conversations at the same time.
    pub conversations: u64,
}

/// What a stage does, in its own words.
struct StageWork<'a> {
    stage: &'static str,
    steps: u64,
    /// That are played.
    episodes: u64,
    work: Work,
    /// For those that learn: what of the model does, and tokens of a microbatch.
    trained: Option<(&'a TuningOptions, usize)>,
    learners: u64,
    frozen: u64,
    /// The most tokens of a sequence.
    longest: u64,
    conversations: u64,
}

impl KnownBefore {
    pub fn speeds(&self) -> Speeds {
        let (machine, given) = (self.machine, &self.speeds);
        let weights = weights(&self.config) as f64;
        Speeds {
            learn: machine.learn().of(given.learn, weights),
            generate: machine.generate().of(given.generate, weights),
            judge: machine.judge().of(given.judge, weights),
        }
    }

    /// Where each speed is from: of learning, generating and judging.
    pub fn sources(&self) -> [&'static str; 3] {
        let (machine, given) = (self.machine, &self.speeds);
        [
            machine.learn().source(given.learn),
            machine.generate().source(given.generate),
            machine.judge().source(given.judge),
        ]
    }

    /// Of all trajectories, and of all epochs if it is never enough.
    pub fn offline(&self, stage: &OfflineStage) -> StageEstimate {
        let training = self.trajectories as f64 * (1.0 - stage.held_out);
        let epochs = f64::from(stage.epochs);
        let steps = (training / f64::from(stage.batch)).ceil() * epochs;
        let whole = self.prompt_tokens + stage.replies * self.reply_tokens;
        let most = stage.max_tokens.map(f64::from);
        let length = most.map_or(whole, |most| whole.min(most));
        let tokens = epochs * training * length;
        self.estimate(&StageWork {
            stage: stage.stage,
            steps: steps as u64,
            episodes: 0,
            work: Work {
                trained_tokens: tokens,
                scored_tokens: if stage.scores { tokens } else { 0.0 },
                ..Work::default()
            },
            trained: Some((&stage.tuning, stage.tokens_per_microbatch)),
            learners: 1,
            frozen: 0,
            longest: most.unwrap_or(length) as u64,
            conversations: 0,
        })
    }

    /// If every step collects again as often as it may.
    pub fn reinforce(&self, stage: &ReinforceStage) -> StageEstimate {
        let steps = stage.steps;
        let tasks = self.tasks.min(stage.tasks_per_step.into());
        let training = u64::from(steps) * tasks * u64::from(stage.samples);
        let collected = training * u64::from(1 + stage.refills);
        let evaluations = match self.held_out {
            0 => 0,
            _ => 1 + u64::from(steps.div_ceil(stage.evaluate_every)),
        };
        let episodes =
            collected + evaluations * self.held_out * u64::from(stage.validation_samples);
        let length = self.prompt_tokens + stage.replies * self.reply_tokens;
        let read = training as f64 * length;
        let passes = stage.ppo_epochs + stage.critic_ppo_epochs.unwrap_or_default();
        let learners = 1 + u32::from(stage.critic_ppo_epochs.is_some());
        let reference = u32::from(stage.reference);
        // By every network before it learns, and by the policy once more to see how far it has moved.
        let scores = learners + reference + 1;
        self.estimate(&StageWork {
            stage: stage.stage,
            steps: steps.into(),
            episodes,
            work: Work {
                trained_tokens: f64::from(passes) * read,
                scored_tokens: f64::from(scores) * read,
                generated_tokens: episodes as f64 * stage.replies * self.reply_tokens,
                judgements: episodes as f64 * stage.judgements,
            },
            trained: Some((&stage.tuning, stage.tokens_per_microbatch)),
            learners: learners.into(),
            frozen: reference.into(),
            longest: stage.longest.unwrap_or(length as u64),
            conversations: stage.conversations,
        })
    }

    /// Of a stage that only plays, with the usual number of conversations at once.
    pub fn played(&self, stage: &'static str, episodes: u64, replies: f64) -> StageEstimate {
        let longest = self.prompt_tokens + replies * self.reply_tokens;
        self.estimate(&StageWork {
            stage,
            steps: 0,
            episodes,
            work: Work {
                generated_tokens: episodes as f64 * replies * self.reply_tokens,
                judgements: episodes as f64 * (replies / 2.0).max(1.0),
                ..Work::default()
            },
            trained: None,
            learners: 0,
            frozen: 0,
            longest: longest as u64,
            conversations: 8,
        })
    }

    fn estimate(&self, doing: &StageWork<'_>) -> StageEstimate {
        let config = &self.config;
        let trained = doing.trained;
        let networks = Networks {
            trainable: trained.map_or(0, |(tuning, _)| tuning.trainable_weights(config)),
            config: config.clone(),
            learners: doing.learners,
            frozen: doing.frozen,
            tokens_per_microbatch: trained.map_or(0, |(_, tokens)| tokens as u64),
            longest: doing.longest,
            conversations: doing.conversations,
            file_bytes: self.file_bytes,
        };
        let memory = networks.memory(self.machine.hardware());
        StageEstimate {
            stage: doing.stage,
            steps: doing.steps,
            episodes: doing.episodes,
            work: doing.work,
            memory,
            bytes: memory.total(),
            seconds: doing.work.seconds(&self.speeds()),
        }
    }
}
