//! How alike two modules are, by what they compute.
//!
//! `Model.__init__` and `Model.forward` are read as a graph of operators (see `reading`). What is compared is the
//! multiset of the graph's small parts: each operator alone, with what it is applied to, and with what that is applied
//! to. Only hashes of them are kept, so that a benchmark can be recognised by those who do not have its text.

mod graph;
mod operators;
mod reading;
mod value;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use graph::{Graph, Place};
use operators::is_commutative;
use reading::{Reading, read};
use warpsmith_tasks::TaskError;
use warpsmith_tasks::python::parse;

/// Above this two tasks are near-twins, as in CUDA Agent.
pub const NEAR: f64 = 0.9;

/// How far down an operator's operands are looked at.
const DEPTH: Part = 2;

/// A hash. Its two lowest bits are how deep the part is.
pub(crate) type Part = u32;
const DEPTH_BITS: Part = 3;

/// Whether two structures that are alike at all must share a part such as this one. With `n` operators and at most three
/// counts of leaves, those without a common one are no more alike than `(n + 3) / (3 n + 3)`.
pub(crate) fn is_telling(part: Part) -> bool {
    part & DEPTH_BITS > 0
}

/// What a module computes, as hashes of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Structure {
    /// Parts of the graph and how often each is there, in ascending order.
    pub(crate) parts: Vec<(Part, u32)>,
    /// How many operators there are.
    pub(crate) operators: u32,
    /// The operator, where there is but one.
    pub(crate) only: Option<Part>,
    /// Dimensions of each input tensor; `None` where the text does not tell.
    pub(crate) ranks: Option<Vec<u8>>,
}

/// Why two tasks are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Their graphs are.
    Structure,
    /// Each is one operator, the same, on inputs of the same number of dimensions, whatever else they do around it.
    Operator,
}

impl Structure {
    /// Reads a module's text; nothing of it is run.
    pub fn of(source: &str) -> Result<Self, TaskError> {
        let module = parse(source);
        let reading = read(&module).ok_or(TaskError::NoForward)?;
        Ok(Self::from_reading(&reading))
    }

    fn from_reading(reading: &Reading) -> Self {
        let graph = &reading.graph;
        // Every node's part of each depth: the label alone, then with the parts of its operands one depth less.
        let mut depths: Vec<Vec<Part>> = Vec::new();
        for depth in 0..=DEPTH {
            let parts = graph.nodes.iter().map(|node| {
                let mut operands: Vec<Part> = match depths.last() {
                    Some(below) => node.operands.iter().map(|&place| below[place]).collect(),
                    None => Vec::new(),
                };
                if is_commutative(&node.label) {
                    operands.sort_unstable();
                }
                part(depth, &node.label, &operands)
            });
            let parts = parts.collect();
            depths.push(parts);
        }
        let mut parts = BTreeMap::new();
        let mut leaves = BTreeMap::new();
        let mut operators = Vec::new();
        for place in reached(graph, &reading.returned) {
            let node = &graph.nodes[place];
            if node.operands.is_empty() {
                let kind = match node.label.as_str() {
                    "constant" => continue,
                    kind @ ("input" | "weight") => kind,
                    _ => "made",
                };
                *leaves.entry(kind).or_insert(0) += 1;
                continue;
            }
            for parts_of_depth in &depths {
                *parts.entry(parts_of_depth[place]).or_insert(0) += 1;
            }
            if graph.is_operator(place) {
                operators.push(depths[0][place]);
            }
        }
        // An input or a weight by itself says little; how many there are says something.
        for (kind, count) in leaves {
            parts.insert(part(0, kind, &[count]), 1);
        }
        Self {
            parts: parts.into_iter().collect(),
            operators: operators.len() as u32,
            only: match operators[..] {
                [only] => Some(only),
                _ => None,
            },
            ranks: reading.ranks.clone(),
        }
    }

    /// From 0, nothing in common, to 1, the same but for names and numbers. Symmetric.
    pub fn similarity(&self, other: &Self) -> f64 {
        self.compare(other).0
    }

    /// [`Structure::similarity`] and what it rests on.
    pub fn compare(&self, other: &Self) -> (f64, Why) {
        if self.is_same_operator(other) {
            return (1.0, Why::Operator);
        }
        (self.shared(other), Why::Structure)
    }

    /// How many operators it applies.
    pub fn operators(&self) -> usize {
        self.operators as usize
    }

    fn is_same_operator(&self, other: &Self) -> bool {
        let same_ranks = match (&self.ranks, &other.ranks) {
            (Some(left), Some(right)) => left == right,
            // Better one task too few than the benchmark's own.
            _ => true,
        };
        self.only.is_some() && self.only == other.only && same_ranks
    }

    /// The share of parts that both have (Dice's coefficient of the multisets).
    fn shared(&self, other: &Self) -> f64 {
        let all = self.size() + other.size();
        if all == 0 {
            return 1.0;
        }
        let mut common = 0_u64;
        let mut others = other.parts.iter().peekable();
        for &(part, count) in &self.parts {
            while others.next_if(|(other, _)| *other < part).is_some() {}
            if let Some(&(_, other_count)) = others.next_if(|(other, _)| *other == part) {
                common += u64::from(count.min(other_count));
            }
        }
        2.0 * common as f64 / all as f64
    }

    fn size(&self) -> u64 {
        self.parts.iter().map(|(_, count)| u64::from(*count)).sum()
    }
}

/// What the results rest on: what is computed and thrown away is no part of a task.
fn reached(graph: &Graph, returned: &[Place]) -> Vec<Place> {
    let mut seen = vec![false; graph.nodes.len()];
    let mut open = returned.to_vec();
    while let Some(place) = open.pop() {
        if !std::mem::replace(&mut seen[place], true) {
            open.extend(&graph.nodes[place].operands);
        }
    }
    (0..seen.len()).filter(|&place| seen[place]).collect()
}

fn part(depth: Part, label: &str, operands: &[Part]) -> Part {
    let mut hasher = blake3::Hasher::new();
    // The length first, so that no label can pass for another and its operands.
    hasher.update(&(label.len() as u64).to_le_bytes());
    hasher.update(label.as_bytes());
    for operand in operands {
        hasher.update(&operand.to_le_bytes());
    }
    let [first, second, third, fourth, ..] = *hasher.finalize().as_bytes();
    u32::from_le_bytes([first, second, third, fourth]) & !DEPTH_BITS | depth
}
