//! What a run writes down of each candidate, and what a set has of each task.

use serde::{Deserialize, Serialize};
use warpsmith_decontaminate::Near;
use warpsmith_schema::Target;
use warpsmith_tasks::SetTask;

use crate::filter::{Dropped, Facts};
use crate::mix::Group;
use crate::spent::Spent;

/// What became of a candidate. A run's log holds one a line, and nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub index: u64,
    pub group: Group,
    pub nearest: Option<Near>,
    #[serde(default)]
    pub spent: Spent,
    pub fate: Fate,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    Kept(Box<Row>),
    Dropped(Dropped),
}

/// A task of a set, and how it came to be one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
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
    pub facts: Facts,
    pub nearest: Option<Near>,
}
