//! `warpsmith train sft` and `warpsmith train rft`: learning to say what was said.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use warpsmith_agent::tool_schemas;
use warpsmith_schema::Trajectory;
use warpsmith_train::algorithms::{Rejection, Rejections};
use warpsmith_train::data::{Example, Examples, Paid, RewardKind, TooLong};
use warpsmith_train::estimate::Work;
use warpsmith_train::recipes::{self, SftSettings as Recipe};

use super::dry_run::{Doing, DryRunArgs, Estimate, Given};
use super::learning::{
    Data, DataSettings, LearningSettings, ModelToTrain, Places, nothing_to_learn,
};
use super::networks::Networks;
use super::show::{Learnt, Show};
use crate::args::{Count, CountsChoice, Finite, Positive};
use crate::config::{ConfigArgs, Settings};
use crate::exit::Exit;
use crate::failure::Stop;
use crate::printer::Printer;

/// Supervised fine-tuning: learn every reply of every trajectory
#[derive(Debug, Args)]
pub(crate) struct SftArgs {
    // Before all other flags: it looks at which of them were given.
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    dry_run: DryRunArgs,
    #[command(flatten)]
    settings: SftSettings,
}

/// Rejection fine-tuning: learn the replies of trajectories that were paid for
///
/// Left out, and counted: those whose reward is not above a bar, that said the same again and again, or that called tools
/// with arguments these do not take.
#[derive(Debug, Args)]
pub(crate) struct RftArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    dry_run: DryRunArgs,
    #[command(flatten)]
    settings: RftSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct SftSettings {
    /// Passes over the data
    #[arg(long, value_name = "N", default_value = "5")]
    epochs: Count,
    /// Trajectories that make one update
    #[arg(long, value_name = "N", default_value = "16")]
    batch: Count,
    /// The learning rate at its peak
    #[arg(long, value_name = "X", default_value = "0.0001")]
    learning_rate: Positive,
    /// Most tokens of a sequence
    #[arg(long, value_name = "N", default_value = "2048")]
    max_tokens: Count,
    /// What becomes of longer ones
    #[arg(long, value_enum, default_value_t)]
    too_long: TooLongChoice,
    /// Steps between looks at what is held out
    #[arg(long, value_name = "N", default_value = "20")]
    evaluate_every: Count,
    #[command(flatten)]
    #[serde(flatten)]
    data: DataSettings,
    #[command(flatten)]
    #[serde(flatten)]
    learning: LearningSettings,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct RftSettings {
    /// Which reward counts
    #[arg(long, value_enum, default_value_t)]
    reward: RewardChoice,
    /// Rewards must be above this
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
    /// Replies that say the same this often in a row are a loop
    #[arg(long, value_name = "N", default_value = "3")]
    repeats: Count,
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
    let settings = args.config.resolve(&args.settings)?.settings;
    if let Some(exit) = args.config.print(&settings, printer)? {
        return Ok(exit);
    }
    if args.dry_run.dry_run {
        let mut given = args.dry_run.given(&settings.learning.model)?;
        given.trajectories = args.places.read()?.trajectories.len() as u64;
        let estimate = settings.estimate("sft", 1.0, &given);
        return given.report(&[estimate], printer);
    }
    sft(&settings, &args.places, printer)?.report(printer)
}

impl SftSettings {
    pub(super) fn check(&self) -> Result<(), Stop> {
        self.learning.check()
    }

    /// Of trajectories with so many replies each.
    pub(super) fn estimate(
        &self,
        stage: &'static str,
        replies: f64,
        given: &Given<'_>,
    ) -> Estimate {
        let learnt = given.trajectories as f64 * (1.0 - f64::from(self.data.held_out));
        let epochs = u32::from(self.epochs);
        let steps = (learnt / f64::from(u32::from(self.batch))).ceil() * f64::from(epochs);
        let longest = f64::from(u32::from(self.max_tokens));
        let length = (given.prompt() + replies * given.reply()).min(longest);
        given.estimate(&Doing {
            stage,
            steps: steps as u64,
            episodes: 0,
            work: Work {
                learnt_tokens: f64::from(epochs) * learnt * length,
                ..Work::default()
            },
            learning: Some(&self.learning),
            learners: 1,
            frozen: 0,
            longest: longest as u64,
            conversations: 0,
        })
    }
}

/// As one stage of several, or by itself.
pub(super) fn sft(
    settings: &SftSettings,
    places: &Places,
    printer: &Printer,
) -> Result<Learnt, Stop> {
    settings.check()?;
    let data = places.read()?;
    let job = Job {
        verb: "sft",
        places,
        config: serde_json::to_value(settings)?,
        settings,
    };
    job.run(&data, &|_| None, printer)
}

pub(crate) fn run_rft(args: &RftArgs, printer: &Printer) -> Result<Exit, Stop> {
    let settings = args.config.resolve(&args.settings)?.settings;
    if let Some(exit) = args.config.print(&settings, printer)? {
        return Ok(exit);
    }
    if args.dry_run.dry_run {
        let mut given = args.dry_run.given(&settings.sft.learning.model)?;
        given.trajectories = args.places.read()?.trajectories.len() as u64;
        // At most: how many are left out is found out on the way.
        let estimate = settings.estimate(1.0, &given);
        return given.report(&[estimate], printer);
    }
    rft(&settings, &args.places, printer)?.report(printer)
}

impl RftSettings {
    pub(super) fn check(&self) -> Result<(), Stop> {
        self.sft.check()
    }

    pub(super) fn estimate(&self, replies: f64, given: &Given<'_>) -> Estimate {
        self.sft.estimate("rft", replies, given)
    }
}

/// As one stage of several, or by itself.
pub(super) fn rft(
    settings: &RftSettings,
    places: &Places,
    printer: &Printer,
) -> Result<Learnt, Stop> {
    settings.check()?;
    let data = places.read()?;
    let rule = Rejection {
        above: settings.above.into(),
        repeats: u32::from(settings.repeats) as usize,
    };
    let paid = Paid {
        kind: settings.reward.into(),
        counts: settings.counts.into(),
    };
    let tools = tool_schemas();
    let job = Job {
        verb: "rft",
        places,
        config: serde_json::to_value(settings)?,
        settings: &settings.sft,
    };
    let flaw = |trajectory: &Trajectory| rule.flaw(trajectory, paid.reward(trajectory), &tools);
    job.run(&data, &flaw, printer)
}

/// All trajectories were left out.
pub(super) const NOTHING_PAID: &str = "nothing_paid";

type Flaw<'a> = dyn Fn(&Trajectory) -> Option<warpsmith_train::algorithms::Flaw> + 'a;

struct Job<'a> {
    verb: &'static str,
    places: &'a Places,
    config: Value,
    settings: &'a SftSettings,
}

impl Job<'_> {
    fn run(&self, data: &Data, flaw: &Flaw<'_>, printer: &Printer) -> Result<Learnt, Stop> {
        let learning = &self.settings.learning;
        let mut rejections = Rejections::default();
        let kept = |trajectory: &&Trajectory| {
            let flaw = flaw(trajectory);
            rejections.count(flaw.as_ref());
            flaw.is_none()
        };
        let kept: Vec<&Trajectory> = data.trajectories.iter().filter(kept).collect();
        if kept.is_empty() {
            let why = format!(
                "of {} trajectories {} are left out by outcome, {} as loops, {} by their tool calls",
                data.trajectories.len(),
                rejections.outcome,
                rejections.loops,
                rejections.tool_schema
            );
            let hint = "a lower `--above`, another `--reward`, or more trajectories";
            return Err(nothing_to_learn(NOTHING_PAID, &why, hint));
        }
        let found = learning.find(self.settings.data.offline, printer)?;
        let folder = self
            .places
            .folder(self.verb, &self.config, &found, data, printer)?;
        let model_to_train = learning.load(&found)?;
        let examples = self.examples(&model_to_train, &kept)?;
        if examples.is_empty() {
            let most = u32::from(self.settings.max_tokens);
            let why = format!(
                "no reply of {} trajectories ends within {most} tokens",
                kept.len()
            );
            let hint = "raise `max_tokens`, or set `too_long` to `cut` to keep what fits of replies that begin in time";
            return Err(nothing_to_learn("training_data", &why, hint));
        }
        let mut about = Map::new();
        about.insert(
            "data".to_owned(),
            json!({
                "trajectories": data.trajectories.len(),
                "kept": rejections.kept,
                "left_out": {
                    "outcome": rejections.outcome,
                    "loops": rejections.loops,
                    "tool_schema": rejections.tool_schema,
                    "nothing_fits": kept.len() - examples.len(),
                },
            }),
        );
        printer.note(&format!(
            "{} trajectories; left out: {} by outcome, {} loops, {} by their tool calls, {} with nothing that fits",
            data.trajectories.len(),
            rejections.outcome,
            rejections.loops,
            rejections.tool_schema,
            kept.len() - examples.len(),
        ));
        let data = &self.settings.data;
        let (learnt, held_out) = data.split(examples, learning.seed, |one| &one.episode.task);
        let recipe = Recipe {
            epochs: u32::from(self.settings.epochs).into(),
            batch: u32::from(self.settings.batch) as usize,
            rates: learning.rates(self.settings.learning_rate),
            aggregation: learning.aggregation(),
            tokens_per_microbatch: learning.tokens_per_microbatch(),
            seed: learning.seed,
            evaluate_every: u32::from(self.settings.evaluate_every).into(),
        };
        let mut actor = Networks::open(&model_to_train, learning, data.device, printer)?.actor()?;
        let keeping = learning.keeping(folder.path(), &model_to_train.origin);
        let told = ["loss", "validation_loss", "tokens_per_second"];
        let mut show = Show::new(printer, &told);
        let outcome = recipes::sft(
            &mut *actor,
            &learnt,
            &held_out,
            &recipe,
            &keeping,
            &mut show,
        )?;
        Ok(Learnt {
            verb: self.verb,
            outcome,
            folder: folder.path().to_path_buf(),
            about,
        })
    }

    fn examples(
        &self,
        model_to_train: &ModelToTrain,
        kept: &[&Trajectory],
    ) -> Result<Vec<Example>, Stop> {
        let tools = tool_schemas();
        let examples = Examples {
            codec: &model_to_train.codec,
            tools: &tools,
            max_tokens: u32::from(self.settings.max_tokens) as usize,
            too_long: match self.settings.too_long {
                TooLongChoice::Drop => TooLong::Drop,
                TooLongChoice::Cut => TooLong::Cut,
            },
        };
        Ok(examples.of_all(kept)?)
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
