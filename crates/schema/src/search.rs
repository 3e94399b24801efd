//! What a search writes into its run's log (`evolve`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Number, Usage};

/// A candidate as it was written. Its verdict is the `judged` event whose sample has its number.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProposedCandidate {
    /// From one.
    pub number: u32,
    /// Which island it belongs to, from zero.
    pub island: u32,
    pub made_by: SearchMove,
    /// The strategy that was asked for, or the parameters that were changed.
    pub detail: Option<String>,
    /// Numbers of the candidates it was made from; none for what the search starts from.
    pub parents: Vec<u32>,
    /// The policy that wrote it; null where none was asked.
    pub policy: Option<String>,
    /// Relative path to content. Null where there is nothing to judge.
    pub files: Option<BTreeMap<String, String>>,
    /// Why there is nothing to judge.
    pub unusable: Option<String>,
    /// The candidate with the same source apart from comments and spaces: it is not judged again.
    pub duplicate_of: Option<u32>,
    pub usage: Usage,
    pub dollars: f64,
    /// How long the policy took, in tenths of a second: a choice that depends on it can be made again.
    pub reply_seconds: f64,
}

/// How a candidate came about.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum SearchMove {
    /// It was there before: the compiler's, or the user's.
    Start,
    /// Parameters found in the source were changed; no policy is asked.
    Tune,
    /// Parameters of two candidates whose sources differ in nothing else; no policy is asked.
    Mix,
    /// A policy changed places of the parent.
    Diff,
    /// A policy wrote it again by a strategy.
    Rewrite,
    /// A policy combined two parents.
    Crossover,
    /// A policy mended one that nearly passed.
    Repair,
}

impl SearchMove {
    /// The word used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Tune => "tune",
            Self::Mix => "mix",
            Self::Diff => "diff",
            Self::Rewrite => "rewrite",
            Self::Crossover => "crossover",
            Self::Repair => "repair",
        }
    }
}

/// Where a passed candidate came to lie in the archive of an island.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CandidatePlace {
    pub candidate: u32,
    pub island: u32,
    /// The cell, as its measured descriptors name it.
    pub cell: ArchiveCell,
    /// Whether it is the fastest of its cell so far.
    pub kept: bool,
    /// The candidate it took the place of.
    pub replaced: Option<u32>,
}

/// A cell of the archive: what candidates in it have in common.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct ArchiveCell {
    /// Its time over the lowest time that the roofline allows, such as `2-4x`; `unknown` without a profile.
    pub roofline: String,
    /// Kernels and library calls of a forward pass, as the source has them.
    pub launches: String,
    /// Registers of its largest kernel, as the compiler reports them; `unknown` on a CPU.
    pub registers: String,
    /// Static shared memory of its largest kernel; `unknown` on a CPU.
    pub shared: String,
    /// Its precision class.
    pub precision: String,
}

impl std::fmt::Display for ArchiveCell {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{} of the roofline, {} launches, {} registers, {} shared, {}",
            self.roofline, self.launches, self.registers, self.shared, self.precision
        )
    }
}

/// Where the time of the reference goes, measured once before the search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReferenceBound {
    /// `memory` or `compute`.
    pub bound: String,
    /// The lowest time that the roofline allows.
    pub floor_us: Number,
    /// Operators that take the time, largest first.
    pub operators: Vec<String>,
}
