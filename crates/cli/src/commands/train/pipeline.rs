//! `warpsmith train pipeline`: from a base model to an agent, stage after stage.

mod gate;
mod stage;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use warpsmith_schema::FORMAT;
use warpsmith_store::{EventLog, RunFolder};
use warpsmith_tasks::load_all;
use warpsmith_train::data::read_trajectories;
use warpsmith_train::recipes::{LearntRun, run_folder};

use self::gate::Gate;
use self::stage::{Stage, after, tables};
use super::dry_run::DryRunArgs;
use super::learning::Places;
use super::offline::{OfflineSettings, learn};
use super::reinforce::{PpoSettings, Tried, ppo};
use super::sft::{RftSettings, SftSettings};
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
    /// Go on where a gate is not passed
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
    /// Tasks that are learnt from
    #[arg(long, value_name = "FILE")]
    tasks: Option<PathBuf>,
    /// Tasks that are never learnt from: how the policy does on them is looked at
    #[arg(long, value_name = "FILE")]
    validation: Option<PathBuf>,
    /// Of every stage
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Which checkpoint of a stage the next one goes on from
    #[arg(long, value_enum, default_value_t)]
    go_on_from: GoOnFrom,
    /// Begin with reinforcement of the base model, as CUDA Agent does
    #[arg(long)]
    no_sft: bool,
    /// Leave out reinforcement by single replies
    #[arg(long)]
    no_single_turn: bool,
    /// Leave out rejection fine-tuning of the actor
    #[arg(long)]
    no_rft: bool,
    /// Leave out value pretraining of the critic
    #[arg(long)]
    no_value: bool,
    /// Pay the speed-up itself instead of milestones
    #[arg(long)]
    raw_reward: bool,
    /// Single replies in place of the agent's loop, in every stage
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
enum GoOnFrom {
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
        return dry_run(&settings, &tables, &args.dry_run, printer);
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
    let pipeline = Pipeline {
        tasks,
        settings: &settings,
        tables: &tables,
        folder: &folder,
        ignore_gates: args.ignore_gates,
        printer,
    };
    pipeline.run()
}

/// Every stage as if all before it had gone as planned.
fn dry_run(
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
                stage.estimate(1.0, &given)
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
                stage.estimate(replies, &given)
            }
            Stage::Value => {
                let stage: ValueSettings = settings.of_stage(stage, tables, model)?;
                stage.estimate(replies, &given)
            }
            Stage::SingleTurn | Stage::Agentic => {
                let ppo: PpoSettings = settings.of_stage(stage, tables, model)?;
                ppo.estimate(stage.name(), &given)
            }
        });
    }
    given.report(&all, printer)
}

/// A stage that came to its end: a line of `stages.jsonl`.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Done {
    stage: Stage,
    /// What the next stage begins with.
    model: String,
    /// What came of it.
    result: Value,
}

/// The code of a stage whose trajectories were all left out.
const NOTHING_PAID: &str = "nothing_paid";
const DONE: &str = "stages";
const GATE_HINT: &str = "more of a teacher's trajectories may help, in another run; `--ignore-gates` goes on with this one";

struct Pipeline<'a> {
    settings: &'a PipelineSettings,
    tables: &'a Tables,
    tasks: &'a Path,
    folder: &'a RunFolder,
    ignore_gates: bool,
    printer: &'a Printer,
}

impl Pipeline<'_> {
    fn run(&self) -> Result<Exit, Stop> {
        let path = self.folder.path().join(DONE).with_extension("jsonl");
        let mut done: Vec<Done> = EventLog::read_lines(&path)?.lines;
        let mut log = self.folder.log(DONE)?;
        for stage in self.settings.stages() {
            if done.iter().any(|one| one.stage == stage) {
                self.say(stage, "done before");
                continue;
            }
            let model = done.last().map_or(&self.settings.model, |one| &one.model);
            self.say(stage, &format!("begins with {model}"));
            let (result, model) = match stage {
                Stage::Gate => {
                    let gate = self.gate(model)?;
                    self.say(stage, &gate.words());
                    if !gate.passed() && !self.ignore_gates {
                        self.say(stage, GATE_HINT);
                        self.report(&done, Some(&gate))?;
                        return Ok(Exit::NO);
                    }
                    (gate.object(), model.clone())
                }
                Stage::Collect => {
                    let settings: RolloutSettings = self.stage(stage, model)?;
                    let played =
                        rollout::play(&settings, self.tasks, &self.place(stage), self.printer)?;
                    played.whole()?;
                    (json!({ "run": played.folder }), model.clone())
                }
                _ => match self.learn(stage, model) {
                    // The actor stays as it is. A critic learns from failures too.
                    Err(Stop(failure)) if failure.code == NOTHING_PAID => {
                        self.say(stage, &format!("left out: {}", failure.message));
                        (json!({ "left_out": failure.message }), model.clone())
                    }
                    learnt => {
                        let learnt = learnt?;
                        if learnt.outcome.interrupted {
                            return Err(Stop::interrupted());
                        }
                        let next = self.next(model, &learnt);
                        (Value::Object(learnt.object()?), next)
                    }
                },
            };
            let one = Done {
                stage,
                model,
                result,
            };
            log.append(&one)?;
            log.sync()?;
            done.push(one);
        }
        self.report(&done, None)?;
        Ok(Exit::DONE)
    }

    fn stage<S: Settings + Args>(&self, stage: Stage, model: &str) -> Result<S, Stop> {
        self.settings.of_stage(stage, self.tables, model)
    }

    fn place(&self, stage: Stage) -> PathBuf {
        self.folder.path().join(stage.name())
    }

    fn learn(&self, stage: Stage, model: &str) -> Result<LearntRun, Stop> {
        let out = Some(self.place(stage));
        let from = |data: Vec<PathBuf>| Places {
            data,
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

    fn gate(&self, model: &str) -> Result<Gate, Stop> {
        let settings: RolloutSettings = self.stage(Stage::Gate, model)?;
        let tasks = self.settings.validation.as_deref().unwrap_or(self.tasks);
        let played = rollout::play(&settings, tasks, &self.place(Stage::Gate), self.printer)?;
        played.whole()?;
        Gate::of(&played.folder, self.settings)
    }

    /// What the stage after one begins with. A critic is not what speaks.
    fn next(&self, model: &str, learnt: &LearntRun) -> String {
        let outcome = &learnt.outcome;
        let best = self.settings.go_on_from == GoOnFrom::Best && outcome.best.is_some();
        match &outcome.published {
            Some(_) if best => after(model, &learnt.folder.join("best")),
            Some(published) => after(model, published),
            None => model.to_owned(),
        }
    }

    fn say(&self, stage: Stage, words: &str) {
        self.printer.note(&format!("{}: {words}", stage.name()));
    }

    fn report(&self, done: &[Done], stopped: Option<&Gate>) -> Result<(), Stop> {
        let model = done.last().map_or(&self.settings.model, |one| &one.model);
        if self.printer.json() {
            return self.printer.object(&json!({
                "format": FORMAT, "verb": "train pipeline", "run": self.folder.path(), "stages": done,
                "stopped_by": stopped.map(Gate::object), "model": model,
            }));
        }
        let mut lines: Vec<String> = done.iter().map(Done::line).collect();
        if let Some(gate) = stopped {
            lines.push(format!("{:<12} {}", Stage::Gate.name(), gate.words()));
        }
        lines.push(format!("model: {model}"));
        Ok(self.printer.lines(&lines)?)
    }
}

impl Done {
    fn line(&self) -> String {
        let numbers = [
            "loss",
            "validation_loss",
            "explained_variance",
            "reward",
            "validation_pass_rate",
            "validation_reward",
        ];
        let number = |name: &&str| {
            let number = self.result["metrics"][name].as_f64()?;
            Some(format!("{} {number:.4}", name.replace('_', " ")))
        };
        let name = self.stage.name();
        if let Some(why) = self.result["left_out"].as_str() {
            return format!("{name:<12} left out  {why}");
        }
        let said: Vec<String> = numbers.iter().filter_map(number).collect();
        format!("{name:<12} done  {}", said.join(", "))
    }
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
                let message = "`learns`, `rank` and `targets` of [value] and [agentic] must be the same: the critic goes on";
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
