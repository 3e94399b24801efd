//! Whole runs of learning, each in a folder: a step, a line of metrics, now and then a checkpoint.
//!
//! What a step does follows from the settings, the data and the checkpoint it started from, and from nothing else. So a run
//! that was killed goes on as if it had not been.

mod learning;
mod llm_judge;
mod networks;
mod offline;
mod pipeline;
mod policy;
mod progress;
mod reinforce;
mod rollouts;
mod selection;
mod sft;
mod value;

pub use learning::{
    BaseModel, LearningOptions, Placement, RunHost, TrainedRun, TuningOptions, run_folder,
};
pub use llm_judge::{LlmJudge, LlmScore};
pub use offline::{Imitation, Objective, OfflineRun, ValueTargets};
pub use pipeline::{
    DoneStage, GateThresholds, GoOnFrom, PipelineGate, PipelineOutcome, PipelineRun, PipelineStage,
    PipelineSwitches, StageRunner,
};
pub use policy::{
    Advantages, Collector, CriticSettings, CutReplies, Penalty, PolicyRun, PolicySettings,
};
pub use progress::{Best, Keeping, OptimizerSettings, RecipeOutcome, Watch};
pub use reinforce::{ReinforceRun, StartJudges, require_disjoint, require_on_policy};
pub use rollouts::{CollectSettings, Examination, Rollouts, Voice};
pub use selection::Selection;
pub use sft::{SftSettings, sft};
pub use value::{ValueSettings, pretrain_value};
