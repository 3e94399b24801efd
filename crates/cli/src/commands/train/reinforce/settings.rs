//! What `train ppo` and `train grpo` can be told.

mod estimate;

use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use warpsmith_agent::{AgentLimits, AgentSettings, ModelSize, SingleSettings, WireFormat};
use warpsmith_machine::SharedDevice;
use warpsmith_model::policy::SamplingParams;
use warpsmith_rollout::EpisodeKind;
use warpsmith_schema::{EpisodeMode, Rules, Task};
use warpsmith_train::algorithms::{
    Aggregation, Band, Clip, Difficulty, Gae, GroupAdvantages, Kl, LengthPenalty, LossMode, Spread,
};
use warpsmith_train::data::RewardRule;
use warpsmith_train::recipes::{
    Advantages, CollectSettings, CriticSettings, CutReplies, Examination, LearningOptions,
    LlmJudge, Penalty, PolicySettings, require_on_policy,
};

use super::super::learning::LearningSettings;
use super::super::sft::RewardChoice;
use crate::args::{
    Count, CountsChoice, IsolationChoice, LocalModelOptions, MachineArgs, NotNegative, Positive,
    ProfileChoice, Share, ShareBelowOne,
};
use crate::config::Settings;
use crate::engine::{Engine, JudgingOptions};
use crate::episodes::{ModeChoice, PromptChoice, shell_sandbox};
use crate::failure::Stop;
use crate::policy::{self, PolicyContext, PolicySpec};
use crate::printer::Printer;

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(in super::super) struct PpoSettings {
    /// Peak learning rate of the critic
    #[arg(long, value_name = "X", default_value = "0.0001")]
    critic_learning_rate: Positive,
    /// Discount factor of later values
    #[arg(long, value_name = "X", default_value = "1.0")]
    gamma: Share,
    /// Lambda of GAE; by default 1, and 0.95 with a pretrained critic (`--critic`)
    #[arg(long, value_name = "X")]
    lam: Option<Share>,
    /// Lambda of the critic's targets
    #[arg(long, value_name = "X", default_value = "1.0")]
    critic_lam: Share,
    /// The critic's epochs over the data of a step
    #[arg(long, value_name = "N", default_value = "2")]
    critic_ppo_epochs: Count,
    /// Clip range of the critic's values; by default none
    #[arg(long, value_name = "X")]
    value_clip: Option<Positive>,
    /// Do not whiten advantages to mean 0 and variance 1
    #[arg(long)]
    no_whitening: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) trying: TryingSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(in super::super) struct GrpoSettings {
    /// Advantage estimator: against the group's mean, or the mean of the others
    #[arg(long, value_enum, default_value_t)]
    #[serde(default)]
    adv_estimator: AdvEstimatorChoice,
    /// Clip the probability ratio of each token, or of the whole sequence (GSPO)
    #[arg(long, value_enum, default_value_t)]
    #[serde(default)]
    loss_mode: LossModeChoice,
    /// Divide advantages by the standard deviation of their group
    #[arg(long)]
    normalize_std: bool,
    /// Length penalty on the reward of replies that passed; by default none
    #[arg(long, value_name = "X")]
    length_alpha: Option<Positive>,
    /// Weight advantages by difficulty: rare successes and rare failures count more
    #[arg(long)]
    difficulty_weight: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) trying: TryingSettings,
}

/// What both have in common.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(in super::super) struct TryingSettings {
    /// Training steps: each collects, judges and learns
    #[arg(long, value_name = "N", default_value = "50")]
    steps: Count,
    /// Tasks of a step
    #[arg(long, value_name = "N", default_value = "16")]
    tasks_per_step: Count,
    /// Episodes of each task in a step
    #[arg(long, value_name = "K", default_value = "8")]
    pub(super) samples: Count,
    /// How often a step samples again to replace groups with equal rewards
    #[arg(long, value_name = "N", default_value_t = 1)]
    refills: u32,
    /// One reply and repairs, or a loop of tool calls
    #[arg(long, value_enum, default_value_t = ModeChoice::Single)]
    mode: ModeChoice,
    /// What the policy is told before a task (`single`)
    #[arg(long, value_enum, default_value_t)]
    #[serde(default)]
    prompt: PromptChoice,
    /// Attempts after a failed one, each told what was wrong (`single`)
    #[arg(long, value_name = "N", default_value_t = 0)]
    repairs: u32,
    /// Most replies of the policy (`agent`); else 8
    #[arg(long, value_name = "N")]
    turns: Option<Count>,
    /// Most tokens of the conversation (`agent`), old tool output left out first; else 8192
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
    /// Sampling temperature: 1, as other samples would be off-policy
    #[arg(long, value_name = "T", default_value = "1")]
    temperature: Positive,
    /// Maximum tokens of a reply
    #[arg(long, value_name = "N", default_value = "1024")]
    max_tokens: Count,
    /// Which reward to train on
    #[arg(long, value_enum, default_value_t)]
    reward: RewardChoice,
    /// Which attempt of an episode is rewarded
    #[arg(long, value_enum, default_value_t = CountsChoice::Final)]
    pub(super) counts: CountsChoice,
    /// A policy whose score of each submission is added to the reward
    #[arg(long, value_name = "POLICY")]
    llm_judge: Option<String>,
    /// Where an `openai:` LLM judge is served, up to `/chat/completions`
    #[arg(long, value_name = "URL", default_value = "https://api.openai.com/v1")]
    llm_judge_url: String,
    /// Weight of the LLM judge's score in the reward, at most 1
    #[arg(long, value_name = "X", default_value = "0.5")]
    llm_judge_weight: Positive,
    /// How to treat episodes that the token limit cut off
    #[arg(long, value_enum, default_value_t)]
    cut_replies: CutChoice,
    /// Tasks with a lower running pass rate are set aside
    #[arg(long, value_name = "X", default_value = "0.1")]
    lowest_pass_rate: Share,
    /// Tasks with a higher running pass rate count as solved
    #[arg(long, value_name = "X", default_value = "0.9")]
    highest_pass_rate: Share,
    /// Share of a step's tasks drawn from those outside the two pass rates
    #[arg(long, value_name = "X", default_value = "0.125")]
    retry_share: Share,
    /// Curriculum: tasks with at most this many operators (or of this level) come first
    #[arg(long, value_name = "N", default_value_t = 2)]
    open_operators: u32,
    /// Peak learning rate
    #[arg(long, value_name = "X", default_value = "0.00003")]
    learning_rate: Positive,
    /// Lower clip: probability ratios are clipped at 1 minus this
    #[arg(long, value_name = "X", default_value = "0.2")]
    clip_ratio_low: ShareBelowOne,
    /// Upper clip: probability ratios are clipped at 1 plus this
    #[arg(long, value_name = "X", default_value = "0.28")]
    clip_ratio_high: NotNegative,
    /// Dual clip: bound on the ratio where the advantage is negative, above 1
    #[arg(long, value_name = "X", default_value = "3.0")]
    clip_ratio_c: Positive,
    /// A step's updates stop once the KL to its initial policy exceeds this; 0 for no limit
    #[arg(long, value_name = "X", default_value = "0.05")]
    target_kl: NotNegative,
    /// Cap of the importance weights between sampler and learner
    #[arg(long, value_name = "X", default_value = "2.0")]
    importance_cap: Positive,
    /// Coefficient of the KL penalty to the initial policy; 0 for none
    #[arg(long, value_name = "X", default_value = "0.0")]
    kl_coef: NotNegative,
    /// Coefficient of the entropy bonus
    #[arg(long, value_name = "X", default_value = "0.0")]
    entropy_coeff: NotNegative,
    /// Epochs over the data of a step
    #[arg(long, value_name = "N", default_value = "1")]
    ppo_epochs: Count,
    /// Optimizer steps per epoch
    #[arg(long, value_name = "N", default_value = "1")]
    minibatches: Count,
    /// How the loss and whitening average: over trajectories or over tokens
    #[arg(long, value_enum, default_value_t)]
    aggregation: LossAggChoice,
    /// Steps between evaluations on the tasks of `--validation`
    #[arg(long, value_name = "N", default_value = "10")]
    evaluate_every: Count,
    /// Episodes of each validation task at every evaluation
    #[arg(long, value_name = "K", default_value = "4")]
    validation_samples: Count,
    /// Concurrent episodes; by default 48 where the model runs on a GPU, else 8
    #[arg(long, value_name = "N")]
    concurrency: Option<Count>,
    /// Judges side by side; else 4 that share a GPU, and 1 on a CPU
    #[arg(long, value_name = "N")]
    pub(super) judges: Option<Count>,
    /// How thoroughly to judge
    #[arg(long, value_enum, default_value = "rl")]
    profile: ProfileChoice,
    /// Do not measure `torch.compile`
    #[arg(long)]
    no_compile: bool,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) machine: MachineArgs,
    #[command(flatten)]
    #[serde(flatten)]
    pub(in super::super) learning: LearningSettings,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AdvEstimatorChoice {
    /// The mean of its group
    #[default]
    Grpo,
    /// The mean of the others in its group
    Rloo,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LossModeChoice {
    /// Each token's
    #[default]
    Vanilla,
    /// The whole reply's: with `clip_ratio_low` 0.0003 and `clip_ratio_high` 0.0004, as published
    Gspo,
}

/// How the losses of tokens become one number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LossAggChoice {
    /// The mean over each trajectory's tokens, then over trajectories
    #[default]
    Trajectory,
    /// The mean over all tokens
    Token,
    /// The sum over each trajectory's tokens divided by `max_tokens`, then the mean over trajectories (Dr. GRPO)
    SeqMeanTokenSumNorm,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CutChoice {
    /// `mask` while more than 10 % of a step's episodes are cut, else `penalise`
    #[default]
    Auto,
    /// They are not trained on
    Mask,
    /// They are rewarded −1
    Penalise,
    /// They are rewarded and trained on like others
    Keep,
}

impl Settings for PpoSettings {
    const VERB: &'static str = "train ppo";
    const TEXT: &'static str = include_str!("../ppo.toml");
}

impl Settings for GrpoSettings {
    const VERB: &'static str = "train grpo";
    const TEXT: &'static str = include_str!("../grpo.toml");
}

impl PpoSettings {
    pub(in super::super) fn check(&self) -> Result<(), Stop> {
        self.trying.check()
    }

    pub(in super::super) fn machine(&self) -> &MachineArgs {
        &self.trying.machine
    }

    pub(in super::super) fn learning(&self) -> &LearningSettings {
        &self.trying.learning
    }

    /// With every setting said that depends on whether the critic is pretrained: values of a critic that knows nothing yet must
    /// not stand between a token and its reward.
    pub(super) fn with_critic(&self, pretrained: bool) -> Self {
        let usual = if pretrained { 0.95 } else { 1.0 };
        Self {
            lam: self.lam.or_else(|| Share::try_from(usual).ok()),
            ..self.clone()
        }
    }

    pub(super) fn advantages(&self) -> Advantages {
        Advantages::Critic(CriticSettings {
            gae: Gae {
                gamma: self.gamma.into(),
                lam: self.lam.map_or(1.0, f64::from),
                critic_lambda: self.critic_lam.into(),
            },
            optimizer: self.trying.learning.optimizer(self.critic_learning_rate),
            epochs: u32::from(self.critic_ppo_epochs).into(),
            value_clip: self.value_clip.map(|clip| f64::from(clip) as f32),
            whiten: !self.no_whitening,
        })
    }
}

impl GrpoSettings {
    pub(super) fn check(&self) -> Result<(), Stop> {
        if u32::from(self.trying.samples) < 2 {
            let message = "`samples` must be at least 2: the policy learns from how replies to one task differ";
            return Err(Stop::config("config", message, None));
        }
        if self.normalize_std && self.adv_estimator == AdvEstimatorChoice::Rloo {
            let message = "`normalize_std` is an option of `adv_estimator` \"grpo\" alone";
            return Err(Stop::config("config", message, None));
        }
        self.trying.check()
    }

    pub(super) fn loss_mode(&self) -> LossMode {
        match self.loss_mode {
            LossModeChoice::Vanilla => LossMode::Vanilla,
            LossModeChoice::Gspo => LossMode::Gspo,
        }
    }

    pub(super) fn advantages(&self) -> Advantages {
        Advantages::Group {
            rule: GroupAdvantages {
                spread: match self.adv_estimator {
                    AdvEstimatorChoice::Rloo => Spread::LeaveOneOut,
                    AdvEstimatorChoice::Grpo if self.normalize_std => Spread::Deviation,
                    AdvEstimatorChoice::Grpo => Spread::Absolute,
                },
                length: self.length_alpha.map(|alpha| LengthPenalty {
                    alpha: alpha.into(),
                }),
                difficulty: self.difficulty_weight.then(Difficulty::default),
            },
        }
    }
}

impl TryingSettings {
    /// Whether the policy is held near where it began.
    pub(super) fn has_reference(&self) -> bool {
        f64::from(self.kl_coef) > 0.0
    }

    pub(super) fn check(&self) -> Result<(), Stop> {
        let refuse = |message: &str| Err(Stop::config("config", message, None));
        if f64::from(self.lowest_pass_rate) > f64::from(self.highest_pass_rate) {
            return refuse("`lowest_pass_rate` must not be above `highest_pass_rate`");
        }
        if f64::from(self.clip_ratio_c) <= 1.0 {
            return refuse("`clip_ratio_c` must be above 1");
        }
        require_on_policy(&self.sampling())?;
        if f64::from(self.llm_judge_weight) > 1.0 {
            // Else somebody who is wrong could be paid more than somebody who is right.
            return refuse("`llm_judge_weight` must be at most 1");
        }
        if let Some(spec) = self.llm_judge_spec()?
            && matches!(spec.kind, policy::Kind::Teacher | policy::Kind::Compiler)
        {
            return refuse(
                "the compiler solves tasks, it does not score submissions: name another `llm_judge`",
            );
        }
        self.learning.check()
    }

    /// How language models of this process are had.
    fn model_options(&self) -> LocalModelOptions {
        LocalModelOptions {
            offline: self.machine.python.offline,
            on: self.learning.model_on,
            device: self.machine.device,
        }
    }

    /// Episodes at the same time.
    fn conversations(&self) -> usize {
        let usual = || policy::conversations(self.model_options());
        self.concurrency
            .map_or_else(usual, |count| u32::from(count) as usize)
    }

    fn llm_judge_spec(&self) -> Result<Option<PolicySpec>, Stop> {
        let llm_judge = self.llm_judge.as_deref();
        llm_judge
            .map(|name| PolicySpec::parse(name, &self.llm_judge_url, self.model_options()))
            .transpose()
    }

    /// Ready to be asked.
    pub(super) fn llm_judge(
        &self,
        engine: &Engine,
        printer: &Printer,
    ) -> Result<Option<LlmJudge>, Stop> {
        let Some(spec) = self.llm_judge_spec()? else {
            return Ok(None);
        };
        let context = PolicyContext {
            tasks: &[],
            engine,
            mode: EpisodeMode::Single,
            tuned: None,
        };
        Ok(Some(LlmJudge {
            policy: spec.shared(context, SharedDevice::open(&engine.lease())?, printer)?,
            weight: self.llm_judge_weight.into(),
            concurrency: spec.concurrency(1),
        }))
    }

    pub(super) fn judging_options(&self) -> JudgingOptions {
        JudgingOptions {
            profile: self.profile.into(),
            rules: Rules::Own,
            isolation: IsolationChoice::Strict.into(),
            compile_mode: (!self.no_compile).then(|| "default".to_owned()),
            seed: None,
        }
    }

    /// All of the distribution: what is cut off could not be learnt about.
    fn sampling(&self) -> SamplingParams {
        SamplingParams {
            temperature: f64::from(self.temperature) as f32,
            top_p: 1.0,
            seed: Some(self.learning.seed),
            max_tokens: self.max_tokens.into(),
        }
    }

    fn kind(&self, engine: &Engine) -> EpisodeKind {
        let sampling = self.sampling();
        match self.mode {
            ModeChoice::Single => EpisodeKind::Single(SingleSettings {
                target: engine.target,
                prompt: self.prompt.into(),
                repairs: self.repairs,
                deadline: None,
                sampling,
            }),
            ModeChoice::Agent => {
                let usual = ModelSize::Small.limits();
                EpisodeKind::Agent(AgentSettings {
                    target: engine.target,
                    sampling,
                    wire: WireFormat::Fenced,
                    size: ModelSize::Small,
                    limits: AgentLimits {
                        turns: self.turns.map_or(usual.turns, u32::from),
                        tokens: self.tokens.unwrap_or(usual.tokens),
                        deadline: None,
                    },
                    sandbox: shell_sandbox(engine, IsolationChoice::Strict),
                })
            }
        }
    }

    /// Tasks to collect episodes of, and those that are held out.
    pub(super) fn collect(
        &self,
        tasks: Vec<Task>,
        held_out: Option<Vec<Task>>,
        llm_judge: Option<LlmJudge>,
        engine: &Engine,
    ) -> CollectSettings {
        let shared = |tasks: Vec<Task>| tasks.into_iter().map(Arc::new).collect();
        CollectSettings {
            tasks: shared(tasks),
            tasks_per_step: u32::from(self.tasks_per_step) as usize,
            samples: self.samples.into(),
            kind: self.kind(engine),
            concurrency: self.conversations(),
            reward_rule: RewardRule {
                kind: self.reward.into(),
                counts: self.counts.into(),
            },
            llm_judge,
            band: Band {
                lowest: self.lowest_pass_rate.into(),
                highest: self.highest_pass_rate.into(),
                retry: self.retry_share.into(),
                ..Band::default()
            },
            open: self.open_operators,
            seed: self.learning.seed,
            examination: held_out.map(|tasks| Examination {
                tasks: shared(tasks),
                samples: self.validation_samples.into(),
            }),
        }
    }

    fn aggregation(&self) -> Aggregation {
        match self.aggregation {
            LossAggChoice::Trajectory => Aggregation::Trajectory,
            LossAggChoice::Token => Aggregation::Token,
            LossAggChoice::SeqMeanTokenSumNorm => Aggregation::Constant {
                tokens: self.max_tokens.into(),
            },
        }
    }

    pub(super) fn options(&self) -> LearningOptions {
        let device = self.machine.device;
        self.learning
            .options(self.learning_rate, self.aggregation(), device)
    }

    pub(super) fn recipe(&self, advantages: Advantages, loss_mode: LossMode) -> PolicySettings {
        let learning = self.options();
        PolicySettings {
            steps: u32::from(self.steps).into(),
            optimizer: learning.optimizer,
            advantages,
            loss_mode,
            clip: Some(Clip {
                low: f64::from(self.clip_ratio_low) as f32,
                high: f64::from(self.clip_ratio_high) as f32,
                c: Some(f64::from(self.clip_ratio_c) as f32),
            }),
            importance_cap: f64::from(self.importance_cap) as f32,
            penalty: self.has_reference().then_some(Penalty {
                kl: Kl::K3,
                coefficient: self.kl_coef.into(),
            }),
            entropy_coeff: self.entropy_coeff.into(),
            aggregation: learning.aggregation,
            epochs: u32::from(self.ppo_epochs).into(),
            target_kl: Some(f64::from(self.target_kl)).filter(|target_kl| *target_kl > 0.0),
            refills: self.refills,
            minibatches: u32::from(self.minibatches) as usize,
            cut_replies: match self.cut_replies {
                CutChoice::Auto => CutReplies::Auto,
                CutChoice::Mask => CutReplies::Mask,
                CutChoice::Penalise => CutReplies::Penalise,
                CutChoice::Keep => CutReplies::Keep,
            },
            tokens_per_microbatch: learning.tokens_per_microbatch,
            seed: learning.seed,
            evaluate_every: u32::from(self.evaluate_every).into(),
        }
    }
}

#[cfg(test)]
mod tests;
