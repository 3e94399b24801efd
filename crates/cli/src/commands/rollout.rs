//! `warpsmith rollout`

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use warpsmith_schema::CountedAttempt;
use warpsmith_tasks::load_all;

use crate::config::{ConfigArgs, Settings};
use crate::episodes::USUAL_REPAIRS;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::fleet::FleetArgs;
use crate::printer::Printer;
#[cfg(feature = "local-models")]
use crate::runs::Played;
use crate::runs::{self, Job, RunSettings};

/// Run a policy on many tasks, several episodes each
///
/// The same command with the same `--out` goes on where the run stopped, whatever stopped it. Ctrl-C finishes what is
/// being judged; a second one stops at once.
#[derive(Debug, Args)]
pub(crate) struct RolloutArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    /// A JSONL or Parquet of `name`, `code` and, where known, `level` and `problem_id`, or a folder of modules
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    settings: RolloutSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(crate) struct RolloutSettings {
    #[command(flatten)]
    #[serde(flatten)]
    run: RunSettings,
}

impl Settings for RolloutSettings {
    const VERB: &'static str = "rollout";
    const TEXT: &'static str = include_str!("rollout/default.toml");
}

impl RolloutSettings {
    pub(crate) fn check(&self) -> Result<(), Stop> {
        self.run.episodes.check()
    }
}

pub(crate) fn run(args: &RolloutArgs, printer: &Printer) -> Result<Exit, Stop> {
    let resolved = args.config.resolve(&args.settings)?;
    let settings = &resolved.settings;
    settings.check()?;
    if let Some(exit) = args.config.print(settings, printer)? {
        return Ok(exit);
    }
    let job = job(
        settings,
        &args.fleet,
        &args.tasks,
        args.out.as_deref(),
        &resolved.said,
    )?;
    runs::run(&job, printer)
}

/// As one stage of several.
#[cfg(feature = "local-models")]
pub(crate) fn play(
    settings: &RolloutSettings,
    tasks: &Path,
    out: &Path,
    printer: &Printer,
) -> Result<Played, Stop> {
    settings.check()?;
    let said = BTreeSet::new();
    let fleet = FleetArgs::from_environment();
    runs::play(&job(settings, &fleet, tasks, Some(out), &said)?, printer)
}

#[cfg(feature = "local-models")]
impl RolloutSettings {
    /// How many episodes there are of so many tasks, and how many replies each has at most.
    pub(crate) fn episodes(&self, tasks: u64) -> (u64, u32) {
        let limit = self
            .run
            .limit
            .map_or(u64::MAX, |limit| u32::from(limit).into());
        let episodes = &self.run.episodes;
        let samples: u32 = episodes.samples.into();
        (
            tasks.min(limit) * u64::from(samples),
            episodes.replies(USUAL_REPAIRS),
        )
    }
}

fn job<'a>(
    settings: &'a RolloutSettings,
    fleet: &'a FleetArgs,
    tasks: &Path,
    out: Option<&'a Path>,
    said: &'a BTreeSet<String>,
) -> Result<Job<'a>, Stop> {
    let config = match serde_json::to_value(settings)? {
        Value::Object(config) => config,
        _ => serde_json::Map::new(),
    };
    Ok(Job {
        verb: "rollout",
        tasks: settings.run.limited(load_all(tasks)?),
        left_out: Vec::new(),
        settings: &settings.run,
        repairs: USUAL_REPAIRS,
        fleet,
        config,
        said,
        out,
        survey: false,
        part: &|_| None,
        counts: CountedAttempt::Best,
        scale: None,
        baselines: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_defaults() {
        crate::config::assert_text_says_the_defaults::<RolloutSettings>();
    }
}
