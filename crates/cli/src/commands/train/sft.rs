//! `warpsmith train sft` and `warpsmith train rft`: learning to say what was said.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use warpsmith_train::algorithms::{PerTask, Rejection};
use warpsmith_train::data::{RewardKind, RewardRule, TooLong};
use warpsmith_train::estimate::OfflineStage;
use warpsmith_train::recipes::{Imitation, Objective, OfflineRun, Selection};

use super::learning::{AggregationChoice, DataSettings, LearningSettings, Places};
use super::offline::{OfflineArgs, OfflineSettings};
use crate::args::{Count, CountsChoice, Finite, Positive, ShareBelowOne};
use crate::config::{Settings, object};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Supervised fine-tuning on the replies of trajectories
#[derive(Debug, Args)]
pub(crate) struct SftArgs {
    #[command(flatten)]
    offline: OfflineArgs,
    #[command(flatten)]
    settings: SftSettings,
}

/// Rejection fine-tuning: train on the replies of rewarded trajectories
///
/// Dropped and counted: trajectories whose reward is not above a bar, that repeat a reply, or that call tools with wrong
/// arguments; duplicates of a solution; more than a few trajectories of a task. The loss covers the attempt that counts and
/// what led to it.
#[derive(Debug, Args)]
pub(crate) struct RftArgs {
    #[command(flatten)]
    offline: OfflineArgs,
    #[command(flatten)]
    settings: RftSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct SftSettings {
    /// Epochs over the data
    #[arg(long, value_name = "N", default_value = "5")]
    epochs: Count,
    /// Trajectories in one optimizer step
    #[arg(long, value_name = "N", default_value = "16")]
    batch: Count,
    /// Peak learning rate
    #[arg(long, value_name = "X", default_value = "0.0001")]
    learning_rate: Positive,
    /// Maximum tokens of a sequence
    #[arg(long, value_name = "N", default_value = "2048")]
    max_tokens: Count,
    /// What to do with longer sequences
    #[arg(long, value_enum, default_value_t)]
    too_long: TooLongChoice,
    /// Steps between evaluations on the held-out data
    #[arg(long, value_name = "N", default_value = "20")]
    evaluate_every: Count,
    /// Average the loss over tokens, or over trajectories
    #[arg(long, value_enum, default_value_t = AggregationChoice::Token)]
    aggregation: AggregationChoice,
    #[command(flatten)]
    #[serde(flatten)]
    data: DataSettings,
    #[command(flatten)]
    #[serde(flatten)]
    learning: LearningSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct RftSettings {
    /// Which reward to use
    #[arg(long, value_enum, default_value_t)]
    reward: RewardChoice,
    /// Keep trajectories with a reward above this
    #[arg(
        long,
        value_name = "X",
        default_value = "0.0",
        allow_negative_numbers = true
    )]
    above: Finite,
    /// Which attempt of a trajectory is its result
    #[arg(long, value_enum, default_value_t = CountsChoice::Final)]
    counts: CountsChoice,
    /// Drop trajectories that repeat a reply this often in a row
    #[arg(long, value_name = "N", default_value = "3")]
    repeats: Count,
    /// Most trajectories of a task; one if nearly all or hardly any of them passed
    #[arg(long, value_name = "N", default_value = "4")]
    max_per_task: Count,
    /// Demonstrations to mix in: a run's folder, or a JSONL of trajectories; as often as you like
    #[arg(long, value_name = "RUN")]
    demonstrations: Vec<PathBuf>,
    /// Share of demonstrations in the training data
    #[arg(long, value_name = "X", default_value = "0.2")]
    demonstration_share: ShareBelowOne,
    #[command(flatten)]
    #[serde(flatten)]
    sft: SftSettings,
}

impl Settings for SftSettings {
    const VERB: &'static str = "train sft";
    const TEXT: &'static str = include_str!("sft.toml");
}

impl Settings for RftSettings {
    const VERB: &'static str = "train rft";
    const TEXT: &'static str = include_str!("rft.toml");
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TooLongChoice {
    /// They are left out
    #[default]
    Drop,
    /// Their end is
    Cut,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RewardChoice {
    /// −1 wrong, 1 correct, 2 faster than eager, 3 than `torch.compile` too
    #[default]
    Robust,
    /// The speed-up
    Raw,
    /// A weighted sum of compiled, correct and speed-up
    Composite,
    /// As `robust`, with −1 graded by how far a failed attempt got
    Ladder,
}

impl From<RewardChoice> for RewardKind {
    fn from(choice: RewardChoice) -> Self {
        match choice {
            RewardChoice::Robust => Self::Robust,
            RewardChoice::Raw => Self::Raw,
            RewardChoice::Composite => Self::Composite,
            RewardChoice::Ladder => Self::Ladder,
        }
    }
}

pub(crate) fn run(args: &SftArgs, printer: &Printer) -> Result<Exit, Stop> {
    args.offline.run(&args.settings, printer)
}

pub(crate) fn run_rft(args: &RftArgs, printer: &Printer) -> Result<Exit, Stop> {
    args.offline.run(&args.settings, printer)
}

impl SftSettings {
    fn stage_of(&self, stage: &'static str, replies: f64) -> OfflineStage {
        OfflineStage {
            stage,
            tuning: self.learning.tuning(),
            tokens_per_microbatch: self.learning.tokens_per_microbatch(),
            epochs: self.epochs.into(),
            batch: self.batch.into(),
            held_out: self.data.held_out.into(),
            replies,
            max_tokens: Some(self.max_tokens.into()),
            scores: false,
        }
    }

    /// Of those trajectories that `selection` lets through.
    fn run_of<'a>(
        &self,
        verb: &'static str,
        config: Map<String, Value>,
        (selection, demonstrations): (Option<Selection>, Vec<PathBuf>),
        places: &'a Places,
    ) -> OfflineRun<'a> {
        OfflineRun {
            verb,
            data: &places.data,
            columns: places.columns.clone(),
            demonstrations,
            out: places.out.as_deref(),
            config,
            learning: self.learning.options(
                self.learning_rate,
                self.aggregation.into(),
                self.data.device,
            ),
            epochs: u32::from(self.epochs).into(),
            batch: u32::from(self.batch) as usize,
            held_out: self.data.held_out.into(),
            objective: Objective::Imitate(Imitation {
                selection,
                max_tokens: u32::from(self.max_tokens) as usize,
                too_long: match self.too_long {
                    TooLongChoice::Drop => TooLong::Drop,
                    TooLongChoice::Cut => TooLong::Cut,
                },
                evaluate_every: u32::from(self.evaluate_every).into(),
            }),
        }
    }
}

impl OfflineSettings for SftSettings {
    fn learning(&self) -> &LearningSettings {
        &self.learning
    }

    fn data(&self) -> &DataSettings {
        &self.data
    }

    fn job<'a>(&self, places: &'a Places) -> Result<OfflineRun<'a>, Stop> {
        Ok(self.run_of("sft", object(self)?, (None, Vec::new()), places))
    }

    fn stage(&self, replies: f64) -> OfflineStage {
        self.stage_of("sft", replies)
    }
}

impl OfflineSettings for RftSettings {
    fn learning(&self) -> &LearningSettings {
        &self.sft.learning
    }

    fn data(&self) -> &DataSettings {
        &self.sft.data
    }

    fn job<'a>(&self, places: &'a Places) -> Result<OfflineRun<'a>, Stop> {
        let selection = Selection {
            rule: Rejection {
                above: self.above.into(),
                repeats: u32::from(self.repeats) as usize,
            },
            reward_rule: RewardRule {
                kind: self.reward.into(),
                counts: self.counts.into(),
            },
            per_task: PerTask {
                most: u32::from(self.max_per_task) as usize,
            },
            demonstration_share: self.demonstration_share.into(),
        };
        let config = object(self)?;
        let imitated = (Some(selection), self.demonstrations.clone());
        Ok(self.sft.run_of("rft", config, imitated, places))
    }

    /// At most: how many are left out is found out on the way.
    fn stage(&self, replies: f64) -> OfflineStage {
        self.sft.stage_of("rft", replies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_defaults() {
        crate::config::assert_text_says_the_defaults::<SftSettings>();
        crate::config::assert_text_says_the_defaults::<RftSettings>();
        let page = include_str!("../../../../../docs/reference/configuration.md");
        assert!(page.contains(SftSettings::TEXT));
    }
}
