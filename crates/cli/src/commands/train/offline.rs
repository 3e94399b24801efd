//! What `train sft`, `rft` and `value` have in common: they learn from trajectories there are.

use std::sync::OnceLock;

use clap::Args;
use warpsmith_train::data::TrainingData;
use warpsmith_train::estimate::OfflineStage;
use warpsmith_train::recipes::{OfflineRun, TrainedRun};

use super::dry_run::{self, DryRunArgs};
use super::learning::{DataSettings, Host, LearningSettings, Places, task_of};
use super::show::report;
use crate::config::{ConfigArgs, Settings};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Settings of a verb that learns from trajectories.
pub(super) trait OfflineSettings: Settings {
    fn learning(&self) -> &LearningSettings;

    fn data(&self) -> &DataSettings;

    /// With all settings by name.
    fn job<'a>(&self, places: &'a Places) -> Result<OfflineRun<'a>, Stop>;

    /// What an estimate needs to know, of trajectories with so many replies each.
    fn stage(&self, replies: f64) -> OfflineStage;
}

/// Flags of such a verb.
#[derive(Debug, Args)]
pub(super) struct OfflineArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    dry_run: DryRunArgs,
}

impl OfflineArgs {
    pub(super) fn run(
        &self,
        settings: &impl OfflineSettings,
        printer: &Printer,
    ) -> Result<Exit, Stop> {
        let settings = self.config.resolve(settings)?.settings;
        if let Some(exit) = self.config.print(&settings, printer)? {
            return Ok(exit);
        }
        if self.dry_run.dry_run {
            let mut known = self.dry_run.given(&settings.learning().model)?;
            let (places, benchmark) = (&self.places, self.places.benchmark()?);
            let held = |text: &str| task_of(&benchmark, text);
            let data = TrainingData::read(&places.data, &places.columns, &held)?;
            known.trajectories = data.trajectories.len() as u64;
            let estimate = known.offline(&settings.stage(1.0));
            return dry_run::report(&known, &[estimate], printer);
        }
        report(&learn(&settings, &self.places, printer)?, printer)
    }
}

/// As one stage of several, or by itself.
pub(super) fn learn(
    settings: &impl OfflineSettings,
    places: &Places,
    printer: &Printer,
) -> Result<TrainedRun, Stop> {
    settings.learning().check()?;
    let host = Host {
        learning: settings.learning(),
        offline: settings.data().offline,
        out: places.out.as_deref(),
        printer,
        opened: OnceLock::new(),
        trackers: places.tracking.trackers()?,
        benchmark: places.benchmark()?,
    };
    Ok(settings.job(places)?.run(&host)?)
}
