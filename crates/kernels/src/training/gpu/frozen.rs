//! The weights of a frozen base model, which all its adapters share.

use crate::training::layout::{Parameter, ParameterLayout};
use crate::training::trainable::FrozenModel;
use crate::{Buffer, Gpu, GpuError, View, bf16};

/// Weights on the device: matrices in bfloat16, the rest in float32.
pub struct FrozenWeights {
    layout: ParameterLayout,
    vectors: Buffer<f32>,
    matrices: Buffer<bf16>,
}

impl FrozenModel for FrozenWeights {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }
}

impl FrozenWeights {
    /// `values` gives those of one parameter at a time, so that the host need not hold all of them at once.
    pub fn new(
        gpu: &Gpu,
        layout: ParameterLayout,
        mut values: impl FnMut(Parameter) -> Vec<f32>,
    ) -> Result<Self, GpuError> {
        let first = layout.decay_start();
        let mut frozen = Self {
            vectors: gpu.zeros(first)?,
            matrices: gpu.zeros(layout.len() - first)?,
            layout,
        };
        for parameter in frozen.layout.parameters() {
            let range = frozen.layout.range(parameter);
            let values = values(parameter);
            if values.len() != range.len() {
                let (found, expected) = (values.len(), range.len());
                return Err(GpuError::WrongStateSize { found, expected });
            }
            if range.start < first {
                gpu.write_at(&mut frozen.vectors, range.start, &values)?;
            } else {
                let values: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
                gpu.write_at(&mut frozen.matrices, range.start - first, &values)?;
            }
        }
        // The host's copies are dropped after this.
        gpu.synchronize()?;
        Ok(frozen)
    }

    pub(super) fn vector(&self, of: Parameter) -> View<'_, f32> {
        self.vectors.slice(self.layout.range(of))
    }

    pub(super) fn matrix(&self, of: Parameter) -> View<'_, bf16> {
        let first = self.layout.decay_start();
        let range = self.layout.range(of);
        self.matrices.slice(range.start - first..range.end - first)
    }
}
