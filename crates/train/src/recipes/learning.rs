//! What every run that learns has in common: a model, its settings, a folder, and what came of it.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use warpsmith_model::policy::ChatCodec;
use warpsmith_model::{
    Adapter, AdapterSettings, ModelConfig, ModelError, Projection, Scaling, Weights,
};
use warpsmith_schema::{CONFIG_FORMAT, FORMAT, Failure};
use warpsmith_store::RunFolder;

use super::progress::{Keeping, OptimizerSettings, RecipeOutcome, Watch};
use crate::TrainError;
use crate::algorithms::Aggregation;
use crate::network::FineTuning;
use crate::{estimate, metrics};

/// The program around a run: it finds models and talks to people.
pub trait RunHost {
    /// The model that learns, fetched if it must be. Nothing large is read yet.
    fn find_model(&self) -> Result<BaseModel, Failure>;

    /// The run's folder is there, new or resumed.
    fn opened(&self, folder: &RunFolder);

    /// A line for the person who waits.
    fn note(&self, line: &str);

    /// Which of a benchmark's tasks a text of a collection holds, where these are to be left out.
    fn benchmark_task(&self, text: &str) -> Option<String>;

    /// Whoever follows the steps. These numbers are worth a person's attention.
    fn watch(&self, told: &'static [&'static str]) -> Box<dyn Watch + '_>;
}

/// A model that is on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseModel {
    pub path: PathBuf,
    /// Of the file, where it is known.
    pub hash: Option<String>,
    pub adapters: Vec<PathBuf>,
    /// What tells it from others, whatever they are called: of the model, then of each adapter.
    pub identity: Vec<String>,
}

impl BaseModel {
    /// The file's or folder's, for people.
    pub fn name(&self) -> String {
        let stem = self.path.file_stem().unwrap_or_default();
        stem.to_string_lossy().into_owned()
    }
}

/// Which parameters train.
#[derive(Debug, Clone, PartialEq)]
pub enum TuningOptions {
    /// All of them.
    Full,
    /// The model's last adapter; without one, a new one like this.
    Lora {
        rank: usize,
        alpha: f64,
        targets: Vec<Projection>,
    },
}

impl TuningOptions {
    /// How many parameters of a model of this shape train.
    pub fn trainable_weights(&self, config: &ModelConfig) -> u64 {
        match self {
            Self::Full => estimate::weights(config),
            Self::Lora { rank, targets, .. } => estimate::adapter_weights(config, *rank, targets),
        }
    }
}

/// What computes a model that learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// A GPU where there is one that can hold it.
    Auto,
    Gpu,
    Processor,
}

/// How a model learns, whatever it learns from.
#[derive(Debug, Clone, PartialEq)]
pub struct LearningOptions {
    /// `MODEL[+ADAPTER…]`, as on the command line.
    pub model: String,
    pub tuning: TuningOptions,
    pub placement: Placement,
    /// Which GPU.
    pub device: u32,
    pub optimizer: OptimizerSettings,
    pub aggregation: Aggregation,
    pub tokens_per_microbatch: usize,
    /// Of the order, of draws, and of a new adapter's first numbers.
    pub seed: u64,
    pub checkpoint_every: u64,
    pub checkpoints: usize,
}

/// A model that is to learn.
pub(super) struct ModelToTrain {
    pub(super) weights: Weights,
    pub(super) fine_tuning: FineTuning,
    pub(super) codec: ChatCodec,
}

impl LearningOptions {
    pub(super) fn load(&self, base: &BaseModel) -> Result<ModelToTrain, TrainError> {
        let codec = ChatCodec::open(&base.path, base.hash.as_deref())?;
        let mut weights = Weights::load(&base.path)?;
        let adapters: Vec<Adapter> = base
            .adapters
            .iter()
            .map(|folder| Adapter::load(folder))
            .collect::<Result<_, _>>()?;
        let (below, last) = match (&self.tuning, adapters.split_last()) {
            (TuningOptions::Lora { .. }, Some((last, below))) => (below, Some(last)),
            _ => (adapters.as_slice(), None),
        };
        for adapter in below {
            weights = weights.stacked(adapter).map_err(ModelError::from)?;
        }
        let fine_tuning = match (&self.tuning, last) {
            (TuningOptions::Full, _) => FineTuning::Full,
            (TuningOptions::Lora { .. }, Some(last)) => FineTuning::Lora(last.clone()),
            (
                TuningOptions::Lora {
                    rank,
                    alpha,
                    targets,
                },
                None,
            ) => FineTuning::NewLora {
                settings: AdapterSettings {
                    rank: *rank,
                    alpha: *alpha,
                    scaling: Scaling::Rank,
                    base: Some(self.model.clone()),
                },
                targets: targets.clone(),
            },
        };
        Ok(ModelToTrain {
            weights,
            fine_tuning,
            codec,
        })
    }

    /// How to ask for what was published.
    pub(super) fn policy(&self, base: &BaseModel, published: Option<&Path>) -> Option<String> {
        let published = published?.display();
        let below = match (&self.tuning, base.adapters.is_empty()) {
            (TuningOptions::Full, _) => return Some(format!("local:{published}")),
            (TuningOptions::Lora { .. }, true) => self.model.as_str(),
            // The last adapter went on learning, and this is what it became.
            (TuningOptions::Lora { .. }, false) => self.model.rsplit_once('+')?.0,
        };
        Some(format!("local:{below}+{published}"))
    }

    pub(super) fn keeping(&self, folder: &RunFolder, base: &BaseModel) -> Keeping {
        Keeping {
            folder: folder.path().to_path_buf(),
            origin: base.path.clone(),
            every: self.checkpoint_every,
            checkpoints: self.checkpoints,
        }
    }
}

/// Everything that decides what a run does names it: the same again resumes, another is refused with the difference. `known`
/// tells apart the things that settings only name. Without `out` the folder is one below `runs/`, named after `name`.
pub fn run_folder(
    out: Option<&Path>,
    verb: &str,
    settings: Map<String, Value>,
    known: Map<String, Value>,
    name: &str,
) -> Result<RunFolder, TrainError> {
    let mut config = settings;
    config.extend(known);
    forget_not_compared(&mut config);
    config.insert("format".to_owned(), json!(CONFIG_FORMAT));
    config.insert("verb".to_owned(), json!(format!("train {verb}")));
    let config = Value::Object(config);
    let verb = format!("train-{verb}");
    Ok(match out {
        Some(out) => RunFolder::at(out, &config)?,
        None => RunFolder::create_or_resume("runs".as_ref(), &verb, name, &config)?,
    })
}

/// How often it is kept decides what a crash costs, and how many at a time how long it takes; not what comes out.
const NOT_COMPARED: [&str; 7] = [
    "offline",
    "python",
    "checkpoint_every",
    "checkpoints",
    "concurrency",
    "judges",
    // Where an LLM judge is served may change while a run rests.
    "llm_judge_url",
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

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct TrainedRun {
    pub verb: &'static str,
    pub outcome: RecipeOutcome,
    pub folder: PathBuf,
    /// What learnt, as `--policy` names it, where it is one that can be asked.
    pub policy: Option<String>,
    /// What else there is to say, for scripts.
    pub about: Map<String, Value>,
}

/// How many groups a step learnt from, where a policy learns from groups.
const GROUPS: &str = "groups";

impl TrainedRun {
    /// What a person must not overlook.
    pub fn warnings(&self) -> Result<Vec<String>, TrainError> {
        let lines = metrics::read(&self.folder)?;
        let groups: Vec<f64> = lines
            .iter()
            .filter_map(|(_, numbers)| numbers.get(GROUPS).copied())
            .collect();
        let idle = groups.iter().filter(|taught| **taught == 0.0).count();
        let why =
            "all replies to a task earned the same, so there was nothing to tell them apart by";
        let mend = "easier tasks, more samples of each, or a policy that was fine-tuned before";
        Ok(match (groups.len(), idle) {
            (_, 0) => Vec::new(),
            (all, idle) if all == idle => vec![format!(
                "the policy learned nothing: in no step did a group teach it ({why}); what is published is what it began with. \
                 Try {mend}"
            )],
            (all, idle) => vec![format!(
                "in {idle} of {all} steps no group taught the policy anything: {why}"
            )],
        })
    }

    /// All of it, for scripts.
    pub fn object(&self) -> Result<Map<String, Value>, TrainError> {
        let outcome = &self.outcome;
        let lines = metrics::read(&self.folder)?;
        let last = lines.last().map(|(_, numbers)| numbers);
        let mut object = self.about.clone();
        for (name, value) in [
            ("format", json!(FORMAT)),
            ("verb", json!(format!("train {}", self.verb))),
            ("run", json!(self.folder)),
            ("step", json!(outcome.step)),
            ("steps", json!(outcome.steps)),
            ("interrupted", json!(outcome.interrupted)),
            ("published", json!(outcome.published)),
            ("best", json!(outcome.best)),
            ("metrics", json!(last)),
            ("warnings", json!(self.warnings()?)),
        ] {
            object.insert(name.to_owned(), value);
        }
        Ok(object)
    }
}
