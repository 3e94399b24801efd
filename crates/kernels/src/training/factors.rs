//! Where low-rank matrices lie that learn beside a model's own: `y = W·x + scale · B·(A·x)`.
//!
//! Parts of one parameter have their A one below the other, so that one product makes what goes into all their B. These are one
//! matrix, a row for each row of the parameter: it has numbers in its own part's columns and zeros in the others'. A rank is
//! rounded up to what kernels read at once; rows and columns beyond it are zeros and stay so, since each is the other's slope.

use std::ops::Range;

use super::layout::{Parameter, Part, Shape};
use crate::AT_ONCE;

/// What learns beside a frozen model, the same in each layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRank {
    pub rank: usize,
    pub scale: f32,
    pub beside: Vec<Part>,
}

/// How many numbers low-rank matrices make of a row in between, beside each matrix of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Between {
    pub qkv: usize,
    pub attention_output: usize,
    pub gate_and_up: usize,
    pub down: usize,
}

impl Between {
    pub(super) fn widest(self) -> usize {
        let Self {
            qkv,
            attention_output,
            gate_and_up,
            down,
        } = self;
        qkv.max(attention_output).max(gate_and_up).max(down)
    }

    /// Enough for both.
    #[must_use]
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            qkv: self.qkv.max(other.qkv),
            attention_output: self.attention_output.max(other.attention_output),
            gate_and_up: self.gate_and_up.max(other.gate_and_up),
            down: self.down.max(other.down),
        }
    }
}

/// Where all of them lie: layer after layer, the matrices of a parameter together.
#[derive(Debug, Clone)]
pub struct Factors {
    shape: Shape,
    rank: usize,
    beside: Vec<Part>,
    /// Numbers of a layer.
    layer: usize,
}

/// The matrices beside one parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pair {
    /// `width x inputs`.
    pub(super) a: Range<usize>,
    /// `outputs x width`.
    pub(super) b: Range<usize>,
    /// Numbers between the two.
    pub(super) width: usize,
}

impl Factors {
    pub fn new(shape: Shape, low_rank: &LowRank) -> Self {
        let mut beside = low_rank.beside.clone();
        beside.sort_unstable();
        beside.dedup();
        let mut factors = Self {
            shape,
            rank: low_rank.rank.next_multiple_of(AT_ONCE),
            beside,
            layer: 0,
        };
        factors.layer = Parameter::matrices(0)
            .into_iter()
            .map(|of| factors.sizes(of).iter().sum::<usize>())
            .sum();
        factors
    }

    /// How many numbers there are.
    pub fn count(&self) -> usize {
        self.shape.layers * self.layer
    }

    /// How many numbers there are between two of them.
    pub fn between(&self) -> Between {
        Between {
            qkv: self.width(Parameter::Qkv(0)),
            attention_output: self.width(Parameter::AttentionOutput(0)),
            gate_and_up: self.width(Parameter::GateAndUp(0)),
            down: self.width(Parameter::Down(0)),
        }
    }

    /// Where a part's row of A is: `rank` of them have the inputs' numbers.
    pub fn a_row(&self, layer: usize, part: Part, row: usize) -> Option<Range<usize>> {
        let of = part.parameter(layer);
        let inputs = of.inputs(&self.shape);
        let start = self.pair(of)?.a.start + (self.column(part)? + row) * inputs;
        Some(start..start + inputs)
    }

    /// Where a part's row of B begins, which has the rank's numbers: there is one for each output.
    pub fn b_row(&self, layer: usize, part: Part, row: usize) -> Option<usize> {
        let pair = self.pair(part.parameter(layer))?;
        let row = part.row(&self.shape, row);
        Some(pair.b.start + row * pair.width + self.column(part)?)
    }

    pub(super) fn pair(&self, of: Parameter) -> Option<Pair> {
        let (layer, before) = match of {
            Parameter::Qkv(layer) => (layer, 0),
            Parameter::AttentionOutput(layer) => (layer, 1),
            Parameter::GateAndUp(layer) => (layer, 2),
            Parameter::Down(layer) => (layer, 3),
            _ => return None,
        };
        let width = self.width(of);
        if width == 0 {
            return None;
        }
        let before = Parameter::matrices(layer).into_iter().take(before);
        let before: usize = before.flat_map(|one| self.sizes(one)).sum();
        let start = layer * self.layer + before;
        let [a, b] = self.sizes(of);
        Some(Pair {
            a: start..start + a,
            b: start + a..start + a + b,
            width,
        })
    }

    /// Parts of parameters of which other parts have other columns, and their columns.
    pub(super) fn blocks(&self) -> Vec<(Part, Range<usize>)> {
        let shared = |part: &&Part| part.parameter(0).parts().len() > 1;
        let parts = self.beside.iter().filter(shared);
        parts
            .filter_map(|part| {
                let start = self.column(*part)?;
                Some((*part, start..start + self.rank))
            })
            .collect()
    }

    /// First column that is the part's own.
    fn column(&self, part: Part) -> Option<usize> {
        let number = self.of(part.parameter(0)).position(|other| other == part)?;
        Some(number * self.rank)
    }

    fn of(&self, parameter: Parameter) -> impl Iterator<Item = Part> + '_ {
        let parts = parameter.parts().iter().copied();
        parts.filter(move |part| self.beside.contains(part))
    }

    fn width(&self, of: Parameter) -> usize {
        self.of(of).count() * self.rank
    }

    fn sizes(&self, of: Parameter) -> [usize; 2] {
        let outputs = of.parts().iter().map(|part| part.rows(&self.shape));
        let width = self.width(of);
        [
            width * of.inputs(&self.shape),
            outputs.sum::<usize>() * width,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::shape;
    use super::*;

    fn factors(rank: usize, beside: &[Part]) -> Factors {
        Factors::new(
            shape(),
            &LowRank {
                rank,
                scale: 2.0,
                beside: beside.to_vec(),
            },
        )
    }

    #[test]
    fn factors_lie_one_after_the_other_without_gaps() {
        for beside in [&Part::ALL[..], &[Part::Value, Part::Query], &[Part::Down]] {
            let factors = factors(5, beside);
            let mut next = 0;
            for layer in 0..shape().layers {
                for parameter in Parameter::matrices(layer) {
                    let Some(pair) = factors.pair(parameter) else {
                        continue;
                    };
                    assert_eq!(pair.a.start, next, "{parameter:?}");
                    assert_eq!(pair.b.start, pair.a.end, "{parameter:?}");
                    assert!(pair.b.start.is_multiple_of(AT_ONCE));
                    assert!(
                        pair.width.is_multiple_of(AT_ONCE)
                            && pair.width <= factors.between().widest()
                    );
                    next = pair.b.end;
                }
            }
            assert_eq!(next, factors.count());
        }
    }

    #[test]
    fn rows_of_parts_are_apart_and_within_their_parameter() {
        let factors = factors(8, &Part::ALL);
        let mut taken = vec![false; factors.count()];
        for layer in 0..shape().layers {
            for part in Part::ALL {
                let pair = factors.pair(part.parameter(layer)).unwrap();
                for row in 0..8 {
                    let place = factors.a_row(layer, part, row).unwrap();
                    assert!(pair.a.start <= place.start && place.end <= pair.a.end);
                    assert!(!taken[place.clone()].contains(&true));
                    taken[place].fill(true);
                }
                for row in 0..part.rows(&shape()) {
                    let start = factors.b_row(layer, part, row).unwrap();
                    assert!(pair.b.start <= start && start + 8 <= pair.b.end);
                    assert!(!taken[start..start + 8].contains(&true));
                    taken[start..start + 8].fill(true);
                }
            }
        }
        // What is left is beside the blocks.
        let beside: usize = shape().layers * (2 * 8 * (256 + 2 * 128) + 8 * 2 * 96);
        assert_eq!(taken.iter().filter(|one| !**one).count(), beside);
        assert_eq!(
            factors.blocks(),
            [
                (Part::Query, 0..8),
                (Part::Key, 8..16),
                (Part::Value, 16..24),
                (Part::Gate, 0..8),
                (Part::Up, 8..16),
            ]
        );
    }

    #[test]
    fn only_what_is_asked_for_has_columns() {
        let factors = factors(3, &[Part::Value, Part::Up]);
        assert_eq!(factors.a_row(0, Part::Query, 0), None);
        assert_eq!(factors.b_row(0, Part::Down, 0), None);
        assert_eq!(factors.blocks(), [(Part::Value, 0..8), (Part::Up, 0..8)]);
        let between = Between {
            qkv: 8,
            gate_and_up: 8,
            ..Between::default()
        };
        assert_eq!(factors.between(), between);
    }
}
