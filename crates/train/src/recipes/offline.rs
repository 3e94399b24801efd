//! Runs that learn from trajectories there are: supervised and rejection fine-tuning, and value pretraining.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use warpsmith_agent::tool_schemas;
use warpsmith_schema::Trajectory;
use warpsmith_store::RunFolder;

use super::learning::{BaseModel, LearningOptions, ModelToTrain, RunHost, TrainedRun, run_folder};
use super::networks::NetworkFactory;
use super::progress::RecipeOutcome;
use super::selection::Selection;
use super::sft::{SftSettings, sft};
use super::value::{ValueSettings, pretrain_value};
use crate::TrainError;
use crate::algorithms::Rejections;
use crate::data::{
    Columns, Example, Examples, RewardRule, TokenEpisode, TooLong, TrainedReplies, TrainingData,
    split,
};

/// A run over recorded trajectories.
#[derive(Debug, Clone)]
pub struct OfflineRun<'a> {
    pub verb: &'static str,
    /// Runs' folders, files with one trajectory a line, or Parquet files.
    pub data: &'a [PathBuf],
    /// What is what in Parquet files.
    pub columns: Columns,
    /// The same of demonstrations, for those that mix some in.
    pub demonstrations: Vec<PathBuf>,
    /// The run's folder; else a new one.
    pub out: Option<&'a Path>,
    /// All settings of the verb, by name.
    pub config: Map<String, Value>,
    pub learning: LearningOptions,
    pub epochs: u64,
    /// Trajectories that make one update.
    pub batch: usize,
    /// Share of the tasks held out for validation.
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
    /// What later rewards are worth, and how far ahead targets look after the first epoch.
    pub gamma: f64,
    pub lam: f64,
    /// Done after the epoch in which the critic explains this share of the variance held out.
    pub enough: f64,
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
    pub fn run(&self, host: &dyn RunHost) -> Result<TrainedRun, TrainError> {
        let read = |places: &[PathBuf]| {
            TrainingData::read(places, &self.columns, &|text| host.benchmark_task(text))
        };
        let data = read(self.data)?;
        let demonstrations = match self.demonstrations.as_slice() {
            [] => None,
            places => Some(read(places)?),
        };
        let benchmark = [Some(&data), demonstrations.as_ref()].into_iter().flatten();
        for one in benchmark.filter(|one| !one.benchmark.is_empty()) {
            let (rows, first) = (one.benchmark.len(), &one.benchmark[0]);
            host.note(&format!(
                "{rows} rows hold tasks of the benchmark and are left out, the first `{first}`"
            ));
        }
        let (begun, outcome, about) = match &self.objective {
            Objective::Imitate(imitation) => {
                self.imitate(imitation, &data, demonstrations.as_ref(), host)?
            }
            Objective::Value(targets) => self.value(targets, &data, host)?,
        };
        Ok(TrainedRun {
            verb: self.verb,
            policy: self
                .learning
                .policy(&begun.base, outcome.published.as_deref()),
            outcome,
            folder: begun.folder.path().to_path_buf(),
            about: Map::from_iter([("data".to_owned(), about)]),
        })
    }

    fn begin(
        &self,
        data: &TrainingData,
        demonstrations: Option<&TrainingData>,
        host: &dyn RunHost,
    ) -> Result<Begun, TrainError> {
        let base = host.find_model().map_err(TrainError::Around)?;
        let about =
            |data: &TrainingData| json!({ "count": data.trajectories.len(), "hash": data.hash });
        let mut known = Map::from_iter([
            ("data".to_owned(), about(data)),
            ("weights".to_owned(), json!(base.identity)),
        ]);
        if let Some(demonstrations) = demonstrations {
            known.insert("demonstrated".to_owned(), about(demonstrations));
        }
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
        demonstrations: Option<&TrainingData>,
        host: &dyn RunHost,
    ) -> Result<(Begun, RecipeOutcome, Value), TrainError> {
        let &Imitation {
            selection,
            max_tokens,
            too_long,
            evaluate_every,
            ..
        } = imitation;
        let trajectories = &data.trajectories;
        let (kept, rejections) = if let Some(selection) = &selection {
            selection.select(trajectories)?
        } else {
            let rejections = Rejections {
                kept: trajectories.len(),
                ..Rejections::default()
            };
            (trajectories.iter().collect(), rejections)
        };
        let begun = self.begin(data, demonstrations, host)?;
        let tools = tool_schemas();
        let examples = |replies, trajectories: &[&Trajectory]| {
            let examples = Examples {
                codec: &begun.model_to_train.codec,
                tools: &tools,
                replies,
                max_tokens,
                too_long,
            };
            examples.of_all(trajectories)
        };
        let replies = selection.map_or(TrainedReplies::All, |selection| {
            TrainedReplies::Solution(selection.reward_rule.counts)
        });
        let mut learnable: Vec<Example> = examples(replies, &kept)?;
        if learnable.is_empty() {
            return Err(TrainError::NothingFits {
                trajectories: kept.len(),
                max_tokens,
            });
        }
        let (all, unfit) = (trajectories.len(), kept.len() - learnable.len());
        let mut demonstrated = 0;
        if let (Some(selection), Some(demonstrations)) = (&selection, demonstrations) {
            let (beside, seed) = (learnable.len(), self.learning.seed);
            let drawn = selection.demonstrations(&demonstrations.trajectories, beside, seed);
            let drawn = examples(TrainedReplies::All, &drawn)?;
            demonstrated = drawn.len();
            learnable.extend(drawn);
        }
        let about = json!({
            "trajectories": all,
            "kept": rejections.kept,
            "demonstrations": demonstrated,
            "left_out": {
                "benchmark": data.benchmark.len(),
                "outcome": rejections.outcome,
                "loops": rejections.loops,
                "tool_schema": rejections.tool_schema,
                "duplicates": rejections.duplicates,
                "surplus": rejections.surplus,
                "nothing_fits": unfit,
            },
        });
        host.note(&format!(
            "{all} trajectories and {demonstrated} demonstrations; left out: {} by outcome, {} loops, {} by their tool calls, \
             {} duplicates, {} beyond the most of a task, {unfit} with nothing that fits",
            rejections.outcome,
            rejections.loops,
            rejections.tool_schema,
            rejections.duplicates,
            rejections.surplus,
        ));
        let learning = &self.learning;
        let (training, held_out) = split(learnable, self.held_out, learning.seed, |one| {
            &one.episode.task
        });
        let settings = SftSettings {
            epochs: self.epochs,
            batch: self.batch,
            optimizer: learning.optimizer,
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
            &training,
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
        let begun = self.begin(data, None, host)?;
        let (codec, name) = (&begun.model_to_train.codec, begun.base.name());
        let episodes: Vec<TokenEpisode> = data
            .trajectories
            .iter()
            .filter_map(|trajectory| {
                TokenEpisode::of(trajectory, &targets.reward_rule, codec, &name).transpose()
            })
            .collect::<Result<_, TrainError>>()?;
        let (all, used) = (data.trajectories.len(), episodes.len());
        let about = json!({ "trajectories": all, "kept": used, "left_out": { "benchmark": data.benchmark.len() } });
        host.note(&format!("{all} trajectories, {used} of them with a reward"));
        let learning = &self.learning;
        let (training, held_out) = split(episodes, self.held_out, learning.seed, |one| &one.task);
        let mean =
            training.iter().map(|one| one.reward).sum::<f64>() / training.len().max(1) as f64;
        let settings = ValueSettings {
            epochs: self.epochs,
            batch: self.batch,
            optimizer: learning.optimizer,
            aggregation: learning.aggregation,
            tokens_per_microbatch: learning.tokens_per_microbatch,
            seed: learning.seed,
            gamma: targets.gamma,
            lam: targets.lam,
            enough: targets.enough,
        };
        let networks = NetworkFactory::open(&begun.model_to_train, learning, host)?;
        let mut critic = networks.critic(mean as f32)?;
        let keeping = learning.keeping(&begun.folder, &begun.base);
        let mut watch = host.watch(&VALUE_TOLD);
        let outcome = pretrain_value(
            &mut *critic,
            training,
            held_out,
            &settings,
            &keeping,
            &mut *watch,
        )?;
        drop(watch);
        Ok((begun, outcome, about))
    }
}
