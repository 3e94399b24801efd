//! A model that does not learn, for those that learn beside it.

use super::layout::{Layout, Parameter};
use crate::{Buffer, Gpu, GpuError, View, bf16};

/// Its weights on a device, once for all: matrices in bfloat16, the rest in float32.
pub struct Frozen {
    layout: Layout,
    vectors: Buffer<f32>,
    matrices: Buffer<bf16>,
}

impl Frozen {
    /// `numbers` gives those of a parameter; it is asked for one after the other, so that they need not all be there at once.
    pub fn new<E: From<GpuError>>(
        gpu: &Gpu,
        layout: Layout,
        mut numbers: impl FnMut(Parameter) -> Result<Vec<f32>, E>,
    ) -> Result<Self, E> {
        let first = layout.decays_from();
        let mut frozen = Self {
            vectors: gpu.zeros(first)?,
            matrices: gpu.zeros(layout.count() - first)?,
            layout,
        };
        for parameter in frozen.layout.parameters() {
            let place = frozen.layout.place(parameter);
            let numbers = numbers(parameter)?;
            if numbers.len() != place.len() {
                let (found, wanted) = (numbers.len(), place.len());
                return Err(GpuError::OtherState { found, wanted }.into());
            }
            if place.start < first {
                gpu.write_at(&mut frozen.vectors, place.start, &numbers)?;
            } else {
                let narrow: Vec<bf16> = numbers.into_iter().map(bf16::from_f32).collect();
                gpu.write_at(&mut frozen.matrices, place.start - first, &narrow)?;
            }
        }
        // What was copied from is gone after this.
        gpu.wait()?;
        Ok(frozen)
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(super) fn vector(&self, of: Parameter) -> View<'_, f32> {
        self.vectors.slice(self.layout.place(of))
    }

    pub(super) fn matrix(&self, of: Parameter) -> View<'_, bf16> {
        let first = self.layout.decays_from();
        let place = self.layout.place(of);
        self.matrices.slice(place.start - first..place.end - first)
    }
}
