//! `warpsmith train value`: a critic learns what to expect.

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use warpsmith_train::TrainError;
use warpsmith_train::algorithms::Gae;
use warpsmith_train::data::{Paid, TokenEpisode};
use warpsmith_train::estimate::Work;
use warpsmith_train::recipes::{ValueSettings as Recipe, pretrain_value};

use super::dry_run::{Doing, DryRunArgs, Estimate, Given};
use super::learning::{DataSettings, LearningSettings, Places};
use super::networks::Networks;
use super::sft::RewardChoice;
use super::show::{Learnt, Show};
use crate::args::{Count, CountsChoice, Positive, Share};
use crate::config::{ConfigArgs, Settings};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Value pretraining: a critic learns what trajectories, good and bad, came to
///
/// It begins as the model with a head of one number. The critic is in the run's checkpoints.
#[derive(Debug, Args)]
pub(crate) struct ValueArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    dry_run: DryRunArgs,
    #[command(flatten)]
    settings: ValueSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct ValueSettings {
    /// Passes over the data, at most
    #[arg(long, value_name = "N", default_value = "10")]
    epochs: Count,
    /// Trajectories that make one update
    #[arg(long, value_name = "N", default_value = "16")]
    batch: Count,
    /// The learning rate at its peak
    #[arg(long, value_name = "X", default_value = "0.0001")]
    learning_rate: Positive,
    /// Done once this share of the variance held out is explained
    #[arg(long, value_name = "X", default_value = "0.3")]
    enough: Share,
    /// How much of later values counts
    #[arg(long, value_name = "X", default_value = "1.0")]
    gamma: Share,
    /// How far ahead targets look after the first pass; 1 takes only what was paid
    #[arg(long, value_name = "X", default_value = "0.95")]
    lam: Share,
    /// Which reward counts
    #[arg(long, value_enum, default_value_t)]
    reward: RewardChoice,
    /// Which attempt of a trajectory is its result
    #[arg(long, value_enum, default_value_t = CountsChoice::Final)]
    counts: CountsChoice,
    #[command(flatten)]
    #[serde(flatten)]
    data: DataSettings,
    #[command(flatten)]
    #[serde(flatten)]
    learning: LearningSettings,
}

impl Settings for ValueSettings {
    const VERB: &'static str = "train value";
    const TEXT: &'static str = include_str!("value.toml");
}

pub(crate) fn run(args: &ValueArgs, printer: &Printer) -> Result<Exit, Stop> {
    let settings = args.config.resolve(&args.settings)?.settings;
    if let Some(exit) = args.config.print(&settings, printer)? {
        return Ok(exit);
    }
    if args.dry_run.dry_run {
        let mut given = args.dry_run.given(&settings.learning.model)?;
        given.trajectories = args.places.read()?.trajectories.len() as u64;
        let estimate = settings.estimate(1.0, &given);
        return given.report(&[estimate], printer);
    }
    value(&settings, &args.places, printer)?.report(printer)
}

impl ValueSettings {
    pub(super) fn check(&self) -> Result<(), Stop> {
        self.learning.check()
    }

    pub(super) fn learning(&self) -> &LearningSettings {
        &self.learning
    }

    /// Of trajectories with so many replies each, and if it is never enough.
    pub(super) fn estimate(&self, replies: f64, given: &Given<'_>) -> Estimate {
        let learnt = given.trajectories as f64 * (1.0 - f64::from(self.data.held_out));
        let epochs = f64::from(u32::from(self.epochs));
        let steps = (learnt / f64::from(u32::from(self.batch))).ceil() * epochs;
        let length = given.prompt() + replies * given.reply();
        let tokens = epochs * learnt * length;
        given.estimate(&Doing {
            stage: "value",
            steps: steps as u64,
            episodes: 0,
            work: Work {
                learnt_tokens: tokens,
                scored_tokens: tokens,
                ..Work::default()
            },
            learning: Some(&self.learning),
            learners: 1,
            frozen: 0,
            longest: length as u64,
            conversations: 0,
        })
    }
}

/// As one stage of several, or by itself.
pub(super) fn value(
    settings: &ValueSettings,
    places: &Places,
    printer: &Printer,
) -> Result<Learnt, Stop> {
    settings.check()?;
    let learning = &settings.learning;
    let data = places.read()?;
    let found = learning.find(settings.data.offline, printer)?;
    let model = found.name();
    let folder = places.folder("value", settings, &found, &data, printer)?;
    let model_to_train = learning.load(&found)?;
    let paid = Paid {
        kind: settings.reward.into(),
        counts: settings.counts.into(),
    };
    let codec = &model_to_train.codec;
    let episodes: Vec<TokenEpisode> = data
        .trajectories
        .iter()
        .filter_map(|trajectory| TokenEpisode::of(trajectory, &paid, codec, &model).transpose())
        .collect::<Result<_, TrainError>>()?;
    let mut about = Map::new();
    let (all, used) = (data.trajectories.len(), episodes.len());
    about.insert(
        "data".to_owned(),
        json!({ "trajectories": all, "kept": used }),
    );
    printer.note(&format!("{all} trajectories, {used} of them with a reward"));
    let (learnt, held_out) = settings
        .data
        .split(episodes, learning.seed, |one| &one.task);
    let mean = learnt.iter().map(|one| one.reward).sum::<f64>() / learnt.len().max(1) as f64;
    let recipe = Recipe {
        epochs: u32::from(settings.epochs).into(),
        batch: u32::from(settings.batch) as usize,
        rates: learning.rates(settings.learning_rate),
        aggregation: learning.aggregation(),
        tokens_per_microbatch: learning.tokens_per_microbatch(),
        seed: learning.seed,
        gae: Gae {
            gamma: settings.gamma.into(),
            lam: settings.lam.into(),
            critic_lambda: settings.lam.into(),
        },
        enough: settings.enough.into(),
    };
    let networks = Networks::open(&model_to_train, learning, settings.data.device, printer)?;
    let mut critic = networks.critic(mean as f32)?;
    let keeping = learning.keeping(folder.path(), &model_to_train.origin);
    let told = ["value_loss", "explained_variance", "tokens_per_second"];
    let mut show = Show::new(printer, &told);
    let outcome = pretrain_value(&mut *critic, learnt, held_out, &recipe, &keeping, &mut show)?;
    Ok(Learnt {
        verb: "value",
        outcome,
        folder: folder.path().to_path_buf(),
        about,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_defaults() {
        crate::config::assert_text_says_the_defaults::<ValueSettings>();
    }
}
