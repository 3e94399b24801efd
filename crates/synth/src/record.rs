//! What a run writes down of each candidate, and what a set has of each task.

use serde::{Deserialize, Serialize};
use warpsmith_decontaminate::SimilarTask;
use warpsmith_schema::Target;
use warpsmith_tasks::SetTask;

use crate::filter::FilterSeconds;
use crate::filter::{FilterRejection, TaskMeasurements};
use crate::mix::TaskGroup;

/// What became of a candidate. A run's log holds one a line, and nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateRecord {
    pub index: u64,
    pub group: TaskGroup,
    pub nearest: Option<SimilarTask>,
    #[serde(default)]
    pub seconds: FilterSeconds,
    pub outcome: CandidateOutcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CandidateOutcome {
    Kept(Box<SynthRow>),
    Dropped(FilterRejection),
}

/// A task of a set, and how it came to be one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SynthRow {
    #[serde(flatten)]
    pub task: SetTask,
    pub composer: String,
    pub seed: u64,
    pub index: u64,
    /// Which of the composition's sizes fitted the window.
    pub size: Option<usize>,
    pub target: Target,
    pub device: String,
    #[serde(flatten)]
    pub measurements: TaskMeasurements,
    pub nearest: Option<SimilarTask>,
}
