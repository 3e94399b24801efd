//! `warpsmith rollout`

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use warpsmith_schema::Counts;
use warpsmith_tasks::load_all;

use crate::config::{ConfigArgs, Settings};
use crate::episodes::USUAL_REPAIRS;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::runs::{self, Job, RunSettings};

/// Have a policy write modules for many tasks, several episodes of each
///
/// The same command with the same `--out` goes on where the run stopped, whatever stopped it. Ctrl-C finishes what is
/// being judged; a second one stops at once.
#[derive(Debug, Args)]
pub(crate) struct RolloutArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    /// A JSONL of `name`, `code` and, where known, `level` and `problem_id`, or a folder of modules
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
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
    const TEXT: &'static str = include_str!("rollout/default.toml");
}

pub(crate) fn run(args: &RolloutArgs, printer: &Printer) -> Result<Exit, Stop> {
    let resolved = args.config.resolve(&args.settings)?;
    let settings = &resolved.settings;
    settings.run.episodes.check()?;
    if let Some(exit) = args.config.print(settings, printer)? {
        return Ok(exit);
    }
    let config = match serde_json::to_value(settings)? {
        Value::Object(config) => config,
        _ => serde_json::Map::new(),
    };
    let job = Job {
        verb: "rollout",
        tasks: settings.run.limited(load_all(&args.tasks)?),
        left_out: Vec::new(),
        settings: &settings.run,
        repairs: USUAL_REPAIRS,
        config,
        said: &resolved.said,
        out: args.out.as_deref(),
        survey: false,
        part: &|_| None,
        counts: Counts::Best,
        scale: None,
        baselines: Vec::new(),
    };
    runs::run(&job, printer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_defaults() {
        crate::config::assert_text_says_the_defaults::<RolloutSettings>();
    }
}
