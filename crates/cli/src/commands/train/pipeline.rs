//! `warpsmith train pipeline`: from a base model to an agent, stage after stage.

mod stage;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use warpsmith_schema::{FORMAT, Failure};
use warpsmith_store::RunFolder;
use warpsmith_tasks::load_all;
use warpsmith_train::data::Columns;
use warpsmith_train::data::read_trajectories;
use warpsmith_train::recipes::{
    DoneStage, GateThresholds, GoOnFrom, PipelineGate, PipelineOutcome, PipelineRun,
    PipelineStage as Stage, StageRunner, TrainedRun, run_folder,
};

use self::stage::tables;
use super::dry_run::{self, DryRunArgs};
use super::learning::Places;
use super::offline::{OfflineSettings, learn};
use super::reinforce::{PpoSettings, Tried, ppo};
use super::sft::{RftSettings, SftSettings};
use super::tracking::TrackArgs;
use super::value::ValueSettings;
use crate::args::Share;
use crate::commands::rollout::{self, RolloutSettings};
use crate::config::{ConfigArgs, Settings, Tables, object};
use crate::engine::Engine;
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::runs;

/// Every stage from a base model to an agent, as one configuration
///
/// sft, a gate, single-turn ppo, collect, rft and value, agentic ppo. Each stage is a run of its own in the run's folder. The
/// same command with the same `--out` goes on: what is done is not repeated, what was stopped goes on where it was.
#[derive(Debug, Args)]
pub(crate) struct PipelineArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue where a gate is not passed
    #[arg(long)]
    ignore_gates: bool,
    #[command(flatten)]
    dry_run: DryRunArgs,
    #[command(flatten)]
    settings: PipelineSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct PipelineSettings {
    /// What learns, `MODEL[+ADAPTER…]`
    #[arg(long, value_name = "MODEL", default_value = "smollm2-135m")]
    model: String,
    /// A teacher's trajectories for `sft`: a run's folder, or a JSONL of them; as often as you like
    #[arg(long, value_name = "RUN")]
    teacher: Vec<PathBuf>,
    /// Tasks to train on
    #[arg(long, value_name = "FILE")]
    tasks: Option<PathBuf>,
    /// Validation tasks: never trained on, only evaluated
    #[arg(long, value_name = "FILE")]
    validation: Option<PathBuf>,
    /// Random seed of every stage
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// The checkpoint of a stage from which the next stage starts
    #[arg(long, value_enum, default_value_t)]
    go_on_from: GoOnFromChoice,
    /// Skip SFT: start RL from the base model, as CUDA Agent does
    #[arg(long)]
    no_sft: bool,
    /// Skip single-turn RL
    #[arg(long)]
    no_single_turn: bool,
    /// Skip rejection fine-tuning of the actor
    #[arg(long)]
    no_rft: bool,
    /// Skip value pretraining of the critic
    #[arg(long)]
    no_value: bool,
    /// Reward the speed-up itself instead of milestones
    #[arg(long)]
    raw_reward: bool,
    /// Single replies instead of the agent loop, in every stage
    #[arg(long)]
    no_agent_loop: bool,
    /// Share of validation tasks that one of several replies must solve after `sft`
    #[arg(long, value_name = "X", default_value = "0.3")]
    gate_pass_at_k: Share,
    /// Share of replies that may be unreadable after `sft`
    #[arg(long, value_name = "X", default_value = "0.05")]
    gate_unreadable: Share,
    /// Fetch nothing from the network
    #[arg(long)]
    offline: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum GoOnFromChoice {
    #[default]
    Last,
    /// On what is held out, where something is
    Best,
}

impl Settings for PipelineSettings {
    const VERB: &'static str = "train pipeline";
    const TEXT: &'static str = include_str!("pipeline.toml");
}

pub(crate) fn run(args: &PipelineArgs, printer: &Printer) -> Result<Exit, Stop> {
    let (resolved, tables) = args.config.resolve_stages(&args.settings, &tables())?;
    let settings = resolved.settings;
    settings.check(&tables)?;
    if let Some(exit) = args.config.print_stages(&settings, &tables, printer)? {
        return Ok(exit);
    }
    if args.dry_run.dry_run {
        return estimate(&settings, &tables, &args.dry_run, printer);
    }
    let stages = json!({ "tables": tables, "order": settings.stages() });
    let known = Map::from_iter([("stages".to_owned(), stages)]);
    let model = settings.model.replace(['/', '+'], "-");
    let out = args.out.as_deref();
    let tasks = settings.tasks()?;
    settings.tried(tasks, None).check()?;
    let last: PpoSettings = settings.of_stage(Stage::Agentic, &tables, &settings.model)?;
    // Whatever is missing is missed before anything is learnt.
    drop(Engine::prepare(last.machine(), printer)?);
    let folder = run_folder(out, "pipeline", object(&settings)?, known, &model)?;
    runs::say_where(&folder, out, printer);
    let run = PipelineRun {
        stages: settings.stages(),
        model: &settings.model,
        folder: &folder,
        gate: GateThresholds {
            pass_at_k: settings.gate_pass_at_k.into(),
            unreadable: settings.gate_unreadable.into(),
        },
        ignore_gates: args.ignore_gates,
        go_on_from: match settings.go_on_from {
            GoOnFromChoice::Last => GoOnFrom::Last,
            GoOnFromChoice::Best => GoOnFrom::Best,
        },
    };
    let stages = Stages {
        settings: &settings,
        tables: &tables,
        tasks,
        folder: &folder,
        printer,
    };
    report(&run.run(&stages)?, &folder, printer)
}

/// Every stage as if all before it had gone as planned.
fn estimate(
    settings: &PipelineSettings,
    tables: &Tables,
    args: &DryRunArgs,
    printer: &Printer,
) -> Result<Exit, Stop> {
    let count = |path: &Path| Ok::<_, Stop>(load_all(path)?.len() as u64);
    let model = &settings.model;
    let mut given = args.given(model)?;
    settings.tried(settings.tasks()?, None).check()?;
    given.tasks = count(settings.tasks()?)?;
    given.held_out = settings.validation.as_deref().map_or(Ok(0), count)?;
    for path in &settings.teacher {
        given.trajectories += read_trajectories(path)?.len() as u64;
    }
    let mut all = Vec::new();
    let mut replies = 1.0;
    for stage in settings.stages() {
        all.push(match stage {
            Stage::Sft => {
                let stage: SftSettings = settings.of_stage(stage, tables, model)?;
                given.offline(&stage.stage(1.0))
            }
            Stage::Gate | Stage::Collect => {
                let played: RolloutSettings = settings.of_stage(stage, tables, model)?;
                let tasks = if stage == Stage::Gate {
                    given.held_out
                } else {
                    given.tasks
                };
                let (episodes, most) = played.episodes(tasks);
                if stage == Stage::Collect {
                    given.trajectories = episodes;
                    replies = f64::from(most);
                }
                given.played(stage.name(), episodes, f64::from(most))
            }
            Stage::Rft => {
                let stage: RftSettings = settings.of_stage(stage, tables, model)?;
                given.offline(&stage.stage(replies))
            }
            Stage::Value => {
                let stage: ValueSettings = settings.of_stage(stage, tables, model)?;
                given.offline(&stage.stage(replies))
            }
            Stage::SingleTurn | Stage::Agentic => {
                let ppo: PpoSettings = settings.of_stage(stage, tables, model)?;
                given.reinforce(&ppo.stage(stage.name()))
            }
        });
    }
    dry_run::report(&given, &all, printer)
}

/// Runs each stage as its verb would.
struct Stages<'a> {
    settings: &'a PipelineSettings,
    tables: &'a Tables,
    tasks: &'a Path,
    folder: &'a RunFolder,
    printer: &'a Printer,
}

impl Stages<'_> {
    fn stage<S: Settings + Args>(&self, stage: Stage, model: &str) -> Result<S, Stop> {
        self.settings.of_stage(stage, self.tables, model)
    }

    fn place(&self, stage: Stage) -> PathBuf {
        self.folder.path().join(stage.name())
    }

    fn play(&self, stage: Stage, tasks: &Path, model: &str) -> Result<PathBuf, Stop> {
        let settings: RolloutSettings = self.stage(stage, model)?;
        let played = rollout::play(&settings, tasks, &self.place(stage), self.printer)?;
        played.whole()?;
        Ok(played.folder)
    }

    fn learn(&self, stage: Stage, model: &str) -> Result<TrainedRun, Stop> {
        let out = Some(self.place(stage));
        let from = |data: Vec<PathBuf>| Places {
            data,
            columns: Columns::default(),
            no_decontaminate: false,
            tracking: TrackArgs::default(),
            out: out.clone(),
        };
        let collected = || vec![self.place(Stage::Collect)];
        let printer = self.printer;
        match stage {
            Stage::Sft => {
                let places = from(self.settings.teacher.clone());
                let settings: SftSettings = self.stage(stage, model)?;
                learn(&settings, &places, printer)
            }
            Stage::Rft => {
                let settings: RftSettings = self.stage(stage, model)?;
                learn(&settings, &from(collected()), printer)
            }
            Stage::Value => {
                let settings: ValueSettings = self.stage(stage, model)?;
                learn(&settings, &from(collected()), printer)
            }
            _ => {
                let settings: PpoSettings = self.stage(stage, model)?;
                let pretrained = stage == Stage::Agentic && !self.settings.no_value;
                let critic = pretrained.then(|| self.place(Stage::Value));
                let tried = self.settings.tried(self.tasks, out);
                ppo(&settings, &tried, critic.as_deref(), printer)
            }
        }
    }
}

impl StageRunner for Stages<'_> {
    fn play_gate(&self, model: &str) -> Result<PathBuf, Failure> {
        let tasks = self.settings.validation.as_deref().unwrap_or(self.tasks);
        self.play(Stage::Gate, tasks, model).map_err(|stop| stop.0)
    }

    fn collect(&self, model: &str) -> Result<PathBuf, Failure> {
        self.play(Stage::Collect, self.tasks, model)
            .map_err(|stop| stop.0)
    }

    fn learn(&self, stage: Stage, model: &str) -> Result<TrainedRun, Failure> {
        Stages::learn(self, stage, model).map_err(|stop| stop.0)
    }

    fn say(&self, stage: Stage, words: &str) {
        self.printer.note(&format!("{}: {words}", stage.name()));
    }
}

/// The folder that a run lies in, which the dashboard shows.
fn shown_from(run: &Path) -> &Path {
    let folder = run.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

fn report(outcome: &PipelineOutcome, folder: &RunFolder, printer: &Printer) -> Result<Exit, Stop> {
    let PipelineOutcome {
        done,
        stopped_by,
        model,
    } = outcome;
    let exit = match stopped_by {
        Some(_) => Exit::NO,
        None => Exit::DONE,
    };
    if printer.json() {
        printer.object(&json!({
            "format": FORMAT, "verb": "train pipeline", "run": folder.path(), "stages": done,
            "stopped_by": stopped_by.as_ref().map(PipelineGate::object), "model": model,
        }))?;
        return Ok(exit);
    }
    let mut lines: Vec<String> = done.iter().map(line).collect();
    if let Some(gate) = stopped_by {
        lines.push(format!("{:<12} {}", Stage::Gate.name(), gate.words()));
    }
    lines.push(format!("model: {model}"));
    lines.push(format!("run: {}", folder.path().display()));
    lines.push(format!(
        "next: warpsmith serve --runs {}",
        shown_from(folder.path()).display()
    ));
    printer.lines(&lines)?;
    Ok(exit)
}

fn line(done: &DoneStage) -> String {
    let numbers = [
        "loss",
        "validation_loss",
        "explained_variance",
        "reward",
        "validation_pass_rate",
        "validation_reward",
    ];
    let number = |name: &&str| {
        let number = done.result["metrics"][name].as_f64()?;
        Some(format!("{} {number:.4}", name.replace('_', " ")))
    };
    let name = done.stage.name();
    if let Some(why) = done.result["left_out"].as_str() {
        return format!("{name:<12} left out  {why}");
    }
    let said: Vec<String> = numbers.iter().filter_map(number).collect();
    format!("{name:<12} done  {}", said.join(", "))
}

impl PipelineSettings {
    /// Finds mistakes of every stage before the first begins.
    fn check(&self, tables: &Tables) -> Result<(), Stop> {
        for stage in self.stages() {
            let model = &self.model;
            match stage {
                Stage::Sft => self
                    .of_stage::<SftSettings>(stage, tables, model)?
                    .learning()
                    .check(),
                Stage::Rft => self
                    .of_stage::<RftSettings>(stage, tables, model)?
                    .learning()
                    .check(),
                Stage::Value => self
                    .of_stage::<ValueSettings>(stage, tables, model)?
                    .learning()
                    .check(),
                Stage::Gate | Stage::Collect => self
                    .of_stage::<RolloutSettings>(stage, tables, model)?
                    .check(),
                Stage::SingleTurn | Stage::Agentic => {
                    self.of_stage::<PpoSettings>(stage, tables, model)?.check()
                }
            }?;
        }
        if !self.no_value {
            let value: ValueSettings = self.of_stage(Stage::Value, tables, &self.model)?;
            let agentic: PpoSettings = self.of_stage(Stage::Agentic, tables, &self.model)?;
            if !value.learning().fits(agentic.learning()) {
                let message = "`fine_tuning`, `rank` and `targets` of [value] and [agentic] must be the same: the critic goes on";
                return Err(Stop::config("config", message, None));
            }
        }
        Ok(())
    }

    fn tried(&self, tasks: &Path, out: Option<PathBuf>) -> Tried {
        Tried {
            tasks: tasks.to_path_buf(),
            validation: self.validation.clone(),
            out,
            tracking: TrackArgs::default(),
        }
    }

    /// What there must be before anything begins.
    fn tasks(&self) -> Result<&Path, Stop> {
        let missing = |what: &str, hint: &str| {
            let message = format!("the pipeline needs {what}");
            Stop::config("config", message, Some(hint.to_owned()))
        };
        if !self.no_sft && self.teacher.is_empty() {
            return Err(missing(
                "a teacher's trajectories",
                "`--teacher RUN`, or `--no-sft` to begin with reinforcement of the base model",
            ));
        }
        let tasks = self.tasks.as_deref();
        tasks.ok_or_else(|| missing("tasks", "`--tasks FILE`"))
    }
}

#[cfg(test)]
mod tests;
