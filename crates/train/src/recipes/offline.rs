//! Runs that learn from trajectories there are: supervised and rejection fine-tuning, and value pretraining.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use warpsmith_agent::tool_schemas;
use warpsmith_schema::Trajectory;
use warpsmith_store::RunFolder;

use super::learning::{BaseModel, LearningOptions, LearntRun, ModelToTrain, RunHost, run_folder};
use super::networks::NetworkFactory;
use super::progress::RecipeOutcome;
use super::sft::{SftSettings, sft};
use super::value::{ValueSettings, pretrain_value};
use crate::TrainError;
use crate::algorithms::{Gae, Rejection, Rejections};
use crate::data::{Example, Examples, RewardRule, TokenEpisode, TooLong, TrainingData, split};

/// A run over recorded trajectories.
#[derive(Debug, Clone)]
pub struct OfflineRun<'a> {
    pub verb: &'static str,
    /// Runs' folders, or files with one trajectory a line.
    pub data: &'a [PathBuf],
    /// The run's folder; else a new one.
    pub out: Option<&'a Path>,
    /// All settings of the verb, by name.
    pub config: Map<String, Value>,
    pub learning: LearningOptions,
    pub epochs: u64,
    /// Trajectories that make one update.
    pub batch: usize,
    /// Share of the tasks that is not learnt from but looked at.
    pub held_out: f64,
    pub objective: Objective,
}

/// What is learnt.
#[derive(Debug, Clone)]
pub enum Objective {
    /// An actor learns the replies of trajectories.
    Imitate(Imitation),
    /// A critic learns what trajectories came to.
    Value(ValueTargets),
}

#[derive(Debug, Clone, Copy)]
pub struct Imitation {
    /// Which trajectories; without it, all of them.
    pub selection: Option<Selection>,
    /// Most tokens of a sequence, and what becomes of longer ones.
    pub max_tokens: usize,
    pub too_long: TooLong,
    /// Steps between looks at what is held out.
    pub evaluate_every: u64,
}

#[derive(Debug, Clone, Copy)]
pub struct ValueTargets {
    pub reward_rule: RewardRule,
    pub gae: Gae,
    /// Done after the epoch in which the critic explains this share of the variance held out.
    pub enough: f64,
}

/// Which trajectories are worth learning.
#[derive(Debug, Clone, Copy)]
pub struct Selection {
    pub rule: Rejection,
    pub reward_rule: RewardRule,
}

const IMITATION_TOLD: [&str; 3] = ["loss", "validation_loss", "tokens_per_second"];
const VALUE_TOLD: [&str; 3] = ["value_loss", "explained_variance", "tokens_per_second"];

/// What a run has once it has begun.
struct Begun {
    base: BaseModel,
    folder: RunFolder,
    model_to_train: ModelToTrain,
}

impl OfflineRun<'_> {
    /// Goes on where the folder has a run with the same settings, data and model.
    pub fn run(&self, host: &dyn RunHost) -> Result<LearntRun, TrainError> {
        let data = TrainingData::read(self.data)?;
        let (begun, outcome, about) = match &self.objective {
            Objective::Imitate(imitation) => self.imitate(imitation, &data, host)?,
            Objective::Value(targets) => self.value(targets, &data, host)?,
        };
        Ok(LearntRun {
            verb: self.verb,
            outcome,
            folder: begun.folder.path().to_path_buf(),
            about: Map::from_iter([("data".to_owned(), about)]),
        })
    }

    fn begin(&self, data: &TrainingData, host: &dyn RunHost) -> Result<Begun, TrainError> {
        let base = host.find_model().map_err(TrainError::Around)?;
        let known = Map::from_iter([
            (
                "data".to_owned(),
                json!({ "count": data.trajectories.len(), "hash": data.hash }),
            ),
            ("weights".to_owned(), json!(base.identity)),
        ]);
        let config = self.config.clone();
        let folder = run_folder(self.out, self.verb, config, known, &base.name())?;
        host.opened(&folder);
        let model_to_train = self.learning.load(&base)?;
        Ok(Begun {
            base,
            folder,
            model_to_train,
        })
    }

    fn imitate(
        &self,
        imitation: &Imitation,
        data: &TrainingData,
        host: &dyn RunHost,
    ) -> Result<(Begun, RecipeOutcome, Value), TrainError> {
        let &Imitation {
            max_tokens,
            too_long,
            evaluate_every,
            ..
        } = imitation;
        let (kept, rejections) = select(&data.trajectories, imitation.selection.as_ref())?;
        let begun = self.begin(data, host)?;
        let tools = tool_schemas();
        let examples = Examples {
            codec: &begun.model_to_train.codec,
            tools: &tools,
            max_tokens,
            too_long,
        };
        let examples: Vec<Example> = examples.of_all(&kept)?;
        if examples.is_empty() {
            return Err(TrainError::NothingFits {
                trajectories: kept.len(),
                max_tokens,
            });
        }
        let (all, unfit) = (data.trajectories.len(), kept.len() - examples.len());
        let about = json!({
            "trajectories": all,
            "kept": rejections.kept,
            "left_out": {
                "outcome": rejections.outcome,
                "loops": rejections.loops,
                "tool_schema": rejections.tool_schema,
                "nothing_fits": unfit,
            },
        });
        host.note(&format!(
            "{all} trajectories; left out: {} by outcome, {} loops, {} by their tool calls, {unfit} with nothing that fits",
            rejections.outcome, rejections.loops, rejections.tool_schema,
        ));
        let learning = &self.learning;
        let (learnt, held_out) = split(examples, self.held_out, learning.seed, |one| {
            &one.episode.task
        });
        let settings = SftSettings {
            epochs: self.epochs,
            batch: self.batch,
            rates: learning.rates,
            aggregation: learning.aggregation,
            tokens_per_microbatch: learning.tokens_per_microbatch,
            seed: learning.seed,
            evaluate_every,
        };
        let mut actor = NetworkFactory::open(&begun.model_to_train, learning, host)?.actor()?;
        let keeping = learning.keeping(&begun.folder, &begun.base);
        let mut watch = host.watch(&IMITATION_TOLD);
        let outcome = sft(
            &mut *actor,
            &learnt,
            &held_out,
            &settings,
            &keeping,
            &mut *watch,
        )?;
        drop(watch);
        Ok((begun, outcome, about))
    }

    fn value(
        &self,
        targets: &ValueTargets,
        data: &TrainingData,
        host: &dyn RunHost,
    ) -> Result<(Begun, RecipeOutcome, Value), TrainError> {
        let begun = self.begin(data, host)?;
        let (codec, name) = (&begun.model_to_train.codec, begun.base.name());
        let episodes: Vec<TokenEpisode> = data
            .trajectories
            .iter()
            .filter_map(|trajectory| {
                TokenEpisode::of(trajectory, &targets.reward_rule, codec, &name).transpose()
            })
            .collect::<Result<_, TrainError>>()?;
        let (all, used) = (data.trajectories.len(), episodes.len());
        let about = json!({ "trajectories": all, "kept": used });
        host.note(&format!("{all} trajectories, {used} of them with a reward"));
        let learning = &self.learning;
        let (learnt, held_out) = split(episodes, self.held_out, learning.seed, |one| &one.task);
        let mean = learnt.iter().map(|one| one.reward).sum::<f64>() / learnt.len().max(1) as f64;
        let settings = ValueSettings {
            epochs: self.epochs,
            batch: self.batch,
            rates: learning.rates,
            aggregation: learning.aggregation,
            tokens_per_microbatch: learning.tokens_per_microbatch,
            seed: learning.seed,
            gae: targets.gae,
            enough: targets.enough,
        };
        let networks = NetworkFactory::open(&begun.model_to_train, learning, host)?;
        let mut critic = networks.critic(mean as f32)?;
        let keeping = learning.keeping(&begun.folder, &begun.base);
        let mut watch = host.watch(&VALUE_TOLD);
        let outcome = pretrain_value(
            &mut *critic,
            learnt,
            held_out,
            &settings,
            &keeping,
            &mut *watch,
        )?;
        drop(watch);
        Ok((begun, outcome, about))
    }
}

/// Those that are learnt, and how many are left out for which reason.
fn select<'a>(
    trajectories: &'a [Trajectory],
    selection: Option<&Selection>,
) -> Result<(Vec<&'a Trajectory>, Rejections), TrainError> {
    let tools = tool_schemas();
    let mut rejections = Rejections::default();
    let kept = |trajectory: &&Trajectory| {
        let flaw = selection.and_then(|Selection { rule, reward_rule }| {
            rule.flaw(trajectory, reward_rule.reward(trajectory), &tools)
        });
        rejections.count(flaw.as_ref());
        flaw.is_none()
    };
    let kept: Vec<&Trajectory> = trajectories.iter().filter(kept).collect();
    if kept.is_empty() {
        let why = format!(
            "of {} trajectories {} are left out by outcome, {} as loops, {} by their tool calls",
            trajectories.len(),
            rejections.outcome,
            rejections.loops,
            rejections.tool_schema
        );
        return Err(TrainError::NothingRewarded { why });
    }
    Ok((kept, rejections))
}
