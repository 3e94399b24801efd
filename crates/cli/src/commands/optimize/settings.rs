//! What `optimize` can be told.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use warpsmith_rollout::optimize::StartRequest;
use warpsmith_schema::{CONFIG_FORMAT, Target, Task};
use warpsmith_store::RunFolder;
use warpsmith_tasks::load_solution;

use crate::args::Positive;
use crate::config::Settings;
use crate::episodes::{EpisodeSettings, USUAL_REPAIRS, without_sources};
use crate::failure::Stop;
use crate::policy::{Kind, PolicySpec};

const COMPILER: &str = "compiler";
const NOTHING: &str = "none";

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct OptimizeSettings {
    /// What the policy starts from: `compiler`, `none`, or the folder of a solution of your own
    ///
    /// The compiler captures the module's graph and writes kernels for it, which are judged before the policy is asked. The
    /// policy is shown what passed, with its time, and tries to be faster.
    #[arg(long, value_name = "START", default_value = COMPILER)]
    start: String,
    /// Inputs of your own: a file that defines `get_inputs()`, or `get_inputs_variants()` for several shapes
    #[arg(long, value_name = "FILE.py")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inputs: Option<PathBuf>,
    /// The result falls back to the original for other shapes and types, which are an error otherwise
    #[arg(long)]
    pub(super) guard: bool,
    /// Stop asking the policy after this many minutes, all samples together
    #[arg(long, value_name = "M", allow_negative_numbers = true)]
    minutes: Option<Positive>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(super) episodes: EpisodeSettings,
}

impl Settings for OptimizeSettings {
    const VERB: &'static str = "optimize";
    const TEXT: &'static str = include_str!("default.toml");
}

impl OptimizeSettings {
    /// With everything decided that was left to us.
    pub(super) fn decided(&self, spec: &PolicySpec, target: Target) -> Result<Self, Stop> {
        Ok(Self {
            episodes: self.episodes.decided(spec, target, USUAL_REPAIRS)?,
            ..self.clone()
        })
    }

    pub(super) fn starts_from_compiler(&self) -> bool {
        self.start == COMPILER
    }

    pub(super) fn starts_from_nothing(&self) -> bool {
        self.start == NOTHING
    }

    /// What to start from. A folder is read here, once.
    pub(super) fn start(&self, target: Target) -> Result<StartRequest, Stop> {
        Ok(match self.start.as_str() {
            COMPILER => StartRequest::Compiler,
            NOTHING => StartRequest::Nothing,
            folder => {
                let on_gpu = target == Target::Cuda;
                let solution = load_solution(Path::new(folder), on_gpu);
                StartRequest::Solution(solution.map_err(|error| {
                    let mut stop = Stop::from(error);
                    let hint = stop.0.hint.unwrap_or_default();
                    let forms = "`--start` is `compiler`, `none` or a solution's folder";
                    stop.0.hint = Some(format!("{forms}; {hint}").trim_end_matches("; ").into());
                    stop
                })?)
            }
        })
    }

    pub(super) fn samples(&self) -> u32 {
        self.episodes.samples.into()
    }

    /// How long the policy is asked at most, all samples together.
    pub(super) fn time_limit(&self) -> Option<Duration> {
        let seconds = self.minutes.map(|minutes| 60.0 * f64::from(minutes));
        // Longer than a duration can be is no limit.
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }
}

/// Everything that decides what a run does names it: the same again resumes, another is refused with the difference.
pub(super) fn folder(
    out: Option<&Path>,
    task: &Task,
    kind: Kind,
    decided: &OptimizeSettings,
    start: &StartRequest,
) -> Result<RunFolder, Stop> {
    let mut config = config(decided, kind)?;
    // Not the folder's place: what is in it.
    if let StartRequest::Solution(solution) = start {
        config.insert("start".to_owned(), json!(solution.content_hash()));
    }
    config.insert("format".to_owned(), json!(CONFIG_FORMAT));
    config.insert("verb".to_owned(), json!("optimize"));
    config.insert("task".to_owned(), json!(task.name));
    config.insert("source".to_owned(), json!(task.source));
    let config = Value::Object(config);
    Ok(match out {
        Some(out) => RunFolder::at(out, &config)?,
        None => RunFolder::create_or_resume("runs".as_ref(), "optimize", &task.name, &config)?,
    })
}

/// What decides what is done, by name.
pub(super) fn config(decided: &OptimizeSettings, kind: Kind) -> Result<Map<String, Value>, Stop> {
    let settings = serde_json::from_value(serde_json::to_value(decided)?)?;
    Ok(without_sources(settings, kind))
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
