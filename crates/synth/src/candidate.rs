//! A task that somebody composed, before anybody has run it.

use serde_json::Value;
use warpsmith_decontaminate::{Near, Structure};
use warpsmith_schema::OpGraph;

use crate::grammar::{Composition, Size};
use crate::mix::Group;
use crate::seeds::Layer;
use crate::spent::Spent;

/// What a composer made.
#[derive(Debug, Clone)]
pub enum Made {
    /// Ours, in every size and with a graph.
    Composed(Box<Composition>),
    /// A library's layer, in every size.
    Layer(Layer),
    /// A text that somebody else wrote, in the one size it has.
    Written(String),
}

impl Made {
    /// The text in a size; a written one has only one.
    pub fn code(&self, size: Size) -> String {
        match self {
            Self::Composed(composition) => composition.code(size),
            Self::Layer(layer) => layer.sized(size),
            Self::Written(code) => code.clone(),
        }
    }

    pub fn graph(&self, size: Size) -> Option<OpGraph> {
        match self {
            Self::Composed(composition) => Some(composition.graph(size)),
            Self::Layer(_) | Self::Written(_) => None,
        }
    }

    pub(crate) fn graph_value(&self, size: Size) -> Option<Value> {
        self.graph(size)
            .and_then(|graph| serde_json::to_value(graph).ok())
    }

    /// What its values take together, where that is known before it runs.
    pub fn bytes(&self, size: Size) -> Option<u64> {
        match self {
            Self::Composed(composition) => Some(composition.bytes(size)),
            Self::Layer(_) | Self::Written(_) => None,
        }
    }

    /// Whether it may run outside the sandbox.
    pub fn ours(&self) -> bool {
        !matches!(self, Self::Written(_))
    }

    pub(crate) fn has_sizes(&self) -> bool {
        !matches!(self, Self::Written(_))
    }
}

impl Layer {
    fn sized(&self, size: Size) -> String {
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
pub struct Candidate {
    pub index: u64,
    pub group: Group,
    /// Paths of the seeds it is made of.
    pub seeds: Vec<String>,
    /// Unique in a set.
    pub name: String,
    pub made: Made,
    pub structure: Structure,
    /// The benchmark's task that is most like it, where one was compared with.
    pub nearest: Option<Near>,
    pub spent: Spent,
}
