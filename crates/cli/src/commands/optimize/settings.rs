//! What `optimize` can be told, and what that means for its episodes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warpsmith_agent::{
    AgentLimits, AgentSettings, Confines, Settings as SingleSettings, Size, Wire,
};
use warpsmith_model::policy::Sampling;
use warpsmith_sandbox::system_paths;
use warpsmith_schema::{FORMAT, Target, Task};
use warpsmith_store::RunFolder;

use super::policy::{self, Kind};
use crate::args::{Count, JudgingArgs, ModelOn, Positive, TargetChoice};
use crate::config::{Resolved, Settings};
use crate::engine::Engine;
use crate::failure::Stop;

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct OptimizeSettings {
    /// Who writes: `local:MODEL`, `openai:MODEL` or `script:FILE`
    #[arg(long, value_name = "POLICY", default_value = policy::DEFAULT)]
    pub(super) policy: String,
    /// Where an `openai:` policy is served, up to `/chat/completions`
    #[arg(
        long,
        value_name = "URL",
        env = "OPENAI_BASE_URL",
        default_value = "https://api.openai.com/v1"
    )]
    pub(super) base_url: String,
    /// What runs a `local:` policy
    #[arg(long, value_enum, default_value_t)]
    pub(super) model_on: ModelOn,
    /// One reply and repairs, or a loop of tool calls; else `agent` for `openai:` and `single` for others
    #[arg(long, value_enum)]
    mode: Option<ModeChoice>,
    /// Independent episodes, of which the best submission is the result
    #[arg(
        long,
        value_name = "K",
        default_value = "1",
        allow_negative_numbers = true
    )]
    pub(super) samples: Count,
    /// Ask no more after this long, all samples together
    #[arg(long, value_name = "M", allow_negative_numbers = true)]
    minutes: Option<Positive>,
    /// Attempts after a failed one, each told what was wrong (`single`)
    #[arg(long, value_name = "N", default_value_t = 2)]
    repairs: u32,
    /// Most replies of the policy (`agent`); else 8 for a small model and 40 for a large one
    #[arg(long, value_name = "N")]
    turns: Option<Count>,
    /// Most tokens of the conversation (`agent`), old tool output left out first; else 8192 and 131072
    #[arg(long, value_name = "N")]
    tokens: Option<u64>,
    /// How the policy calls tools (`agent`); else `json` for `openai:` and `fenced` for others
    #[arg(long, value_enum)]
    wire: Option<WireChoice>,
    /// How freely to sample; 0 takes the likeliest token
    #[arg(
        long,
        value_name = "T",
        default_value = "0.7",
        allow_negative_numbers = true
    )]
    temperature: Temperature,
    /// Makes sampling repeatable, where a policy can
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Most tokens of one reply
    #[arg(long, value_name = "N", default_value = "4096")]
    max_tokens: Count,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) judging: JudgingArgs,
}

impl Settings for OptimizeSettings {
    const TEXT: &'static str = include_str!("default.toml");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ModeChoice {
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

/// Zero or more.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
struct Temperature(f64);

impl TryFrom<f64> for Temperature {
    type Error = &'static str;

    fn try_from(value: f64) -> Result<Self, Self::Error> {
        if value.is_finite() && value >= 0.0 {
            Ok(Self(value))
        } else {
            Err("must be a number, 0 or more")
        }
    }
}

impl FromStr for Temperature {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().unwrap_or(f64::NAN).try_into()
    }
}

impl From<Temperature> for f64 {
    fn from(temperature: Temperature) -> Self {
        temperature.0
    }
}

impl fmt::Display for ModeChoice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Single => "single",
            Self::Agent => "agent",
        })
    }
}

impl OptimizeSettings {
    /// What each can be on its own and not together.
    pub(super) fn check(&self) -> Result<(), Stop> {
        let samples = u32::from(self.samples);
        if samples > 1 && self.temperature.0 == 0.0 {
            return Err(Stop::config(
                "config",
                format!("{samples} samples at `temperature` 0 would all be the same"),
                Some("leave out one of them".to_owned()),
            ));
        }
        Ok(())
    }

    /// With everything decided that was left to us.
    pub(super) fn decided(&self, kind: Kind, target: Target) -> Self {
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
        if mode == ModeChoice::Agent {
            let limits = size(kind).limits();
            decided.turns = decided.turns.or(limits.turns.try_into().ok());
            decided.tokens.get_or_insert(limits.tokens);
            decided.wire.get_or_insert(if large {
                WireChoice::Json
            } else {
                WireChoice::Fenced
            });
        }
        decided
    }

    /// Settings that somebody asked for and that this mode does not look at.
    pub(super) fn idle(&self, resolved: &Resolved<Self>) -> Option<String> {
        let (mode, others): (_, &[&str]) = match self.mode? {
            ModeChoice::Single => (ModeChoice::Single, &["turns", "tokens", "wire"]),
            ModeChoice::Agent => (ModeChoice::Agent, &["repairs"]),
        };
        let idle: Vec<String> = others
            .iter()
            .filter(|key| resolved.said.contains(**key))
            .map(|key| format!("`{key}`"))
            .collect();
        let names = idle.join(", ");
        (!idle.is_empty()).then(|| format!("note: mode `{mode}` does not look at {names}"))
    }
}

fn size(kind: Kind) -> Size {
    match kind {
        Kind::OpenAi => Size::Large,
        Kind::Local | Kind::Script => Size::Small,
    }
}

/// One of the two kinds of episode.
pub(super) enum Way {
    Single(SingleSettings),
    Agent(AgentSettings),
}

impl Way {
    /// From settings with everything decided.
    pub(super) fn of(settings: &OptimizeSettings, kind: Kind, engine: &Engine) -> Self {
        let minutes = settings.minutes.map(|minutes| 60.0 * f64::from(minutes));
        // Longer than a duration can be is no limit.
        let wall = minutes.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let sampling = Sampling {
            temperature: settings.temperature.0 as f32,
            seed: settings.seed,
            max_tokens: settings.max_tokens.into(),
            ..Sampling::default()
        };
        if settings.mode != Some(ModeChoice::Agent) {
            return Self::Single(SingleSettings {
                target: engine.target,
                repairs: settings.repairs,
                wall,
                sampling,
            });
        }
        let size = size(kind);
        let usual = size.limits();
        Self::Agent(AgentSettings {
            target: engine.target,
            sampling,
            wire: match settings.wire {
                Some(WireChoice::Json) => Wire::Json,
                Some(WireChoice::Fenced) | None => Wire::Fenced,
            },
            size,
            limits: AgentLimits {
                turns: settings.turns.map_or(usual.turns, u32::from),
                tokens: settings.tokens.unwrap_or(usual.tokens),
                wall,
            },
            confines: Confines {
                read: readable(engine),
                isolation: settings.judging.isolation.into(),
            },
        })
    }
}

/// Programs for an agent's shell, and the Python that it may try things with.
fn readable(engine: &Engine) -> Vec<PathBuf> {
    let python = engine.python.prefixes.iter().cloned();
    system_paths().into_iter().chain(python).collect()
}

/// Everything that decides what a run does names it: the same again resumes, another is refused with the difference.
pub(super) fn folder(
    out: Option<&Path>,
    task: &Task,
    kind: Kind,
    decided: &OptimizeSettings,
) -> Result<RunFolder, Stop> {
    let mut config = serde_json::to_value(decided)?;
    if let Value::Object(config) = &mut config {
        // Where things are fetched from is another matter than what is done with them.
        config.remove("python");
        config.remove("offline");
        if kind != Kind::OpenAi {
            config.remove("base_url");
        }
        if kind != Kind::Local {
            config.remove("model_on");
        }
        config.insert("format".to_owned(), json!(FORMAT));
        config.insert("verb".to_owned(), json!("optimize"));
        config.insert("task".to_owned(), json!(task.name));
        config.insert("source".to_owned(), json!(task.source));
    }
    Ok(match out {
        Some(out) => RunFolder::at(out, &config)?,
        None => RunFolder::create_or_resume("runs".as_ref(), "optimize", &task.name, &config)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_defaults() {
        crate::config::assert_text_says_the_defaults::<OptimizeSettings>();
        let page = include_str!("../../../../../docs/reference/configuration.md");
        assert!(page.contains(OptimizeSettings::TEXT.trim_end()));
    }
}
