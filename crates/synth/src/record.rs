//! What a run writes down of each candidate, and what a set has of each task.

use serde::{Deserialize, Serialize};
use warpsmith_schema::{OpGraph, Target};
use warpsmith_tasks::Near;

use crate::filter::{Dropped, Facts};
use crate::mix::Group;

/// What became of a candidate. A run's log holds one a line, and nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub index: u64,
    pub group: Group,
    pub nearest: Option<Near>,
    pub fate: Fate,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    Kept(Box<Row>),
    Dropped(Dropped),
}

/// A task of a set: the public columns first, then ours.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Paths of the seeds, in order.
    pub ops: Vec<String>,
    pub data_source: String,
    pub code: String,
    pub name: String,
    pub graph: Option<OpGraph>,
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
