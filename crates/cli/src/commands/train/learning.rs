//! What every way of learning can be told, and what that means.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use warpsmith_model::policy::ChatCodec;
use warpsmith_model::{
    Adapter, AdapterSettings, ModelConfig, ModelError, Projection, Scaling, Weights,
};
use warpsmith_schema::{CONFIG_FORMAT, Trajectory};
use warpsmith_store::RunFolder;
use warpsmith_train::AdamW;
use warpsmith_train::algorithms::Aggregation;
use warpsmith_train::data::{held_out, read_trajectories};
use warpsmith_train::estimate;
use warpsmith_train::lr_schedule::LrSchedulerType;
use warpsmith_train::network::FineTuning;
use warpsmith_train::recipes::{Keeping, Rates};

use crate::args::{Count, ModelOn, NotNegative, Positive, ShareBelowOne};
use crate::failure::Stop;
use crate::language_model::{self, Found};
use crate::printer::Printer;
use crate::runs;

/// Where trajectories are, and where the run goes.
#[derive(Debug, Args)]
pub(super) struct Places {
    /// Trajectories: a run's folder, or a JSONL of them; as often as you like
    #[arg(long, value_name = "RUN", required = true)]
    pub(super) data: Vec<PathBuf>,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct LearningSettings {
    /// What learns, `MODEL[+ADAPTER…]`: the last adapter goes on learning, without one a new one is begun
    #[arg(long, value_name = "MODEL", default_value = "qwen2.5-coder-1.5b")]
    pub(super) model: String,
    /// What of it learns
    #[arg(long, value_enum, default_value_t)]
    learns: LearnsChoice,
    /// What computes it
    #[arg(long, value_enum, default_value_t)]
    pub(super) model_on: ModelOn,
    /// Rank of a new adapter
    #[arg(long, value_name = "N", default_value = "8")]
    rank: Count,
    /// How strongly a new adapter speaks: by this over its rank
    #[arg(long, value_name = "X", default_value = "16")]
    alpha: Positive,
    /// Projections that a new adapter lies beside
    #[arg(long, value_name = "NAME,…", value_enum, value_delimiter = ',', default_values_t = ProjectionChoice::ALL)]
    targets: Vec<ProjectionChoice>,
    /// Steps over which the rate rises
    #[arg(long, value_name = "N", default_value_t = 10)]
    warmup_steps: u64,
    /// What the rate does after that
    #[arg(long, value_enum, default_value_t)]
    lr_scheduler_type: LrSchedulerChoice,
    /// How much matrices shrink, apart from what they learn
    #[arg(long, value_name = "X", default_value = "0.01")]
    weight_decay: NotNegative,
    /// Gradients longer than this are shortened to it
    #[arg(long, value_name = "X", default_value = "1")]
    max_grad_norm: Positive,
    /// Whether trajectories count the same, or tokens
    #[arg(long, value_enum, default_value_t)]
    aggregation: AggregationChoice,
    /// Tokens that go through the model together
    #[arg(long, value_name = "N", default_value = "4096")]
    tokens_per_microbatch: Count,
    /// Of the order, of draws, and of a new adapter's first numbers
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(super) seed: u64,
    /// Steps between checkpoints
    #[arg(long, value_name = "N", default_value = "20")]
    checkpoint_every: Count,
    /// So many checkpoints are kept, the latest
    #[arg(long, value_name = "N", default_value = "2")]
    checkpoints: Count,
}

/// Beside them, of those that learn from what there is.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct DataSettings {
    /// Share of the tasks that is not learnt from but looked at
    #[arg(long, value_name = "X", default_value = "0.1")]
    pub(super) held_out: ShareBelowOne,
    /// Which GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) device: u32,
    /// Fetch nothing from the network
    #[arg(long)]
    pub(super) offline: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LearnsChoice {
    /// LoRA matrices on a frozen model
    #[default]
    Adapter,
    /// All of it: for small models
    Everything,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LrSchedulerChoice {
    /// It stays
    Constant,
    /// To zero at the last step
    Linear,
    /// To zero at the last step, slowly at first and at last
    #[default]
    Cosine,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum AggregationChoice {
    /// The mean over each trajectory's tokens, then over trajectories
    #[default]
    Trajectory,
    /// The mean over all tokens
    Token,
}

/// As PEFT calls them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[expect(clippy::enum_variant_names, reason = "the names are PEFT's")]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
enum ProjectionChoice {
    QProj,
    KProj,
    VProj,
    OProj,
    GateProj,
    UpProj,
    DownProj,
}

impl ProjectionChoice {
    const ALL: [Self; 7] = [
        Self::QProj,
        Self::KProj,
        Self::VProj,
        Self::OProj,
        Self::GateProj,
        Self::UpProj,
        Self::DownProj,
    ];

    fn projection(self) -> Projection {
        match self {
            Self::QProj => Projection::Query,
            Self::KProj => Projection::Key,
            Self::VProj => Projection::Value,
            Self::OProj => Projection::AttentionOutput,
            Self::GateProj => Projection::Gate,
            Self::UpProj => Projection::Up,
            Self::DownProj => Projection::Down,
        }
    }
}

const MOST_RANK: u32 = 4096;

/// A model that is to learn.
pub(super) struct ModelToTrain {
    pub(super) weights: Weights,
    pub(super) learns: FineTuning,
    pub(super) codec: ChatCodec,
    pub(super) origin: PathBuf,
}

impl LearningSettings {
    pub(super) fn check(&self) -> Result<(), Stop> {
        let refuse = |message: &str| Err(Stop::config("config", message, None));
        if self.targets.is_empty() {
            return refuse("`targets` must name at least one projection");
        }
        if u32::from(self.rank) > MOST_RANK {
            return refuse("`rank` must be at most 4096");
        }
        language_model::check(&self.model)
    }

    /// Whether a network of the one can go on as one of the other.
    pub(super) fn fits(&self, other: &Self) -> bool {
        let same = |one: &Self| (one.learns, one.rank, one.targets.clone());
        same(self) == same(other)
    }

    pub(super) fn rates(&self, peak: Positive) -> Rates {
        Rates {
            peak: peak.into(),
            warmup: self.warmup_steps,
            decline: match self.lr_scheduler_type {
                LrSchedulerChoice::Constant => LrSchedulerType::Constant,
                LrSchedulerChoice::Linear => LrSchedulerType::Linear,
                LrSchedulerChoice::Cosine => LrSchedulerType::Cosine,
            },
            adamw: AdamW {
                weight_decay: self.weight_decay.into(),
                max_grad_norm: self.max_grad_norm.into(),
                ..AdamW::default()
            },
        }
    }

    pub(super) fn aggregation(&self) -> Aggregation {
        match self.aggregation {
            AggregationChoice::Trajectory => Aggregation::Trajectory,
            AggregationChoice::Token => Aggregation::Token,
        }
    }

    pub(super) fn tokens_per_microbatch(&self) -> usize {
        u32::from(self.tokens_per_microbatch) as usize
    }

    /// How many numbers learn of a model of this shape.
    pub(super) fn learnt_weights(&self, config: &ModelConfig) -> u64 {
        match self.learns {
            LearnsChoice::Everything => estimate::weights(config),
            LearnsChoice::Adapter => {
                let targets: Vec<Projection> =
                    self.targets.iter().map(|one| one.projection()).collect();
                estimate::adapter_weights(config, u32::from(self.rank) as usize, &targets)
            }
        }
    }

    pub(super) fn keeping(&self, folder: &Path, origin: &Path) -> Keeping {
        Keeping {
            folder: folder.to_path_buf(),
            origin: origin.to_path_buf(),
            every: u32::from(self.checkpoint_every).into(),
            checkpoints: u32::from(self.checkpoints) as usize,
        }
    }

    /// Fetches the model if it must. Nothing large is read yet.
    pub(super) fn find(&self, offline: bool, printer: &Printer) -> Result<Found, Stop> {
        language_model::find(&self.model, offline, printer)
    }

    pub(super) fn load(&self, found: &Found) -> Result<ModelToTrain, Stop> {
        let codec = ChatCodec::open(&found.path, found.hash.as_deref())?;
        let mut weights = Weights::load(&found.path)?;
        let adapters: Vec<Adapter> = found
            .adapters
            .iter()
            .map(|folder| Adapter::load(folder))
            .collect::<Result<_, _>>()?;
        let (below, last) = match (self.learns, adapters.split_last()) {
            (LearnsChoice::Adapter, Some((last, below))) => (below, Some(last)),
            _ => (adapters.as_slice(), None),
        };
        for adapter in below {
            weights = weights.stacked(adapter).map_err(ModelError::from)?;
        }
        let learns = match (self.learns, last) {
            (LearnsChoice::Everything, _) => FineTuning::Full,
            (LearnsChoice::Adapter, Some(last)) => FineTuning::Lora(last.clone()),
            (LearnsChoice::Adapter, None) => FineTuning::NewLora {
                settings: AdapterSettings {
                    rank: u32::from(self.rank) as usize,
                    alpha: self.alpha.into(),
                    scaling: Scaling::Rank,
                    base: Some(self.model.clone()),
                },
                targets: self.targets.iter().map(|one| one.projection()).collect(),
            },
        };
        Ok(ModelToTrain {
            weights,
            learns,
            codec,
            origin: found.path.clone(),
        })
    }
}

/// Trajectories of all places, in their order, and what tells them apart from others.
pub(super) struct Data {
    pub(super) trajectories: Vec<Trajectory>,
    hash: String,
}

impl Places {
    pub(super) fn read(&self) -> Result<Data, Stop> {
        let mut trajectories = Vec::new();
        for path in &self.data {
            trajectories.extend(read_trajectories(path)?);
        }
        if trajectories.is_empty() {
            let paths: Vec<String> = self
                .data
                .iter()
                .map(|path| format!("`{}`", path.display()))
                .collect();
            return Err(nothing_to_learn(
                "training_data",
                &format!("no episode has ended in {}", paths.join(", ")),
                "`warpsmith rollout` collects trajectories, `warpsmith train demos` writes a teacher's",
            ));
        }
        let mut hasher = blake3::Hasher::new();
        for trajectory in &trajectories {
            serde_json::to_writer(&mut hasher, trajectory)?;
            hasher.update(b"\n");
        }
        let hash = hasher.finalize().to_hex()[..16].to_owned();
        Ok(Data { trajectories, hash })
    }

    pub(super) fn folder(
        &self,
        verb: &str,
        settings: &impl Serialize,
        model: &Found,
        data: &Data,
        printer: &Printer,
    ) -> Result<RunFolder, Stop> {
        let count = data.trajectories.len();
        let known = json!({
            "data": { "count": count, "hash": data.hash },
            "weights": model.identity()?,
        });
        let out = self.out.as_deref();
        folder(out, verb, settings, known, &model.name(), printer)
    }
}

pub(super) fn nothing_to_learn(code: &str, why: &str, hint: &str) -> Stop {
    let message = format!("there is nothing to learn from: {why}");
    Stop::config(code, message, Some(hint.to_owned()))
}

/// Everything that decides what a run does names it: the same again resumes, another is refused with the difference. `known`
/// is an object with what tells apart the things that settings only name.
pub(super) fn folder(
    out: Option<&Path>,
    verb: &str,
    settings: &impl Serialize,
    known: Value,
    model: &str,
    printer: &Printer,
) -> Result<RunFolder, Stop> {
    let mut config: Map<String, Value> = serde_json::from_value(serde_json::to_value(settings)?)?;
    config.extend(serde_json::from_value::<Map<String, Value>>(known)?);
    forget_not_compared(&mut config);
    config.insert("format".to_owned(), json!(CONFIG_FORMAT));
    config.insert("verb".to_owned(), json!(format!("train {verb}")));
    let config = Value::Object(config);
    let verb = format!("train-{verb}");
    let folder = match out {
        Some(out) => RunFolder::at(out, &config)?,
        None => RunFolder::create_or_resume("runs".as_ref(), &verb, model, &config)?,
    };
    runs::say_where(&folder, out, printer);
    Ok(folder)
}

/// How often it is kept decides what a crash costs, and how many at a time how long it takes; not what comes out.
const NOT_COMPARED: [&str; 7] = [
    "offline",
    "python",
    "checkpoint_every",
    "checkpoints",
    "at_once",
    "judges",
    // Where a reviewer is served may change while a run rests.
    "reviewer_url",
];

/// Also of stages, which have settings of their own.
fn forget_not_compared(config: &mut Map<String, Value>) {
    config.retain(|key, _| !NOT_COMPARED.contains(&key.as_str()));
    for value in config.values_mut() {
        if let Value::Object(inner) = value {
            forget_not_compared(inner);
        }
    }
}

impl DataSettings {
    /// What is learnt from, and what is held out; tasks are in one of the two with all that belongs to them.
    pub(super) fn split<T>(
        &self,
        items: Vec<T>,
        seed: u64,
        task: impl Fn(&T) -> &str,
    ) -> (Vec<T>, Vec<T>) {
        let tasks: Vec<&str> = items.iter().map(&task).collect();
        let mut out = held_out(&tasks, self.held_out.into(), seed).into_iter();
        let (held, learnt) = items
            .into_iter()
            .partition(|_| out.next().unwrap_or_default());
        (learnt, held)
    }
}
