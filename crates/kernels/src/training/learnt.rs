//! A model's weights, which of them learn, and products with them.

use std::ops::Range;
use std::rc::Rc;

use super::factors::{Factors, LowRank};
use super::frozen::Frozen;
use super::layout::{Layout, Parameter, Shape};
use super::rows::Adding;
use super::step::Parameters;
use crate::{AT_ONCE, Buffer, Gpu, GpuError, Sum, View, ViewMut, bf16};

/// What of a model learns, and the numbers it begins with.
pub enum Learns<'a> {
    /// All of it; the numbers lie as the layout says.
    All { layout: Layout, weights: &'a [f32] },
    /// Low-rank matrices beside a model that does not; theirs lie as [`Factors`] says.
    Beside {
        frozen: Rc<Frozen>,
        low_rank: &'a LowRank,
        numbers: &'a [f32],
    },
}

impl Learns<'_> {
    pub(super) fn shape(&self) -> &Shape {
        match self {
            Self::All { layout, .. } => layout.shape(),
            Self::Beside { frozen, .. } => frozen.layout().shape(),
        }
    }
}

/// Numbers of a head that makes values: a matrix, of which the first row counts and the others are zeros, so that products
/// like its size; then its bias, and zeros.
pub fn value_head(shape: &Shape) -> usize {
    AT_ONCE * shape.hidden + AT_ONCE
}

pub(super) struct Learnt {
    pub(super) layout: Layout,
    pub(super) parameters: Parameters,
    /// Numbers of a head of its own; they come first.
    front: usize,
    beside: Option<Beside>,
}

struct Beside {
    frozen: Rc<Frozen>,
    factors: Factors,
    scale: f32,
    masks: Vec<Mask>,
}

/// A part's columns of its parameter's B: rows of other parts have zeros there.
struct Mask {
    parameter: fn(usize) -> Parameter,
    columns: Range<usize>,
    /// One a row: whether it is the part's.
    rows: Buffer<f32>,
}

fn belongs(numbers: &[f32], wanted: usize) -> Result<(), GpuError> {
    let found = numbers.len();
    if found == wanted {
        return Ok(());
    }
    Err(GpuError::OtherState { found, wanted })
}

impl Learnt {
    /// `head` has the numbers of a head of its own, or none.
    pub(super) fn new(gpu: &Gpu, learns: &Learns<'_>, head: &[f32]) -> Result<Self, GpuError> {
        let front = head.len();
        let (layout, numbers, decays_from, beside) = match learns {
            Learns::All { layout, weights } => {
                belongs(weights, layout.count())?;
                (layout.clone(), *weights, layout.decays_from(), None)
            }
            Learns::Beside {
                frozen,
                low_rank,
                numbers,
            } => {
                let beside = Beside::new(gpu, frozen, low_rank)?;
                belongs(numbers, beside.factors.count())?;
                (frozen.layout().clone(), *numbers, 0, Some(beside))
            }
        };
        let all = [head, numbers].concat();
        Ok(Self {
            layout,
            parameters: Parameters::new(gpu, &all, front + decays_from)?,
            front,
            beside,
        })
    }

    /// How many numbers learn.
    pub(super) fn count(&self) -> usize {
        self.parameters.weights.len()
    }

    /// Whether they are all there.
    pub(super) fn check(&self, numbers: &[f32]) -> Result<(), GpuError> {
        belongs(numbers, self.count())
    }

    /// One that rows are multiplied with.
    pub(super) fn matrix(&self, of: Parameter) -> View<'_, bf16> {
        match &self.beside {
            None => self.parameters.narrow.slice(self.place(of)),
            Some(beside) => beside.frozen.matrix(of),
        }
    }

    /// One that is read as it is.
    pub(super) fn vector(&self, of: Parameter) -> View<'_, f32> {
        match &self.beside {
            None => self.parameters.weights.slice(self.place(of)),
            Some(beside) => beside.frozen.vector(of),
        }
    }

    /// Where slopes of a parameter go, if it learns.
    pub(super) fn gradient(&mut self, of: Parameter) -> Option<ViewMut<'_, f32>> {
        let place = self.place(of);
        self.slopes(place)
    }

    /// The same of all norms, which lie together.
    pub(super) fn norm_gradients(&mut self) -> Option<ViewMut<'_, f32>> {
        let shape = self.layout.shape();
        let count = (2 * shape.layers + 1) * shape.hidden;
        self.slopes(self.front..self.front + count)
    }

    fn slopes(&mut self, place: Range<usize>) -> Option<ViewMut<'_, f32>> {
        match self.beside {
            None => Some(self.parameters.gradient.slice_mut(place)),
            Some(_) => None,
        }
    }

    fn place(&self, of: Parameter) -> Range<usize> {
        let place = self.layout.place(of);
        self.front + place.start..self.front + place.end
    }

    /// Whether it has a head that makes values.
    pub(super) fn makes_values(&self) -> bool {
        self.front > 0
    }

    /// What makes values.
    pub(super) fn value_matrix(&self) -> View<'_, bf16> {
        self.parameters.narrow.slice(self.value_rows())
    }

    pub(super) fn value_gradient(&mut self) -> ViewMut<'_, f32> {
        let place = self.value_rows();
        self.parameters.gradient.slice_mut(place)
    }

    pub(super) fn value_bias(&self) -> usize {
        self.value_rows().end
    }

    fn value_rows(&self) -> Range<usize> {
        0..AT_ONCE * self.layout.shape().hidden
    }

    /// `out = x · Wᵀ`, and what lies beside it. What is between low-rank matrices stays in `inner`.
    pub(super) fn forward(
        &self,
        gpu: &Gpu,
        of: Parameter,
        out: &mut Buffer<bf16>,
        x: &Buffer<bf16>,
        (inner, rows): (&mut Buffer<bf16>, usize),
    ) -> Result<(), GpuError> {
        let sizes = (rows, of.inputs(self.layout.shape()));
        let mut sum = Sum::PLAIN;
        // First, so that the whole is rounded once: on top of a rounded whole what is small would be lost.
        if let Some(low) = self.low(of) {
            gpu.linear_sum(inner, x, &low.a, sizes, low.times)?;
            gpu.linear(out, inner, &low.b, (rows, low.width))?;
            sum = Sum::ON_TOP;
        }
        gpu.linear_sum(out, x, &self.matrix(of), sizes, sum)
    }

    /// From slopes of what [`Self::forward`] made to slopes of what it read. Those of what is between low-rank matrices stay in
    /// `inner_slopes`.
    pub(super) fn back_to_inputs(
        &self,
        gpu: &Gpu,
        of: Parameter,
        out: &mut Buffer<bf16>,
        slopes: &Buffer<bf16>,
        (inner_slopes, rows): (&mut Buffer<bf16>, usize),
    ) -> Result<(), GpuError> {
        let sizes = (rows, of.inputs(self.layout.shape()));
        let mut sum = Sum::PLAIN;
        if let Some(low) = self.low(of) {
            let between = (rows, low.width);
            gpu.linear_back_to_inputs_sum(inner_slopes, slopes, &low.b, between, low.times)?;
            gpu.linear_back_to_inputs(out, inner_slopes, &low.a, sizes)?;
            sum = Sum::ON_TOP;
        }
        gpu.linear_back_to_inputs_sum(out, slopes, &self.matrix(of), sizes, sum)
    }

    /// And to slopes of what learns. `inner` and its slopes are what the other two left.
    pub(super) fn back_to_weights(
        &mut self,
        gpu: &Gpu,
        of: Parameter,
        (slopes, x): (&Buffer<bf16>, &Buffer<bf16>),
        (inner, inner_slopes, rows): (&Buffer<bf16>, &Buffer<bf16>, usize),
        adding: Adding,
    ) -> Result<(), GpuError> {
        let sizes = (rows, of.inputs(self.layout.shape()));
        if let Some(mut to) = self.gradient(of) {
            return gpu.linear_back_to_weights((&mut to, adding), slopes, x, sizes);
        }
        let Some(low) = self.low(of) else {
            return Ok(());
        };
        let (a, b, width) = (low.a_place, low.b_place, low.width);
        let gradient = &mut self.parameters.gradient;
        let mut to = gradient.slice_mut(b);
        gpu.linear_back_to_weights((&mut to, adding), slopes, inner, (rows, width))?;
        let mut to = gradient.slice_mut(a);
        gpu.linear_back_to_weights((&mut to, adding), inner_slopes, x, sizes)
    }

    /// Takes slopes away that are of no number: those beside a part's block.
    pub(super) fn mask(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        let Some(beside) = &self.beside else {
            return Ok(());
        };
        for layer in 0..self.layout.shape().layers {
            for mask in &beside.masks {
                let Some(pair) = beside.factors.pair((mask.parameter)(layer)) else {
                    continue;
                };
                let place = self.front + pair.b.start..self.front + pair.b.end;
                let mut slopes = self.parameters.gradient.slice_mut(place);
                let columns = (pair.width, mask.columns.clone());
                gpu.scale_rows(&mut slopes, columns, &mask.rows)?;
            }
        }
        Ok(())
    }

    fn low(&self, of: Parameter) -> Option<Low<'_>> {
        let beside = self.beside.as_ref()?;
        let pair = beside.factors.pair(of)?;
        let place = |place: &Range<usize>| self.front + place.start..self.front + place.end;
        let (a_place, b_place) = (place(&pair.a), place(&pair.b));
        Some(Low {
            a: self.parameters.narrow.slice(a_place.clone()),
            b: self.parameters.narrow.slice(b_place.clone()),
            a_place,
            b_place,
            width: pair.width,
            times: Sum::times(beside.scale),
        })
    }
}

/// Low-rank matrices beside a parameter.
struct Low<'a> {
    a: View<'a, bf16>,
    b: View<'a, bf16>,
    a_place: Range<usize>,
    b_place: Range<usize>,
    width: usize,
    times: Sum,
}

impl Beside {
    fn new(gpu: &Gpu, frozen: &Rc<Frozen>, low_rank: &LowRank) -> Result<Self, GpuError> {
        let shape = frozen.layout().shape();
        let factors = Factors::new(shape.clone(), low_rank);
        let mut masks = Vec::new();
        for (part, columns) in factors.blocks() {
            let all = part.parameter(0).parts().iter();
            let mut rows = vec![0.0f32; all.map(|part| part.rows(shape)).sum()];
            for number in 0..part.rows(shape) {
                rows[part.row(shape, number)] = 1.0;
            }
            masks.push(Mask {
                parameter: match part.parameter(0) {
                    Parameter::GateAndUp(_) => Parameter::GateAndUp,
                    _ => Parameter::Qkv,
                },
                columns,
                rows: gpu.upload(&rows)?,
            });
        }
        Ok(Self {
            frozen: frozen.clone(),
            factors,
            scale: low_rank.scale,
            masks,
        })
    }
}
