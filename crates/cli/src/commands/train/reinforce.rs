//! `warpsmith train ppo` and `warpsmith train grpo`: the policy tries, is paid, and learns what paid.

mod settings;

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};
use warpsmith_machine::SharedDevice;
use warpsmith_model::policy::LocalPolicy;
use warpsmith_schema::{EpisodeMode, RunHeader, Task};
use warpsmith_tasks::load_all;
use warpsmith_train::checkpoint::{Checkpoints, without_moments};
use warpsmith_train::network::Critic;
use warpsmith_train::recipes::{Advantages, PolicyRun, Rollouts, Voice};

use self::settings::TryingSettings;
use super::dry_run::{DryRunArgs, Given};
use super::learning;
use super::networks::Networks;
use super::show::{Learnt, Show};
use crate::config::ConfigArgs;
use crate::engine::{Engine, JudgingOptions};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;
use crate::runs;

pub(super) use self::settings::{GrpoSettings, PpoSettings};

/// Proximal policy optimisation, with a critic
///
/// At every step the policy writes modules for some tasks, is judged, and learns.
#[derive(Debug, Args)]
pub(crate) struct PpoArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    places: Tried,
    #[command(flatten)]
    dry_run: DryRunArgs,
    /// A run of `train value` whose critic is to go on; else one is begun
    #[arg(long, value_name = "RUN")]
    critic: Option<PathBuf>,
    #[command(flatten)]
    settings: PpoSettings,
}

/// Group-relative policy optimisation, without a critic
///
/// At every step the policy writes several modules for each of some tasks, is judged, and learns from how they differ.
#[derive(Debug, Args)]
pub(crate) struct GrpoArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    places: Tried,
    #[command(flatten)]
    dry_run: DryRunArgs,
    #[command(flatten)]
    settings: GrpoSettings,
}

/// What is tried, and where the run goes.
#[derive(Debug, Args)]
pub(super) struct Tried {
    /// A JSONL or Parquet of `name`, `code` and, where known, `level` and `problem_id`, or a folder of modules
    #[arg(long, value_name = "FILE")]
    pub(super) tasks: PathBuf,
    /// Tasks that are never learnt from: how the policy does on them is looked at now and then
    #[arg(long, value_name = "FILE")]
    pub(super) validation: Option<PathBuf>,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
}

impl Tried {
    fn given<'a>(
        &self,
        args: &'a DryRunArgs,
        settings: &TryingSettings,
    ) -> Result<Given<'a>, Stop> {
        let mut given = args.given(&settings.learning.model)?;
        let tasks = load_all(&self.tasks)?;
        given.tasks = tasks.len() as u64;
        given.held_out = self.held_out(&tasks)?.map_or(0, |held| held.len() as u64);
        Ok(given)
    }

    /// Finds out whether there is anything to try.
    pub(super) fn check(&self) -> Result<(), Stop> {
        self.held_out(&load_all(&self.tasks)?).map(drop)
    }

    /// What is looked at must not be learnt from.
    fn held_out(&self, tasks: &[Task]) -> Result<Option<Vec<Task>>, Stop> {
        let Some(path) = &self.validation else {
            return Ok(None);
        };
        let held_out = load_all(path)?;
        let learnt = |one: &&Task| tasks.iter().any(|task| task.source == one.source);
        match held_out.iter().find(learnt) {
            None => Ok(Some(held_out)),
            Some(task) => Err(Stop::config(
                "config",
                format!(
                    "`{}` is among the tasks and among those of `--validation`",
                    task.id
                ),
                Some("leave it out of one of them".to_owned()),
            )),
        }
    }
}

pub(crate) fn run_ppo(args: &PpoArgs, printer: &Printer) -> Result<Exit, Stop> {
    let settings = args.config.resolve(&args.settings)?.settings;
    settings.check()?;
    if let Some(exit) = args.config.print(&settings, printer)? {
        return Ok(exit);
    }
    if args.dry_run.dry_run {
        let given = args.places.given(&args.dry_run, &settings.trying)?;
        let estimate = settings.estimate("ppo", &given);
        return given.report(&[estimate], printer);
    }
    ppo(&settings, &args.places, args.critic.as_deref(), printer)?.report(printer)
}

/// As one stage of several, or by itself.
pub(super) fn ppo(
    settings: &PpoSettings,
    places: &Tried,
    critic: Option<&Path>,
    printer: &Printer,
) -> Result<Learnt, Stop> {
    settings.check()?;
    let job = Job {
        verb: "ppo",
        places,
        settings: &settings.trying,
        advantages: settings.advantages(),
        critic,
    };
    job.run(serde_json::to_value(settings)?, printer)
}

pub(crate) fn run_grpo(args: &GrpoArgs, printer: &Printer) -> Result<Exit, Stop> {
    let settings = args.config.resolve(&args.settings)?.settings;
    settings.check()?;
    if let Some(exit) = args.config.print(&settings, printer)? {
        return Ok(exit);
    }
    if args.dry_run.dry_run {
        let given = args.places.given(&args.dry_run, &settings.trying)?;
        let estimate = settings.estimate("grpo", &given);
        return given.report(&[estimate], printer);
    }
    let job = Job {
        verb: "grpo",
        places: &args.places,
        settings: &settings.trying,
        advantages: settings.advantages(),
        critic: None,
    };
    job.run(serde_json::to_value(&settings)?, printer)?
        .report(printer)
}

struct Job<'a> {
    verb: &'static str,
    places: &'a Tried,
    settings: &'a TryingSettings,
    advantages: Advantages,
    /// Where a critic goes on from, for those who have one.
    critic: Option<&'a Path>,
}

impl Job<'_> {
    fn run(&self, mut config: Value, printer: &Printer) -> Result<Learnt, Stop> {
        let settings = self.settings;
        let learning = &settings.learning;
        let tasks = load_all(&self.places.tasks)?;
        let held_out = self.places.held_out(&tasks)?;
        if let Some(held_out) = &held_out {
            config["validation"] = runs::known(held_out);
        }
        let found = learning.find(settings.machine.python.offline, printer)?;
        let model = found.name();
        let known = json!({ "tasks": runs::known(&tasks), "weights": found.identity()? });
        let out = self.places.out.as_deref();
        let folder = learning::folder(out, self.verb, &config, known, &model, printer)?;
        let engine = Engine::prepare(&settings.machine, printer)?;
        let judging_options = settings.judging_options();
        let reviewer = settings.reviewer(&engine, printer)?;
        let practice = settings.practice(tasks, held_out, reviewer, &engine);
        let head = self.head(&engine, &judging_options, practice.way.mode(), &config);
        let model_to_train = learning.load(&found)?;
        let networks = Networks::open(&model_to_train, learning, settings.machine.device, printer)?;
        let mut actor = networks.actor()?;
        let reference = settings
            .has_reference()
            .then(|| networks.actor())
            .transpose()?;
        let mut critic = match self.advantages {
            Advantages::Group { .. } => None,
            Advantages::Critic(_) => {
                let mut critic = networks.critic(0.0)?;
                let kept = Checkpoints::new(folder.path().join("checkpoints"), 1).last()?;
                // A run that goes on has its own.
                if let (Some(before), None) = (self.critic, kept) {
                    take_over(&mut *critic, before)?;
                }
                Some(critic)
            }
        };
        let lease = engine.lease();
        let judges = runs::judges(&engine, &judging_options, settings.judges, &folder)?;
        let mut unheard =
            |_: Option<&warpsmith_schema::Event>, _: &warpsmith_schema::RunMetrics| {};
        let mut collector = Rollouts::new(
            folder.path().join("rollouts"),
            Voice {
                name: format!("local:{}", learning.model),
                path: found.path.clone(),
                hash: found.hash.clone(),
                weights: model_to_train.weights.clone(),
                on: networks.runs_on(),
                start: Box::new(move |model| {
                    LocalPolicy::start(model, Some(SharedDevice::open(&lease)?))
                }),
            },
            practice,
            judges,
            head,
            runs::stop_request,
            &mut unheard,
        );
        let told = [
            "reward",
            "pass_rate",
            "entropy",
            "mismatch_mean",
            "explained_variance",
            "validation_pass_rate",
            "validation_reward",
        ];
        let mut show = Show::new(printer, &told);
        let keeping = learning.keeping(folder.path(), &model_to_train.origin);
        let outcome = PolicyRun {
            actor: &mut *actor,
            critic: critic.as_mut().map(|critic| &mut **critic as _),
            reference: reference.as_deref(),
            collector: &mut collector,
            settings: settings.recipe(self.advantages),
        }
        .run(&keeping, &mut show)?;
        Ok(Learnt {
            verb: self.verb,
            outcome,
            folder: folder.path().to_path_buf(),
            about: Map::new(),
        })
    }

    /// What a collection's log says of it.
    fn head(
        &self,
        engine: &Engine,
        judging_options: &JudgingOptions,
        mode: EpisodeMode,
        config: &Value,
    ) -> RunHeader {
        RunHeader {
            verb: format!("train {}", self.verb),
            resumed: false,
            // Of each collection.
            policy: warpsmith_schema::PolicyVersion {
                name: String::new(),
                hash: None,
                step: None,
            },
            target: engine.target,
            device: engine.device_name(),
            mode,
            profile: judging_options.profile,
            compile_mode: judging_options.compile_mode.clone(),
            tasks: Vec::new(),
            samples: self.settings.samples.into(),
            counts: self.settings.counts.into(),
            scale: None,
            settings: serde_json::from_value(config.clone()).unwrap_or_default(),
        }
    }
}

/// Goes on with a critic that was pretrained.
fn take_over(critic: &mut dyn Critic, run: &Path) -> Result<(), Stop> {
    let checkpoints = Checkpoints::new(run.join("checkpoints"), 1);
    let state = checkpoints
        .load()?
        .and_then(|mut checkpoint| checkpoint.networks.remove("critic"))
        .ok_or_else(|| {
            Stop::config(
                "checkpoint",
                format!("`{}` has no critic", run.display()),
                Some("name the folder of a run of `train value`".to_owned()),
            )
        })?;
    critic.restore(&without_moments(state)).map_err(|error| {
        Stop::config(
            "checkpoint",
            format!(
                "the critic of `{}` cannot go on here: {error}",
                run.display()
            ),
            Some(
                "both runs need the same `--model`, `--learns`, `--rank` and `--targets`"
                    .to_owned(),
            ),
        )
    })
}
