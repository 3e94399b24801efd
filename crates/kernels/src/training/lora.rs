//! The layout of LoRA's matrices: `y = W·x + scale · B·(A·x)`.
//!
//! Projections that are fused into one parameter share one product with A: their A matrices are stacked. Their B matrices form one
//! block-diagonal matrix: a row of the parameter has its own projection's columns, and zeros in those of the others. The rank is padded
//! to a multiple of [`VEC`]; padding is zero and stays zero, since the gradient of each matrix is a product with the other.

use std::ops::Range;

use super::layout::{ModelShape, Parameter, Projection};
use crate::VEC;

/// Rank, scale and target projections of an adapter, the same in each layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraSpec {
    pub rank: usize,
    pub scale: f32,
    pub targets: Vec<Projection>,
}

/// Width of the rows between A and B, for each parameter of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoraWidths {
    pub qkv: usize,
    pub attention_output: usize,
    pub gate_and_up: usize,
    pub down: usize,
}

impl LoraWidths {
    pub(super) fn widest(self) -> usize {
        let Self {
            qkv,
            attention_output,
            gate_and_up,
            down,
        } = self;
        qkv.max(attention_output).max(gate_and_up).max(down)
    }

    /// The larger of each.
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

/// Where the matrices of an adapter lie in one vector: layer by layer, the two of a parameter together.
#[derive(Debug, Clone)]
pub struct LoraLayout {
    shape: ModelShape,
    rank: usize,
    /// With padding.
    padded_rank: usize,
    targets: Vec<Projection>,
    /// Elements of a layer.
    layer_len: usize,
}

/// The two matrices of one parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LoraSlices {
    /// `width x inputs`.
    pub(super) a: Range<usize>,
    /// `outputs x width`.
    pub(super) b: Range<usize>,
    /// Columns of B.
    pub(super) width: usize,
}

impl LoraLayout {
    pub fn new(shape: ModelShape, spec: &LoraSpec) -> Self {
        let mut targets = spec.targets.clone();
        targets.sort_unstable();
        targets.dedup();
        let mut layout = Self {
            shape,
            rank: spec.rank,
            padded_rank: spec.rank.next_multiple_of(VEC),
            targets,
            layer_len: 0,
        };
        layout.layer_len = Parameter::matrices(0)
            .into_iter()
            .map(|of| layout.sizes(of).iter().sum::<usize>())
            .sum();
        layout
    }

    /// Elements of all matrices.
    #[expect(clippy::len_without_is_empty, reason = "no layout is empty")]
    pub fn len(&self) -> usize {
        self.shape.layers * self.layer_len
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Width of the rows between A and B.
    pub fn widths(&self) -> LoraWidths {
        LoraWidths {
            qkv: self.width(Parameter::Qkv(0)),
            attention_output: self.width(Parameter::AttentionOutput(0)),
            gate_and_up: self.width(Parameter::GateUp(0)),
            down: self.width(Parameter::Down(0)),
        }
    }

    /// The range of a row of a projection's A, which has `rank` rows.
    pub fn a_row(&self, layer: usize, projection: Projection, row: usize) -> Option<Range<usize>> {
        let of = projection.parameter(layer);
        let inputs = of.columns(&self.shape);
        let start = self.slices(of)?.a.start + (self.column(projection)? + row) * inputs;
        Some(start..start + inputs)
    }

    /// Where a row of a projection's B begins: `rank` elements for each output.
    pub fn b_row(&self, layer: usize, projection: Projection, row: usize) -> Option<usize> {
        let slices = self.slices(projection.parameter(layer))?;
        let row = projection.row(&self.shape, row);
        Some(slices.b.start + row * slices.width + self.column(projection)?)
    }

    pub(super) fn slices(&self, of: Parameter) -> Option<LoraSlices> {
        let (layer, before) = match of {
            Parameter::Qkv(layer) => (layer, 0),
            Parameter::AttentionOutput(layer) => (layer, 1),
            Parameter::GateUp(layer) => (layer, 2),
            Parameter::Down(layer) => (layer, 3),
            _ => return None,
        };
        let width = self.width(of);
        if width == 0 {
            return None;
        }
        let before = Parameter::matrices(layer).into_iter().take(before);
        let before: usize = before.flat_map(|one| self.sizes(one)).sum();
        let start = layer * self.layer_len + before;
        let [a, b] = self.sizes(of);
        Some(LoraSlices {
            a: start..start + a,
            b: start + a..start + a + b,
            width,
        })
    }

    /// The diagonal blocks of B where several projections share a parameter: each projection's columns.
    pub(super) fn blocks(&self) -> Vec<(Projection, Range<usize>)> {
        let shared = |projection: &&Projection| projection.parameter(0).projections().len() > 1;
        let projections = self.targets.iter().filter(shared);
        projections
            .filter_map(|projection| {
                let start = self.column(*projection)?;
                Some((*projection, start..start + self.padded_rank))
            })
            .collect()
    }

    /// The projection's first column of B.
    fn column(&self, projection: Projection) -> Option<usize> {
        let mut sharing = self.of(projection.parameter(0));
        Some(sharing.position(|other| other == projection)? * self.padded_rank)
    }

    /// Targets that are rows of this parameter.
    fn of(&self, parameter: Parameter) -> impl Iterator<Item = Projection> + '_ {
        let projections = parameter.projections().iter().copied();
        projections.filter(move |projection| self.targets.contains(projection))
    }

    fn width(&self, of: Parameter) -> usize {
        self.of(of).count() * self.padded_rank
    }

    fn sizes(&self, of: Parameter) -> [usize; 2] {
        let outputs = of
            .projections()
            .iter()
            .map(|projection| projection.rows(&self.shape));
        let width = self.width(of);
        [
            width * of.columns(&self.shape),
            outputs.sum::<usize>() * width,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::super::layout::tests::shape;
    use super::*;

    fn layout(rank: usize, targets: &[Projection]) -> LoraLayout {
        LoraLayout::new(
            shape(),
            &LoraSpec {
                rank,
                scale: 2.0,
                targets: targets.to_vec(),
            },
        )
    }

    #[test]
    fn matrices_follow_each_other_without_gaps() {
        for targets in [
            &Projection::ALL[..],
            &[Projection::Value, Projection::Query],
            &[Projection::Down],
        ] {
            let layout = layout(5, targets);
            let mut next = 0;
            for layer in 0..shape().layers {
                for parameter in Parameter::matrices(layer) {
                    let Some(slices) = layout.slices(parameter) else {
                        continue;
                    };
                    assert_eq!(slices.a.start, next, "{parameter:?}");
                    assert_eq!(slices.b.start, slices.a.end, "{parameter:?}");
                    assert!(slices.b.start.is_multiple_of(VEC));
                    assert!(
                        slices.width.is_multiple_of(VEC)
                            && slices.width <= layout.widths().widest()
                    );
                    next = slices.b.end;
                }
            }
            assert_eq!(next, layout.len());
        }
    }

    #[test]
    fn rows_of_projections_do_not_overlap_and_stay_within_their_parameter() {
        let layout = layout(8, &Projection::ALL);
        let mut taken = vec![false; layout.len()];
        for layer in 0..shape().layers {
            for projection in Projection::ALL {
                let slices = layout.slices(projection.parameter(layer)).unwrap();
                for row in 0..8 {
                    let place = layout.a_row(layer, projection, row).unwrap();
                    assert!(slices.a.start <= place.start && place.end <= slices.a.end);
                    assert!(!taken[place.clone()].contains(&true));
                    taken[place].fill(true);
                }
                for row in 0..projection.rows(&shape()) {
                    let start = layout.b_row(layer, projection, row).unwrap();
                    assert!(slices.b.start <= start && start + 8 <= slices.b.end);
                    assert!(!taken[start..start + 8].contains(&true));
                    taken[start..start + 8].fill(true);
                }
            }
        }
        // The rest is outside the diagonal blocks.
        let outside: usize = shape().layers * (2 * 8 * (256 + 2 * 128) + 8 * 2 * 96);
        assert_eq!(taken.iter().filter(|one| !**one).count(), outside);
        assert_eq!(
            layout.blocks(),
            [
                (Projection::Query, 0..8),
                (Projection::Key, 8..16),
                (Projection::Value, 16..24),
                (Projection::Gate, 0..8),
                (Projection::Up, 8..16),
            ]
        );
    }

    #[test]
    fn only_targets_have_columns() {
        let layout = layout(3, &[Projection::Value, Projection::Up]);
        assert_eq!(layout.a_row(0, Projection::Query, 0), None);
        assert_eq!(layout.b_row(0, Projection::Down, 0), None);
        assert_eq!(
            layout.blocks(),
            [(Projection::Value, 0..8), (Projection::Up, 0..8)]
        );
        let widths = LoraWidths {
            qkv: 8,
            gate_and_up: 8,
            ..LoraWidths::default()
        };
        assert_eq!(layout.widths(), widths);
    }
}
