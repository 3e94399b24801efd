use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::OpGraph;

/// Count up when the same graph gets other mutants: kill rates that were measured before are then of other mistakes.
pub const MUTANTS_VERSION: u32 = 1;

/// Makes mistakes in a graph on purpose: a judge's draws are as good as the share of them that they refuse.
pub trait Mutants: Send + Sync {
    /// Each differs from `graph` in one mistake. The same graph has the same mutants.
    fn of(&self, graph: &OpGraph) -> Vec<Mutant>;
}

/// A graph with one mistake.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mutant {
    pub kind: MutantKind,
    /// The value of the original graph that is computed otherwise.
    pub place: usize,
    /// What is wrong, in a few words.
    pub what: String,
    pub graph: OpGraph,
    /// Entries of the state dict that are read as they were when the module was first loaded.
    pub stale: Vec<String>,
    /// Why no input can tell it from the original, where that is so.
    pub equivalent: Option<String>,
}

/// What kind of mistake.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum MutantKind {
    /// One operand of a sum, product, quotient or choice is not there.
    TermDropped,
    /// An operator that keeps its operand's shape is left out.
    OperatorDropped,
    /// An optional bias or weight is not there.
    BiasDropped,
    /// An epsilon is zero, or ten times as large.
    EpsilonChanged,
    /// Another number in the module's text is off by a hundredth.
    ConstantChanged,
    /// A flag, a mode or a whole number is another.
    OptionChanged,
    /// Along another dimension, or a matrix is read transposed.
    AxisSwapped,
    /// The operands stand in the other order.
    OperandsSwapped,
    /// The last elements along a dimension are zeros.
    TailCut,
    /// A sum, product or maximum ends before its last elements.
    AccumulationCut,
    /// Elements are read one place further on.
    Shifted,
    /// Operands or results are rounded to a half type.
    LowerPrecision,
    /// A formula that overflows where the right one does not.
    Unstable,
    /// A part of the state is a constant: as a module starts with it, or as it was when it was loaded.
    StateFolded,
}

impl MutantKind {
    pub const ALL: [Self; 14] = [
        Self::TermDropped,
        Self::OperatorDropped,
        Self::BiasDropped,
        Self::EpsilonChanged,
        Self::ConstantChanged,
        Self::OptionChanged,
        Self::AxisSwapped,
        Self::OperandsSwapped,
        Self::TailCut,
        Self::AccumulationCut,
        Self::Shifted,
        Self::LowerPrecision,
        Self::Unstable,
        Self::StateFolded,
    ];

    /// The word used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::TermDropped => "term_dropped",
            Self::OperatorDropped => "operator_dropped",
            Self::BiasDropped => "bias_dropped",
            Self::EpsilonChanged => "epsilon_changed",
            Self::ConstantChanged => "constant_changed",
            Self::OptionChanged => "option_changed",
            Self::AxisSwapped => "axis_swapped",
            Self::OperandsSwapped => "operands_swapped",
            Self::TailCut => "tail_cut",
            Self::AccumulationCut => "accumulation_cut",
            Self::Shifted => "shifted",
            Self::LowerPrecision => "lower_precision",
            Self::Unstable => "unstable",
            Self::StateFolded => "state_folded",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_called_as_in_json() {
        for kind in MutantKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }
}
