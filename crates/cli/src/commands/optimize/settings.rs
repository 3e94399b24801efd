//! What `optimize` can be told.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use warpsmith_schema::{CONFIG_FORMAT, Target, Task};
use warpsmith_store::RunFolder;

use crate::args::Positive;
use crate::config::Settings;
use crate::episodes::{EpisodeSettings, USUAL_REPAIRS, without_sources};
use crate::failure::Stop;
use crate::policy::Kind;

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct OptimizeSettings {
    /// Ask no more after this long, all samples together
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
    pub(super) fn decided(&self, kind: Kind, target: Target) -> Self {
        Self {
            episodes: self.episodes.decided(kind, target, USUAL_REPAIRS),
            ..self.clone()
        }
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
) -> Result<RunFolder, Stop> {
    let mut config = config(decided, kind)?;
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
