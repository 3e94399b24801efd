//! The structural similarity of two modules, by what they compute.
//!
//! An abstract interpreter reads `Model.__init__` and `Model.forward` as a graph of operators (see `interpreter`). Two graphs are
//! compared by the multisets of their small subgraphs: each operator alone, with its operands, and with the operands of these
//! (Weisfeiler-Lehman hashes of depth 0 to 2). Only hashes are stored, so a benchmark can be recognised without its source.

mod extents;
mod graph;
mod interpreter;
mod operators;
mod value;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use graph::{Graph, NodeId};
use interpreter::{TracedModule, trace};
use operators::is_commutative;
use warpsmith_tasks::TaskError;
use warpsmith_tasks::python::parse;

/// Tasks more similar than this are near-duplicates, as in CUDA Agent.
pub const NEAR_DUPLICATE_THRESHOLD: f64 = 0.9;

/// The depth of the largest subgraphs.
const DEPTH: SubgraphHash = 2;

/// The hash of a subgraph. Its two lowest bits are the subgraph's depth.
pub(crate) type SubgraphHash = u32;
const DEPTH_BITS: SubgraphHash = 3;

/// Whether the index uses this hash: the subgraph is deeper than one operator. Structures of `n` operators without a common
/// one of these are at most `(n + 3) / (3 n + 3)` similar, with the three counts of leaves that they may share.
pub(crate) fn is_index_key(hash: SubgraphHash) -> bool {
    hash & DEPTH_BITS > 0
}

/// What a module computes, as hashes of subgraphs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Structure {
    /// Hashes and how often each occurs, in ascending order.
    pub(crate) subgraphs: Vec<(SubgraphHash, u32)>,
    /// The number of operators.
    pub(crate) operators: u32,
    /// The operator, if there is exactly one.
    pub(crate) only_operator: Option<SubgraphHash>,
    /// The number of dimensions of each input tensor; `None` where the source does not tell.
    pub(crate) input_ranks: Option<Vec<u8>>,
    /// The hash of the sizes that the source names, where it names any.
    pub(crate) extents: Option<SubgraphHash>,
}

/// What the similarity of two tasks rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SimilarityBasis {
    /// Their graphs share subgraphs.
    Structure,
    /// Each is a single operator, the same one, on inputs with the same numbers of dimensions, whatever is moved or indexed around
    /// it.
    Operator,
}

impl Structure {
    /// Reads a module's source without running it.
    pub fn of(source: &str) -> Result<Self, TaskError> {
        let module = parse(source);
        let traced = trace(&module).ok_or(TaskError::NoForward)?;
        Ok(Self {
            extents: extents::hash(source),
            ..Self::from_trace(&traced)
        })
    }

    fn from_trace(traced: &TracedModule) -> Self {
        let graph = &traced.graph;
        // Every node's hash at each depth: of its label alone, then of the label and its operands' hashes one depth lower.
        let mut depths: Vec<Vec<SubgraphHash>> = Vec::new();
        for depth in 0..=DEPTH {
            let hashes = graph.nodes.iter().map(|node| {
                let mut operands: Vec<SubgraphHash> = match depths.last() {
                    Some(below) => node.operands.iter().map(|&id| below[id]).collect(),
                    None => Vec::new(),
                };
                if is_commutative(&node.label) {
                    operands.sort_unstable();
                }
                subgraph_hash(depth, &node.label, &operands)
            });
            let hashes = hashes.collect();
            depths.push(hashes);
        }
        let mut subgraphs = BTreeMap::new();
        let mut leaves = BTreeMap::new();
        let mut operators = Vec::new();
        for id in reachable(graph, &traced.returned) {
            let node = &graph.nodes[id];
            if node.operands.is_empty() {
                let kind = match node.label.as_str() {
                    "constant" => continue,
                    kind @ ("input" | "weight") => kind,
                    _ => "made",
                };
                *leaves.entry(kind).or_insert(0) += 1;
                continue;
            }
            for hashes in &depths {
                *subgraphs.entry(hashes[id]).or_insert(0) += 1;
            }
            if graph.is_operator(id) {
                operators.push(depths[0][id]);
            }
        }
        // Inputs and weights count by their number only: one by itself says little.
        for (kind, count) in leaves {
            subgraphs.insert(subgraph_hash(0, kind, &[count]), 1);
        }
        Self {
            subgraphs: subgraphs.into_iter().collect(),
            operators: operators.len() as u32,
            only_operator: match operators[..] {
                [only] => Some(only),
                _ => None,
            },
            input_ranks: traced.ranks.clone(),
            extents: None,
        }
    }

    /// From 0 (nothing in common) to 1 (equal except for names and numbers). Symmetric.
    pub fn similarity(&self, other: &Self) -> f64 {
        self.compare(other).0
    }

    /// [`Structure::similarity`] and what it rests on.
    pub fn compare(&self, other: &Self) -> (f64, SimilarityBasis) {
        if self.is_same_operator(other) {
            return (1.0, SimilarityBasis::Operator);
        }
        (self.dice_coefficient(other), SimilarityBasis::Structure)
    }

    /// The number of operators that the module applies.
    pub fn operators(&self) -> usize {
        self.operators as usize
    }

    fn is_same_operator(&self, other: &Self) -> bool {
        let same_ranks = match (&self.input_ranks, &other.input_ranks) {
            (Some(left), Some(right)) => left == right,
            // If in doubt they are the same: rather drop a task than keep the benchmark's own.
            _ => true,
        };
        self.only_operator.is_some() && self.only_operator == other.only_operator && same_ranks
    }

    /// Whether both are one operator, the same one, in different sizes or on inputs of other numbers of dimensions. Sizes that
    /// are not known are different from all.
    pub fn is_same_operator_in_other_sizes(&self, other: &Self) -> bool {
        let same_operator =
            self.only_operator.is_some() && self.only_operator == other.only_operator;
        let same_sizes = self.extents.is_some() && self.extents == other.extents;
        same_operator && !(same_sizes && self.is_same_operator(other))
    }

    /// Dice's coefficient of the two multisets of subgraphs.
    fn dice_coefficient(&self, other: &Self) -> f64 {
        let all = self.size() + other.size();
        if all == 0 {
            return 1.0;
        }
        let mut common = 0_u64;
        let mut others = other.subgraphs.iter().peekable();
        for &(hash, count) in &self.subgraphs {
            while others.next_if(|(other, _)| *other < hash).is_some() {}
            if let Some(&(_, other_count)) = others.next_if(|(other, _)| *other == hash) {
                common += u64::from(count.min(other_count));
            }
        }
        2.0 * common as f64 / all as f64
    }

    fn size(&self) -> u64 {
        self.subgraphs
            .iter()
            .map(|(_, count)| u64::from(*count))
            .sum()
    }
}

/// The nodes that the results depend on. What is computed and thrown away does not count.
fn reachable(graph: &Graph, returned: &[NodeId]) -> Vec<NodeId> {
    let mut seen = vec![false; graph.nodes.len()];
    let mut open = returned.to_vec();
    while let Some(id) = open.pop() {
        if !std::mem::replace(&mut seen[id], true) {
            open.extend(&graph.nodes[id].operands);
        }
    }
    (0..seen.len()).filter(|&id| seen[id]).collect()
}

fn subgraph_hash(depth: SubgraphHash, label: &str, operands: &[SubgraphHash]) -> SubgraphHash {
    let mut hasher = blake3::Hasher::new();
    // The length comes first, so that no label can pass for another label and its operands.
    hasher.update(&(label.len() as u64).to_le_bytes());
    hasher.update(label.as_bytes());
    for operand in operands {
        hasher.update(&operand.to_le_bytes());
    }
    let [first, second, third, fourth, ..] = *hasher.finalize().as_bytes();
    u32::from_le_bytes([first, second, third, fourth]) & !DEPTH_BITS | depth
}
