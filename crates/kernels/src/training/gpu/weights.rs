//! A model's weights on a GPU, frozen or trainable, and matrix products with them.

use std::ops::Range;
use std::rc::Rc;

use super::adamw::DeviceParameters;
use super::frozen::FrozenWeights;
use crate::training::layout::{Parameter, Projection};
use crate::training::trainable::{ModelHead, TrainableInit, TrainableLayout};
use crate::{Buffer, GemmWrite, Gpu, GpuError, View, ViewMut, WriteMode, bf16};

pub(super) struct TrainableWeights {
    pub(super) layout: TrainableLayout,
    pub(super) parameters: DeviceParameters,
    lora: Option<LoraBase>,
}

/// The frozen model beside an adapter.
struct LoraBase {
    frozen: Rc<FrozenWeights>,
    masks: Vec<BlockMask>,
}

/// A diagonal block of a parameter's B: rows of other projections are zero in its columns.
struct BlockMask {
    parameter: fn(usize) -> Parameter,
    columns: Range<usize>,
    /// One for each of the projection's rows, zero for others.
    rows: Buffer<f32>,
}

fn check_len(values: &[f32], expected: usize) -> Result<(), GpuError> {
    let found = values.len();
    if found == expected {
        return Ok(());
    }
    Err(GpuError::WrongStateSize { found, expected })
}

impl TrainableWeights {
    pub(super) fn new(
        gpu: &Gpu,
        init: &TrainableInit<'_, FrozenWeights>,
        head: ModelHead,
    ) -> Result<Self, GpuError> {
        let layout = init.layout(head);
        let values = init.values(head);
        check_len(&values, layout.len())?;
        let lora = match init {
            TrainableInit::Full { .. } => None,
            TrainableInit::Lora { base, .. } => Some(LoraBase {
                frozen: base.clone(),
                masks: block_masks(gpu, &layout)?,
            }),
        };
        Ok(Self {
            parameters: DeviceParameters::new(gpu, &values, layout.decay_start())?,
            layout,
            lora,
        })
    }

    /// Whether a vector has one element for each trainable parameter.
    pub(super) fn check(&self, values: &[f32]) -> Result<(), GpuError> {
        check_len(values, self.layout.len())
    }

    /// A parameter as matrix products read it.
    pub(super) fn matrix(&self, of: Parameter) -> View<'_, bf16> {
        match &self.lora {
            None => self.parameters.weights_bf16.slice(self.layout.in_full(of)),
            Some(lora) => lora.frozen.matrix(of),
        }
    }

    /// A parameter in float32.
    pub(super) fn vector(&self, of: Parameter) -> View<'_, f32> {
        match &self.lora {
            None => self.parameters.weights.slice(self.layout.in_full(of)),
            Some(lora) => lora.frozen.vector(of),
        }
    }

    /// The gradient of a parameter, if it trains.
    pub(super) fn grad(&mut self, of: Parameter) -> Option<ViewMut<'_, f32>> {
        let range = self.layout.parameter(of)?;
        Some(self.parameters.grad.slice_mut(range))
    }

    /// The same of all norms, which follow each other.
    pub(super) fn norm_grads(&mut self) -> Option<ViewMut<'_, f32>> {
        let range = self.layout.norms()?;
        Some(self.parameters.grad.slice_mut(range))
    }

    pub(super) fn value_matrix(&self) -> View<'_, bf16> {
        let range = self.layout.value_weight();
        self.parameters.weights_bf16.slice(range)
    }

    pub(super) fn value_grad(&mut self) -> ViewMut<'_, f32> {
        let range = self.layout.value_weight();
        self.parameters.grad.slice_mut(range)
    }

    /// `out = x · Wᵀ + scale · (x · Aᵀ) · Bᵀ`. Leaves `scale · x · Aᵀ` in `inner`.
    pub(super) fn forward(
        &self,
        gpu: &Gpu,
        of: Parameter,
        out: &mut Buffer<bf16>,
        x: &Buffer<bf16>,
        (inner, rows): (&mut Buffer<bf16>, usize),
    ) -> Result<(), GpuError> {
        let sizes = (rows, of.columns(self.layout.shape()));
        let mut write = GemmWrite::OVERWRITE;
        // The adapter first, so that the total is rounded once: added to a rounded total, its small part would be lost.
        if let Some(lora) = self.lora_matrices(of) {
            gpu.linear_with(inner, x, &lora.a, sizes, lora.scaled)?;
            gpu.linear(out, inner, &lora.b, (rows, lora.width))?;
            write = GemmWrite::ACCUMULATE;
        }
        gpu.linear_with(out, x, &self.matrix(of), sizes, write)
    }

    /// From the gradient of what [`Self::forward`] wrote to that of what it read. Leaves the gradient of `inner` in `d_inner`.
    pub(super) fn bwd_input(
        &self,
        gpu: &Gpu,
        of: Parameter,
        d_x: &mut Buffer<bf16>,
        d_out: &Buffer<bf16>,
        (d_inner, rows): (&mut Buffer<bf16>, usize),
    ) -> Result<(), GpuError> {
        let sizes = (rows, of.columns(self.layout.shape()));
        let mut write = GemmWrite::OVERWRITE;
        if let Some(lora) = self.lora_matrices(of) {
            let inner_sizes = (rows, lora.width);
            gpu.linear_bwd_input_with(d_inner, d_out, &lora.b, inner_sizes, lora.scaled)?;
            gpu.linear_bwd_input(d_x, d_inner, &lora.a, sizes)?;
            write = GemmWrite::ACCUMULATE;
        }
        gpu.linear_bwd_input_with(d_x, d_out, &self.matrix(of), sizes, write)
    }

    /// The gradient of what trains, from what the other two left.
    pub(super) fn bwd_weight(
        &mut self,
        gpu: &Gpu,
        of: Parameter,
        (d_out, x): (&Buffer<bf16>, &Buffer<bf16>),
        (inner, d_inner, rows): (&Buffer<bf16>, &Buffer<bf16>, usize),
        mode: WriteMode,
    ) -> Result<(), GpuError> {
        let sizes = (rows, of.columns(self.layout.shape()));
        if let Some(mut to) = self.grad(of) {
            return gpu.linear_bwd_weight((&mut to, mode), d_out, x, sizes);
        }
        let Some(slices) = self.layout.lora_slices(of) else {
            return Ok(());
        };
        let grad = &mut self.parameters.grad;
        let mut to = grad.slice_mut(slices.b);
        gpu.linear_bwd_weight((&mut to, mode), d_out, inner, (rows, slices.width))?;
        let mut to = grad.slice_mut(slices.a);
        gpu.linear_bwd_weight((&mut to, mode), d_inner, x, sizes)
    }

    /// Zeroes the gradients outside the diagonal blocks of B, which are no parameters.
    pub(super) fn mask_lora_grads(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        let Some(lora) = &self.lora else {
            return Ok(());
        };
        for layer in 0..self.layout.shape().layers {
            for mask in &lora.masks {
                let Some(slices) = self.layout.lora_slices((mask.parameter)(layer)) else {
                    continue;
                };
                let mut grad = self.parameters.grad.slice_mut(slices.b);
                let columns = (slices.width, mask.columns.clone());
                gpu.scale_rows(&mut grad, columns, &mask.rows)?;
            }
        }
        Ok(())
    }

    fn lora_matrices(&self, of: Parameter) -> Option<LoraMatrices<'_>> {
        let slices = self.layout.lora_slices(of)?;
        Some(LoraMatrices {
            a: self.parameters.weights_bf16.slice(slices.a),
            b: self.parameters.weights_bf16.slice(slices.b),
            width: slices.width,
            scaled: GemmWrite::scaled(self.layout.lora_scale()),
        })
    }
}

/// The LoRA matrices of a parameter.
struct LoraMatrices<'a> {
    a: View<'a, bf16>,
    b: View<'a, bf16>,
    width: usize,
    scaled: GemmWrite,
}

fn block_masks(gpu: &Gpu, layout: &TrainableLayout) -> Result<Vec<BlockMask>, GpuError> {
    let blocks = layout
        .lora()
        .map(crate::training::LoraLayout::blocks)
        .unwrap_or_default();
    let masks = blocks.into_iter().map(|(projection, columns)| {
        Ok(BlockMask {
            parameter: match projection {
                Projection::Gate | Projection::Up => Parameter::GateUp,
                _ => Parameter::Qkv,
            },
            columns,
            rows: gpu.upload(&projection.row_mask(layout.shape()))?,
        })
    });
    masks.collect()
}
