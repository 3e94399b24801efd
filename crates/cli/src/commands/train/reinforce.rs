//! `warpsmith train ppo` and `warpsmith train grpo`: sample, judge, update.

mod settings;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::Args;
use serde_json::{Map, Value, json};
use warpsmith_decontaminate::FingerprintIndex;
use warpsmith_schema::{EpisodeMode, RunHeader, Task, TaskSetIdentity};
use warpsmith_tasks::load_all;
use warpsmith_train::algorithms::LossMode;
use warpsmith_train::estimate::KnownBefore;
use warpsmith_train::recipes::{
    Advantages, ReinforceRun, RunHost, TrainedRun, require_disjoint, run_folder,
};

use self::settings::TryingSettings;
use super::dry_run::{self, DryRunArgs};
use super::learning::Host;
use super::show::report;
use super::tracking::TrackArgs;
use crate::config::{ConfigArgs, object};
use crate::engine::{Engine, JudgingOptions};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::fleet::FleetArgs;
use crate::printer::Printer;
use crate::runs;

pub(super) use self::settings::{GrpoSettings, PpoSettings};

/// Proximal policy optimisation, with a critic
///
/// Each step samples replies for some tasks, has them judged, and updates policy and critic.
#[derive(Debug, Args)]
pub(crate) struct PpoArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    places: Tried,
    #[command(flatten)]
    dry_run: DryRunArgs,
    /// A run of `train value` that has pretrained the critic; else a new critic
    #[arg(long, value_name = "RUN")]
    critic: Option<PathBuf>,
    #[command(flatten)]
    settings: PpoSettings,
}

/// Group-relative policy optimisation, without a critic
///
/// Each step samples a group of replies for each of some tasks, has them judged, and updates the policy by their differences.
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
    /// Validation tasks: never trained on, evaluated now and then
    #[arg(long, value_name = "FILE")]
    pub(super) validation: Option<PathBuf>,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) tracking: TrackArgs,
}

impl Tried {
    fn given(&self, args: &DryRunArgs, settings: &TryingSettings) -> Result<KnownBefore, Stop> {
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

    /// Validation tasks must not be trained on.
    fn held_out(&self, tasks: &[Task]) -> Result<Option<Vec<Task>>, Stop> {
        let Some(path) = &self.validation else {
            return Ok(None);
        };
        let held_out = load_all(path)?;
        require_disjoint(tasks, &held_out)?;
        Ok(Some(held_out))
    }
}

pub(crate) fn run_ppo(args: &PpoArgs, printer: &Printer) -> Result<Exit, Stop> {
    let settings = args.config.resolve(&args.settings)?.settings;
    settings.check()?;
    if let Some(exit) = args.config.print(&settings, printer)? {
        return Ok(exit);
    }
    if args.dry_run.dry_run {
        let known = args.places.given(&args.dry_run, &settings.trying)?;
        let estimate = known.reinforce(&settings.stage("ppo"));
        return dry_run::report(&known, &[estimate], printer);
    }
    let run = ppo(&settings, &args.places, args.critic.as_deref(), printer)?;
    report(&run, printer)
}

/// As one stage of several, or by itself.
pub(super) fn ppo(
    settings: &PpoSettings,
    places: &Tried,
    critic: Option<&Path>,
    printer: &Printer,
) -> Result<TrainedRun, Stop> {
    settings.check()?;
    // What it comes to is part of the run's configuration: it cannot go on with another.
    let settings = &settings.with_critic(critic.is_some());
    let job = Job {
        verb: "ppo",
        places,
        settings: &settings.trying,
        advantages: settings.advantages(),
        loss_mode: LossMode::Vanilla,
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
        let known = args.places.given(&args.dry_run, &settings.trying)?;
        let estimate = known.reinforce(&settings.stage("grpo"));
        return dry_run::report(&known, &[estimate], printer);
    }
    let job = Job {
        verb: "grpo",
        places: &args.places,
        settings: &settings.trying,
        advantages: settings.advantages(),
        loss_mode: settings.loss_mode(),
        critic: None,
    };
    report(
        &job.run(serde_json::to_value(&settings)?, printer)?,
        printer,
    )
}

struct Job<'a> {
    verb: &'static str,
    places: &'a Tried,
    settings: &'a TryingSettings,
    advantages: Advantages,
    loss_mode: LossMode,
    /// Where a critic goes on from, for those who have one.
    critic: Option<&'a Path>,
}

impl Job<'_> {
    fn run(&self, mut config: Value, printer: &Printer) -> Result<TrainedRun, Stop> {
        let settings = self.settings;
        let tasks = load_all(&self.places.tasks)?;
        let held_out = self.places.held_out(&tasks)?;
        if let Some(held_out) = &held_out {
            config["validation"] = json!(TaskSetIdentity::of(held_out));
        }
        let out = self.places.out.as_deref();
        let host = Host {
            learning: &settings.learning,
            offline: settings.machine.python.offline,
            out,
            printer,
            opened: OnceLock::new(),
            trackers: self.places.tracking.trackers()?,
            benchmark: FingerprintIndex::default(),
        };
        let base = host.find_model().map_err(Stop)?;
        let known = Map::from_iter([
            ("tasks".to_owned(), json!(TaskSetIdentity::of(&tasks))),
            ("weights".to_owned(), json!(base.identity)),
        ]);
        let folder = run_folder(out, self.verb, object(&config)?, known, &base.name())?;
        host.opened(&folder);
        let judging_options = settings.judging_options();
        let fleet = FleetArgs::from_environment();
        let isolation = judging_options.isolation;
        let engine = Engine::prepare_for(&fleet, &settings.machine, isolation, printer)?;
        let llm_judge = settings.llm_judge(&engine, printer)?;
        let collect = settings.collect(tasks, held_out, llm_judge, &engine);
        let run = ReinforceRun {
            verb: self.verb,
            folder: &folder,
            base: &base,
            learning: &settings.options(),
            settings: settings.recipe(self.advantages, self.loss_mode),
            head: self.head(&engine, &judging_options, collect.kind.mode(), &config),
            collect,
            critic: self.critic,
            lease: engine.lease(),
            judges: &|| {
                runs::judges(&engine, &judging_options, settings.judges, &folder)
                    .map_err(|stop| stop.0)
            },
            stop_request: runs::stop_request,
        };
        Ok(run.run(&host)?)
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
