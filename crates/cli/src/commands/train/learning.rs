//! What every way of learning can be told, and what that means.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use warpsmith_decontaminate::FingerprintIndex;
use warpsmith_model::Projection;
use warpsmith_schema::Failure;
use warpsmith_store::RunFolder;
use warpsmith_train::AdamW;
use warpsmith_train::algorithms::Aggregation;
use warpsmith_train::data::Columns;
use warpsmith_train::lr_schedule::LrSchedulerType;
use warpsmith_train::recipes::{
    BaseModel, LearningOptions, OptimizerSettings, Placement, RunHost, TuningOptions, Watch,
};

use super::show::Show;
use super::tracking::{TrackArgs, Tracker};
use crate::args::{Count, ModelOn, NotNegative, Positive, ShareBelowOne};
use crate::failure::Stop;
use crate::language_model;
use crate::printer::Printer;
use crate::runs;

/// Where trajectories are, and where the run goes.
#[derive(Debug, Args)]
pub(super) struct Places {
    /// Trajectories: a run's folder, a JSONL of them, or for `sft` any Parquet with `--columns`; as often as you like
    #[arg(long, value_name = "RUN", required = true)]
    pub(super) data: Vec<PathBuf>,
    /// What Parquet columns hold: `messages=COL`; `prompt=COL,reply=COL`; or `source=COL,code=COL`, a module and what replaces it
    #[arg(long, value_name = "WHAT=COL,…", default_value_t)]
    pub(super) columns: Columns,
    /// Keep rows of Parquet that hold a task of `KernelBench` too
    #[arg(long)]
    pub(super) no_decontaminate: bool,
    /// The run's folder, begun or resumed; else a new one below `runs/`
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) tracking: TrackArgs,
}

impl Places {
    /// What is kept out of collections.
    pub(super) fn benchmark(&self) -> Result<FingerprintIndex, Stop> {
        if self.no_decontaminate {
            return Ok(FingerprintIndex::default());
        }
        Ok(FingerprintIndex::kernelbench()?)
    }
}

/// The benchmark's task that a text holds.
pub(super) fn task_of(benchmark: &FingerprintIndex, text: &str) -> Option<String> {
    Some(benchmark.held_by(text)?.id)
}

#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct LearningSettings {
    /// The model to train, `MODEL[+ADAPTER…]`; without an adapter a new one is made
    #[arg(long, value_name = "MODEL", default_value = "qwen2.5-coder-1.5b")]
    pub(super) model: String,
    /// Which parameters are trainable: a LoRA adapter, or all
    #[arg(long, value_enum, default_value_t)]
    fine_tuning: FineTuningChoice,
    /// Where the model runs
    #[arg(long, value_enum, default_value_t)]
    pub(super) model_on: ModelOn,
    /// Rank of a new adapter
    #[arg(long, value_name = "N", default_value = "8")]
    rank: Count,
    /// LoRA alpha: a new adapter's output is scaled by alpha over rank
    #[arg(long, value_name = "X", default_value = "16")]
    alpha: Positive,
    /// Projections that get LoRA matrices in a new adapter
    #[arg(long, value_name = "NAME,…", value_enum, value_delimiter = ',', default_values_t = ProjectionChoice::ALL)]
    targets: Vec<ProjectionChoice>,
    /// Steps over which the learning rate rises
    #[arg(long, value_name = "N", default_value_t = 10)]
    warmup_steps: u64,
    /// Learning rate schedule after the warm-up
    #[arg(long, value_enum, default_value_t)]
    lr_scheduler_type: LrSchedulerChoice,
    /// Decoupled weight decay of AdamW, on matrices
    #[arg(long, value_name = "X", default_value = "0.01")]
    weight_decay: NotNegative,
    /// Gradients are clipped to this norm
    #[arg(long, value_name = "X", default_value = "1")]
    max_grad_norm: Positive,
    /// Tokens that go through the model together
    #[arg(long, value_name = "N", default_value = "4096")]
    tokens_per_microbatch: Count,
    /// Random seed: data order, sampling, initial weights of a new adapter
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(super) seed: u64,
    /// Steps between checkpoints
    #[arg(long, value_name = "N", default_value = "20")]
    checkpoint_every: Count,
    /// How many of the latest checkpoints to keep
    #[arg(long, value_name = "N", default_value = "2")]
    checkpoints: Count,
}

/// Beside them, of those that learn from what there is.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
pub(super) struct DataSettings {
    /// Share of the tasks held out for validation
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
enum FineTuningChoice {
    /// LoRA matrices on a frozen model
    #[default]
    Lora,
    /// All of it: for small models
    Full,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AggregationChoice {
    /// The mean over each trajectory's tokens, then over trajectories
    Trajectory,
    /// The mean over all tokens
    Token,
}

impl From<AggregationChoice> for Aggregation {
    fn from(choice: AggregationChoice) -> Self {
        match choice {
            AggregationChoice::Trajectory => Self::Trajectory,
            AggregationChoice::Token => Self::Token,
        }
    }
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
        let same = |one: &Self| (one.fine_tuning, one.rank, one.targets.clone());
        same(self) == same(other)
    }

    /// At this learning rate, with losses put together in this way, on this GPU.
    pub(super) fn options(
        &self,
        learning_rate: Positive,
        aggregation: Aggregation,
        device: u32,
    ) -> LearningOptions {
        LearningOptions {
            model: self.model.clone(),
            tuning: self.tuning(),
            placement: match self.model_on {
                ModelOn::Auto => Placement::Auto,
                ModelOn::Gpu => Placement::Gpu,
                ModelOn::Cpu => Placement::Processor,
            },
            device,
            optimizer: self.optimizer(learning_rate),
            aggregation,
            tokens_per_microbatch: self.tokens_per_microbatch(),
            seed: self.seed,
            checkpoint_every: u32::from(self.checkpoint_every).into(),
            checkpoints: u32::from(self.checkpoints) as usize,
        }
    }

    pub(super) fn tuning(&self) -> TuningOptions {
        match self.fine_tuning {
            FineTuningChoice::Full => TuningOptions::Full,
            FineTuningChoice::Lora => TuningOptions::Lora {
                rank: u32::from(self.rank) as usize,
                alpha: self.alpha.into(),
                targets: self.targets.iter().map(|one| one.projection()).collect(),
            },
        }
    }

    pub(super) fn tokens_per_microbatch(&self) -> usize {
        u32::from(self.tokens_per_microbatch) as usize
    }

    pub(super) fn optimizer(&self, learning_rate: Positive) -> OptimizerSettings {
        OptimizerSettings {
            learning_rate: learning_rate.into(),
            warmup_steps: self.warmup_steps,
            lr_scheduler_type: match self.lr_scheduler_type {
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
}

/// Finds the model that learns, and talks to whoever waits.
pub(super) struct Host<'a> {
    pub(super) learning: &'a LearningSettings,
    pub(super) offline: bool,
    /// Where the run is to go, if that was said.
    pub(super) out: Option<&'a Path>,
    pub(super) printer: &'a Printer,
    /// The run's folder, once it is there.
    pub(super) opened: OnceLock<PathBuf>,
    pub(super) trackers: Vec<Tracker>,
    /// Whose tasks are kept out of collections.
    pub(super) benchmark: FingerprintIndex,
}

impl RunHost for Host<'_> {
    fn find_model(&self) -> Result<BaseModel, Failure> {
        let find = || {
            let found = language_model::locate(&self.learning.model, self.offline, self.printer)?;
            let identity = found.identity()?;
            Ok(BaseModel {
                path: found.path,
                hash: found.hash,
                adapters: found.adapters,
                identity,
            })
        };
        find().map_err(|stop: Stop| stop.0)
    }

    fn opened(&self, folder: &RunFolder) {
        let _ = self.opened.set(folder.path().to_path_buf());
        runs::say_where(folder, self.out, self.printer);
    }

    fn note(&self, line: &str) {
        self.printer.note(line);
    }

    fn benchmark_task(&self, text: &str) -> Option<String> {
        task_of(&self.benchmark, text)
    }

    fn watch(&self, told: &'static [&'static str]) -> Box<dyn Watch + '_> {
        let folder = self.opened.get().cloned();
        Box::new(Show::new(self.printer, told, folder, self.trackers.clone()))
    }
}
