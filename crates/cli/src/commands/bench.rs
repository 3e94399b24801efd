//! `warpsmith bench`

mod level4;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use warpsmith_schema::{SplitPart, Task};
use warpsmith_tasks::{KernelBenchSplit, load_all, scaled};

use crate::args::{Count, CountsChoice, IsolationChoice};
use crate::config::{ConfigArgs, Settings};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::fleet::FleetArgs;
use crate::printer::Printer;
use crate::runs::{self, Job, RunSettings};

/// Run a policy over `KernelBench`
///
/// Every task is looked at by the judge first: those that cannot be judged here, such as ones too large for the device, are
/// listed. The same command with the same `--out` goes on where the run stopped.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    /// A checkout of `KernelBench`, its `KernelBench/` folder, or a JSONL of `level`, `problem_id`, `name`, `code`
    #[arg(long, value_name = "KERNELBENCH")]
    tasks: PathBuf,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    fleet: FleetArgs,
    #[command(flatten)]
    settings: BenchSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(crate) struct BenchSettings {
    /// Levels; of level 4 only tasks whose weights are on this machine
    #[arg(long, value_name = "L,…", value_delimiter = ',', default_values_t = [1, 2, 3])]
    levels: Vec<u32>,
    /// Only one part of level 1, split 80 : 20
    #[arg(long, value_enum)]
    split: Option<PartChoice>,
    /// Decides which tasks are in which part
    #[arg(long, value_name = "S", default_value_t = 42)]
    split_seed: u64,
    /// Which submission of an episode is its result
    #[arg(long, value_enum, default_value_t = CountsChoice::Best)]
    counts: CountsChoice,
    /// Further modes of `torch.compile` to compare the best submissions with
    #[arg(long, value_name = "MODE,…", value_enum, value_delimiter = ',')]
    baselines: Vec<BaselineChoice>,
    /// Divide large shapes, for small machines; results are not comparable to KernelBench
    #[arg(long, value_name = "N")]
    scale: Option<Count>,
    #[command(flatten)]
    #[serde(flatten)]
    run: RunSettings,
}

impl Settings for BenchSettings {
    const VERB: &'static str = "bench";
    const TEXT: &'static str = include_str!("bench/default.toml");
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PartChoice {
    Train,
    Test,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum BaselineChoice {
    /// At its slowest and best
    MaxAutotune,
    /// With CUDA graphs
    ReduceOverhead,
}

impl BaselineChoice {
    fn name(self) -> &'static str {
        match self {
            Self::MaxAutotune => "max-autotune",
            Self::ReduceOverhead => "reduce-overhead",
        }
    }
}

/// One completion, as the benchmark has it.
const REPAIRS: u32 = 0;

pub(crate) fn run(args: &BenchArgs, printer: &Printer) -> Result<Exit, Stop> {
    let resolved = args.config.resolve(&args.settings)?;
    let settings = &resolved.settings;
    settings.check()?;
    if let Some(exit) = args.config.print(settings, printer)? {
        return Ok(exit);
    }
    let all = load_all(&args.tasks)?;
    let split = KernelBenchSplit::new(&all, settings.split_seed);
    let tasks = settings.chosen(all, &split);
    if tasks.is_empty() {
        return Err(Stop::config(
            "no_task",
            format!("`{}` has no task of these levels", args.tasks.display()),
            Some("look at `--levels` and `--split`".to_owned()),
        ));
    }
    let config = match serde_json::to_value(settings)? {
        Value::Object(config) => config,
        _ => serde_json::Map::new(),
    };
    let job = Job {
        verb: "bench",
        left_out: level4::without_weights(&tasks),
        tasks,
        settings: &settings.run,
        repairs: REPAIRS,
        fleet: &args.fleet,
        config,
        said: &resolved.said,
        out: args.out.as_deref(),
        survey: true,
        part: &|task| split.part(task),
        counts: settings.counts.into(),
        scale: settings.scale.map(u32::from),
        baselines: settings
            .baselines
            .iter()
            .map(|mode| mode.name().to_owned())
            .collect(),
    };
    runs::run(&job, printer)
}

impl BenchSettings {
    fn check(&self) -> Result<(), Stop> {
        self.run.episodes.check()?;
        if self.run.episodes.judging.isolation == IsolationChoice::Weak {
            return Err(Stop::config(
                "config",
                "a benchmark needs every protection: verdicts without them prove nothing",
                Some(
                    "leave out `--isolation weak`; `warpsmith doctor` says what is missing"
                        .to_owned(),
                ),
            ));
        }
        if let Some(level) = self.levels.iter().find(|level| !(1..=4).contains(*level)) {
            return Err(Stop::config(
                "config",
                format!("there is no level {level}"),
                Some("levels are 1, 2, 3 and 4".to_owned()),
            ));
        }
        Ok(())
    }

    fn chosen(&self, all: Vec<Task>, split: &KernelBenchSplit) -> Vec<Task> {
        let part = self.split.map(|part| match part {
            PartChoice::Train => SplitPart::Train,
            PartChoice::Test => SplitPart::Test,
        });
        let of_levels = |task: &Task| task.level.is_some_and(|level| self.levels.contains(&level));
        let chosen = all
            .into_iter()
            .filter(of_levels)
            .filter(|task| part.is_none() || split.part(task) == part);
        let chosen = self.run.limited(chosen.collect::<Vec<_>>());
        match self.scale {
            Some(scale) => chosen
                .iter()
                .map(|task| scaled(task, scale.into()))
                .collect(),
            None => chosen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_defaults() {
        crate::config::assert_text_says_the_defaults::<BenchSettings>();
    }
}
