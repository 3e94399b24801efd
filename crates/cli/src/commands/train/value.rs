//! `warpsmith train value`: a critic learns what to expect.

use clap::Args;
use serde::{Deserialize, Serialize};
use warpsmith_train::data::RewardRule;
use warpsmith_train::estimate::OfflineStage;
use warpsmith_train::recipes::{Objective, OfflineRun, ValueTargets};

use super::learning::{AggregationChoice, DataSettings, LearningSettings, Places};
use super::offline::{OfflineArgs, OfflineSettings};
use super::sft::RewardChoice;
use crate::args::{Count, CountsChoice, Positive, Share};
use crate::config::{Settings, object};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Value pretraining: a critic learns to predict the rewards of trajectories
///
/// It begins as the model with a head of one number. The critic is in the run's checkpoints.
#[derive(Debug, Args)]
pub(crate) struct ValueArgs {
    #[command(flatten)]
    offline: OfflineArgs,
    #[command(flatten)]
    settings: ValueSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct ValueSettings {
    /// Maximum epochs over the data
    #[arg(long, value_name = "N", default_value = "10")]
    epochs: Count,
    /// Trajectories in one optimizer step
    #[arg(long, value_name = "N", default_value = "16")]
    batch: Count,
    /// Peak learning rate
    #[arg(long, value_name = "X", default_value = "0.0001")]
    learning_rate: Positive,
    /// Stop once the explained variance on held-out data reaches this
    #[arg(long, value_name = "X", default_value = "0.3")]
    enough: Share,
    /// Discount factor of later values
    #[arg(long, value_name = "X", default_value = "1.0")]
    gamma: Share,
    /// Lambda of the value targets after the first epoch; 1 is the Monte-Carlo return
    #[arg(long, value_name = "X", default_value = "1.0")]
    lam: Share,
    /// Which reward to use
    #[arg(long, value_enum, default_value_t)]
    reward: RewardChoice,
    /// Which attempt of a trajectory is its result
    #[arg(long, value_enum, default_value_t = CountsChoice::Final)]
    counts: CountsChoice,
    /// Average the loss over trajectories, or over tokens
    #[arg(long, value_enum, default_value_t = AggregationChoice::Trajectory)]
    aggregation: AggregationChoice,
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
    args.offline.run(&args.settings, printer)
}

impl OfflineSettings for ValueSettings {
    fn learning(&self) -> &LearningSettings {
        &self.learning
    }

    fn data(&self) -> &DataSettings {
        &self.data
    }

    fn job<'a>(&self, places: &'a Places) -> Result<OfflineRun<'a>, Stop> {
        Ok(OfflineRun {
            verb: "value",
            data: &places.data,
            columns: places.columns.clone(),
            demonstrations: Vec::new(),
            out: places.out.as_deref(),
            config: object(self)?,
            learning: self.learning.options(
                self.learning_rate,
                self.aggregation.into(),
                self.data.device,
            ),
            epochs: u32::from(self.epochs).into(),
            batch: u32::from(self.batch) as usize,
            held_out: self.data.held_out.into(),
            objective: Objective::Value(ValueTargets {
                reward_rule: RewardRule {
                    kind: self.reward.into(),
                    counts: self.counts.into(),
                },
                gamma: self.gamma.into(),
                lam: self.lam.into(),
                enough: self.enough.into(),
            }),
        })
    }

    fn stage(&self, replies: f64) -> OfflineStage {
        OfflineStage {
            stage: "value",
            tuning: self.learning.tuning(),
            tokens_per_microbatch: self.learning.tokens_per_microbatch(),
            epochs: self.epochs.into(),
            batch: self.batch.into(),
            held_out: self.data.held_out.into(),
            replies,
            max_tokens: None,
            scores: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_defaults() {
        crate::config::assert_text_says_the_defaults::<ValueSettings>();
    }
}
