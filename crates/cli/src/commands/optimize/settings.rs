//! From flags to how an episode is run.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use warpsmith_agent::{AgentLimits, AgentSettings, Confines, Settings, Size, Wire};
use warpsmith_model::policy::Sampling;
use warpsmith_sandbox::system_paths;
use warpsmith_schema::{FORMAT, Profile, Task};
use warpsmith_store::RunFolder;

use super::policy::{Kind, Wanted};
use super::{ModeChoice, OptimizeArgs, WireChoice};
use crate::engine::Engine;
use crate::failure::Stop;

/// One of the two kinds of episode.
pub(super) enum Way {
    Single(Settings),
    Agent(AgentSettings),
}

impl Way {
    pub(super) fn of(args: &OptimizeArgs, wanted: &Wanted, engine: &Engine) -> Self {
        let frontier = wanted.kind == Kind::OpenAi;
        let wall = args
            .minutes
            .map(|minutes| Duration::from_secs_f64(60.0 * minutes));
        let sampling = Sampling {
            temperature: args.temperature,
            seed: args.seed,
            max_tokens: args.max_tokens,
            ..Sampling::default()
        };
        let mode = args.mode.unwrap_or(if frontier {
            ModeChoice::Agent
        } else {
            ModeChoice::Single
        });
        if mode == ModeChoice::Single {
            return Self::Single(Settings {
                target: engine.target,
                repairs: args.repairs,
                wall,
                sampling,
            });
        }
        let size = if frontier { Size::Large } else { Size::Small };
        let usual = size.limits();
        let usual_wire = if frontier {
            WireChoice::Json
        } else {
            WireChoice::Fenced
        };
        let wire = match args.wire.unwrap_or(usual_wire) {
            WireChoice::Json => Wire::Json,
            WireChoice::Fenced => Wire::Fenced,
        };
        Self::Agent(AgentSettings {
            target: engine.target,
            sampling,
            wire,
            size,
            limits: AgentLimits {
                turns: args.turns.unwrap_or(usual.turns),
                tokens: args.tokens.unwrap_or(usual.tokens),
                wall,
            },
            confines: Confines {
                read: readable(engine),
                isolation: args.isolation.into(),
            },
        })
    }

    fn describe(&self) -> Value {
        match self {
            Self::Single(settings) => {
                json!({ "mode": "single", "target": settings.target, "repairs": settings.repairs })
            }
            Self::Agent(settings) => json!({
                "mode": "agent", "target": settings.target, "turns": settings.limits.turns, "tokens": settings.limits.tokens,
                "wire": match settings.wire { Wire::Json => "json", Wire::Fenced => "fenced" },
            }),
        }
    }
}

/// Programs for an agent's shell, and the Python that it may try things with.
fn readable(engine: &Engine) -> Vec<PathBuf> {
    let python = engine.python.prefixes.iter().cloned();
    system_paths().into_iter().chain(python).collect()
}

/// Everything that decides what a run does names it: the same again resumes, another is refused with the difference.
pub(super) fn folder(args: &OptimizeArgs, task: &Task, way: &Way) -> Result<RunFolder, Stop> {
    let config = json!({
        "format": FORMAT, "verb": "optimize", "task": task.name, "source": task.source, "policy": args.policy,
        "base_url": args.base_url, "token_ids": args.token_ids, "temperature": args.temperature, "seed": args.seed, "max_tokens": args.max_tokens,
        "minutes": args.minutes, "profile": Profile::from(args.profile), "compile": !args.no_compile, "way": way.describe(),
    });
    Ok(match &args.out {
        Some(out) => RunFolder::at(out, &config)?,
        None => RunFolder::create_or_resume("runs".as_ref(), "optimize", &task.name, &config)?,
    })
}
