//! A task that somebody composed, before anybody has run it.

use serde_json::Value;
use warpsmith_decontaminate::{SimilarTask, Structure};
use warpsmith_schema::OpGraph;

use crate::filter::FilterSeconds;
use crate::grammar::{Composition, TaskSize};
use crate::mix::TaskGroup;
use crate::seeds::TransformerLayer;

/// What a composer made.
#[derive(Debug, Clone)]
pub enum CandidateSource {
    /// Ours, in every size and with a graph.
    Composed(Box<Composition>),
    /// A library's layer, in every size.
    Layer(TransformerLayer),
    /// A text that somebody else wrote, in the one size it has.
    Written(String),
}

impl CandidateSource {
    /// The text in a size; a written one has only one.
    pub fn code(&self, size: TaskSize) -> String {
        match self {
            Self::Composed(composition) => composition.code(size),
            Self::Layer(layer) => layer.code_in_size(size),
            Self::Written(code) => code.clone(),
        }
    }

    pub fn graph(&self, size: TaskSize) -> Option<OpGraph> {
        match self {
            Self::Composed(composition) => Some(composition.graph(size)),
            Self::Layer(_) | Self::Written(_) => None,
        }
    }

    pub(crate) fn graph_value(&self, size: TaskSize) -> Option<Value> {
        self.graph(size)
            .and_then(|graph| serde_json::to_value(graph).ok())
    }

    /// What its values take together, where that is known before it runs.
    pub fn bytes(&self, size: TaskSize) -> Option<u64> {
        match self {
            Self::Composed(composition) => Some(composition.bytes(size)),
            Self::Layer(_) | Self::Written(_) => None,
        }
    }

    /// Whether it may run outside the sandbox.
    pub fn is_trusted(&self) -> bool {
        !matches!(self, Self::Written(_))
    }

    pub(crate) fn has_sizes(&self) -> bool {
        !matches!(self, Self::Written(_))
    }
}

impl TransformerLayer {
    fn code_in_size(&self, size: TaskSize) -> String {
        let lengths = [
            ("@BATCH@", [2, 4, 8, 16, 32, 64]),
            ("@LENGTH@", [8, 64, 128, 512, 2048, 4096]),
            ("@HIDDEN@", [64, 256, 512, 1024, 2048, 4096]),
            ("@WIDE@", [128, 512, 1024, 4096, 8192, 16384]),
        ];
        lengths
            .iter()
            .fold(self.code.clone(), |code, (token, by_size)| {
                code.replace(token, &by_size[size.number()].to_string())
            })
    }
}

/// A composed task on its way through the filters.
#[derive(Debug, Clone)]
pub struct TaskCandidate {
    pub index: u64,
    pub group: TaskGroup,
    /// Paths of the seeds it is made of.
    pub seeds: Vec<String>,
    /// Unique in a set.
    pub name: String,
    pub source: CandidateSource,
    pub structure: Structure,
    /// The benchmark's task that is most like it, where one was compared with.
    pub nearest: Option<SimilarTask>,
    pub seconds: FilterSeconds,
}
