//! What every verb with episodes can be told about them, and what that means.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use warpsmith_agent::{
    AgentLimits, AgentSettings, ModelSize, PromptStyle, ShellSandbox, SingleSettings, WireFormat,
};
use warpsmith_model::policy::SamplingParams;
use warpsmith_rollout::EpisodeKind;
use warpsmith_sandbox::system_paths;
use warpsmith_schema::Target;

use crate::args::{
    Count, IsolationChoice, JudgingArgs, LocalModelOptions, ModelOn, NotNegative, Positive,
    PrecisionChoice, TargetChoice,
};
use crate::engine::Engine;
use crate::failure::Stop;
use crate::policy::{self, Kind, PolicySpec};

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(crate) struct EpisodeSettings {
    /// Who writes: `local:MODEL`, `openai:MODEL`, `compiler`, `teacher` or `script:FILE`
    #[arg(long, value_name = "POLICY", default_value = policy::DEFAULT)]
    pub(crate) policy: String,
    /// Where an `openai:` policy is served, up to `/chat/completions`
    #[arg(
        long,
        value_name = "URL",
        env = "OPENAI_BASE_URL",
        default_value = "https://api.openai.com/v1"
    )]
    pub(crate) base_url: String,
    /// Where a `local:` policy runs
    #[arg(long, value_enum, default_value_t)]
    model_on: ModelOn,
    /// One reply and repairs, or a loop of tool calls; else `agent` for `openai:` and `single` for others
    #[arg(long, value_enum)]
    mode: Option<ModeChoice>,
    /// Independent episodes of a task
    #[arg(
        long,
        value_name = "K",
        default_value = "1",
        allow_negative_numbers = true
    )]
    pub(crate) samples: Count,
    /// Attempts after a failed one, each told what was wrong (`single`); else 2, and none for `bench`
    #[arg(long, value_name = "N")]
    repairs: Option<u32>,
    /// What the policy is told before a task (`single`); else `short` for a model with our trained adapter and `full` for others
    #[arg(long, value_enum)]
    prompt: Option<PromptChoice>,
    /// Most replies of the policy (`agent`); else 8 for a small model and 40 for a large one
    #[arg(long, value_name = "N")]
    turns: Option<Count>,
    /// Most tokens of the conversation (`agent`), old tool output left out first; else 8192 and 131072
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
    /// How the policy calls tools (`agent`); else `json` for `openai:` and `fenced` for others
    #[arg(long, value_enum)]
    wire: Option<WireChoice>,
    /// Sampling temperature; 0 is greedy
    #[arg(
        long,
        value_name = "T",
        default_value = "0.7",
        allow_negative_numbers = true
    )]
    temperature: NotNegative,
    /// Makes sampling repeatable, where a policy can
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Try variants of the compiler's kernels for so many minutes a module
    ///
    /// The judge measures thread counts, vector widths, splits of reductions and whether operators are fused; the fastest are
    /// kept and remembered for this graph and device. Without it what was found before is used. Of `optimize` with `--start
    /// compiler` and of the policy `compiler`.
    #[arg(long, value_name = "MINUTES", allow_negative_numbers = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tune: Option<Positive>,
    /// Precision of the compiler's matrix products and convolutions on a GPU
    ///
    /// A solution in TF32 is compared with PyTorch in TF32 too, and its verdict says so.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) precision: PrecisionChoice,
    /// Maximum tokens of a reply
    #[arg(long, value_name = "N", default_value = "4096")]
    max_tokens: Count,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) judging: JudgingArgs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PromptChoice {
    /// All rules and an example
    #[default]
    Full,
    /// The form of a reply alone, for a model that was trained with it
    Short,
}

impl From<PromptChoice> for PromptStyle {
    fn from(choice: PromptChoice) -> Self {
        match choice {
            PromptChoice::Full => Self::Full,
            PromptChoice::Short => Self::Short,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ModeChoice {
    /// One reply with all files, then repairs
    Single,
    /// A loop of tool calls in a workspace
    Agent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WireChoice {
    /// By the interface's own tool calls
    Json,
    /// By headings and fenced blocks in the text
    Fenced,
}

/// Repairs of episodes whose point is a good submission.
pub(crate) const USUAL_REPAIRS: u32 = 2;

impl fmt::Display for ModeChoice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Single => "single",
            Self::Agent => "agent",
        })
    }
}

impl EpisodeSettings {
    /// How a local policy is had.
    pub(crate) fn model_options(&self) -> LocalModelOptions {
        let machine = &self.judging.machine;
        LocalModelOptions {
            offline: machine.python.offline,
            on: self.model_on,
            device: machine.device,
        }
    }

    /// What each can be on its own and not together.
    pub(crate) fn check(&self) -> Result<(), Stop> {
        let samples = u32::from(self.samples);
        if samples > 1 && f64::from(self.temperature) == 0.0 {
            return Err(Stop::config(
                "config",
                format!("{samples} samples at `temperature` 0 would all be the same"),
                Some("leave out one of them".to_owned()),
            ));
        }
        Ok(())
    }

    /// With everything decided that was left to us.
    pub(crate) fn decided(
        &self,
        spec: &PolicySpec,
        target: Target,
        repairs: u32,
    ) -> Result<Self, Stop> {
        if target == Target::Cpu && self.precision == PrecisionChoice::Tf32 {
            return Err(Stop::config(
                "config",
                "`precision` tf32 is for GPUs: a CPU has no such products",
                Some("leave it out, or use `--target cuda`".to_owned()),
            ));
        }
        let kind = spec.kind;
        let large = kind == Kind::OpenAi;
        let usual = if large {
            ModeChoice::Agent
        } else {
            ModeChoice::Single
        };
        let mut decided = self.clone();
        let mode = *decided.mode.get_or_insert(usual);
        decided.judging.machine.target = match target {
            Target::Cpu => TargetChoice::Cpu,
            Target::Cuda => TargetChoice::Cuda,
        };
        if mode == ModeChoice::Single {
            decided.repairs.get_or_insert(repairs);
            if decided.prompt.is_none() {
                decided.prompt = Some(if spec.is_trained()? {
                    PromptChoice::Short
                } else {
                    PromptChoice::Full
                });
            }
        } else {
            let limits = size(kind).limits();
            decided.turns = decided.turns.or(limits.turns.try_into().ok());
            decided.tokens.get_or_insert(limits.tokens);
            decided.wire.get_or_insert(if large {
                WireChoice::Json
            } else {
                WireChoice::Fenced
            });
        }
        Ok(decided)
    }

    /// How long variants of the compiler's kernels are tried.
    pub(crate) fn tuning_budget(&self) -> Option<Duration> {
        let seconds = 60.0 * f64::from(self.tune?);
        // Longer than a duration can be is no limit.
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// The most replies of an episode of a local policy.
    #[cfg(feature = "local-models")]
    pub(crate) fn replies(&self, repairs: u32) -> u32 {
        match self.mode {
            Some(ModeChoice::Agent) => self
                .turns
                .map_or(ModelSize::Small.limits().turns, u32::from),
            Some(ModeChoice::Single) | None => 1 + self.repairs.unwrap_or(repairs),
        }
    }

    /// Settings that somebody asked for and that this mode does not look at.
    pub(crate) fn idle(&self, said: &BTreeSet<String>) -> Option<String> {
        let (mode, others): (_, &[&str]) = match self.mode? {
            ModeChoice::Single => (ModeChoice::Single, &["turns", "tokens", "wire"]),
            ModeChoice::Agent => (ModeChoice::Agent, &["repairs", "prompt"]),
        };
        let idle: Vec<String> = others
            .iter()
            .filter(|key| said.contains(**key))
            .map(|key| format!("`{key}`"))
            .collect();
        let names = idle.join(", ");
        (!idle.is_empty()).then(|| format!("note: mode `{mode}` does not look at {names}"))
    }
}

fn size(kind: Kind) -> ModelSize {
    match kind {
        Kind::OpenAi => ModelSize::Large,
        // The teacher's students are small.
        Kind::Local | Kind::Script | Kind::Teacher | Kind::Compiler => ModelSize::Small,
    }
}

/// From settings with everything decided.
pub(crate) fn episode_kind(
    settings: &EpisodeSettings,
    kind: Kind,
    engine: &Engine,
    deadline: Option<Instant>,
) -> EpisodeKind {
    let sampling = SamplingParams {
        temperature: f64::from(settings.temperature) as f32,
        seed: settings.seed,
        max_tokens: settings.max_tokens.into(),
        ..SamplingParams::default()
    };
    if settings.mode != Some(ModeChoice::Agent) {
        return EpisodeKind::Single(SingleSettings {
            target: engine.target,
            prompt: settings.prompt.unwrap_or_default().into(),
            repairs: settings.repairs.unwrap_or_default(),
            deadline,
            sampling,
        });
    }
    let size = size(kind);
    let usual = size.limits();
    EpisodeKind::Agent(AgentSettings {
        target: engine.target,
        sampling,
        wire: match settings.wire {
            Some(WireChoice::Json) => WireFormat::Json,
            Some(WireChoice::Fenced) | None => WireFormat::Fenced,
        },
        size,
        limits: AgentLimits {
            turns: settings.turns.map_or(usual.turns, u32::from),
            tokens: settings.tokens.unwrap_or(usual.tokens),
            deadline,
        },
        sandbox: shell_sandbox(engine, settings.judging.isolation),
    })
}

pub(crate) fn shell_sandbox(engine: &Engine, isolation: IsolationChoice) -> ShellSandbox {
    ShellSandbox {
        read: readable(engine),
        isolation: isolation.into(),
    }
}

/// Programs for an agent's shell, and the Python that it may try things with.
fn readable(engine: &Engine) -> Vec<PathBuf> {
    let python = engine.python.prefixes.iter().cloned();
    system_paths().into_iter().chain(python).collect()
}

/// Settings without those that say where things are fetched from: that is another matter than what is done with them.
pub(crate) fn without_sources(mut settings: Map<String, Value>, kind: Kind) -> Map<String, Value> {
    settings.remove("python");
    settings.remove("offline");
    if kind != Kind::OpenAi {
        settings.remove("base_url");
    }
    if kind != Kind::Local {
        settings.remove("model_on");
    }
    settings
}
