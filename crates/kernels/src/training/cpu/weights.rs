//! A model's weights in main memory, frozen or trainable, and matrix products with them.

use std::rc::Rc;

use super::gemm::{Matrix, Scaling, gemm};
use super::ops::add;
use super::real::Real;
use crate::training::layout::{Parameter, ParameterLayout, Projection};
use crate::training::trainable::{FrozenModel, ModelHead, TrainableInit, TrainableLayout};

/// The weights of a frozen base model, which all its adapters share.
#[derive(Debug)]
pub struct CpuFrozenWeights<T = f32> {
    layout: ParameterLayout,
    values: Vec<T>,
}

impl<T: Real> CpuFrozenWeights<T> {
    /// `values` gives those of one parameter at a time.
    pub fn new(layout: ParameterLayout, mut values: impl FnMut(Parameter) -> Vec<f32>) -> Self {
        let mut all = Vec::with_capacity(layout.len());
        for parameter in layout.parameters() {
            let values = values(parameter);
            assert_eq!(values.len(), layout.range(parameter).len(), "{parameter:?}");
            all.extend(
                values
                    .into_iter()
                    .map(|value| T::from_f64(f64::from(value))),
            );
        }
        Self {
            layout,
            values: all,
        }
    }
}

impl<T> FrozenModel for CpuFrozenWeights<T> {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }
}

#[derive(Debug)]
pub(super) struct Weights<T> {
    pub(super) layout: TrainableLayout,
    base: Option<Rc<CpuFrozenWeights<T>>>,
    /// In the order of the layout.
    pub(super) trainable: Vec<T>,
    /// Accumulated since the last step.
    pub(super) grad: Vec<T>,
}

impl<T: Real> Weights<T> {
    pub(super) fn new(init: &TrainableInit<'_, CpuFrozenWeights<T>>, head: ModelHead) -> Self {
        let layout = init.layout(head);
        let values = init.values(head).into_iter();
        let trainable: Vec<T> = values.map(|value| T::from_f64(f64::from(value))).collect();
        assert_eq!(
            trainable.len(),
            layout.len(),
            "one value for each trainable parameter"
        );
        Self {
            base: match init {
                TrainableInit::Full { .. } => None,
                TrainableInit::Lora { base, .. } => Some(base.clone()),
            },
            grad: vec![T::ZERO; trainable.len()],
            trainable,
            layout,
        }
    }

    pub(super) fn parameter(&self, of: Parameter) -> &[T] {
        match &self.base {
            Some(base) => &base.values[base.layout.range(of)],
            None => &self.trainable[self.layout.parameter(of).unwrap_or_default()],
        }
    }

    /// Adds to the gradient of a parameter, if it trains.
    pub(super) fn add_grad(&mut self, of: Parameter, grad: &[T]) {
        if let Some(range) = self.layout.parameter(of) {
            add(&mut self.grad[range], grad);
        }
    }

    /// The gradient of a parameter, if it trains.
    pub(super) fn grad_mut(&mut self, of: Parameter) -> Option<&mut [T]> {
        let range = self.layout.parameter(of)?;
        Some(&mut self.grad[range])
    }

    /// `x · Wᵀ + bias + scale · (x · Aᵀ) · Bᵀ`.
    pub(super) fn linear(&self, of: Parameter, x: &[T]) -> Vec<T> {
        let columns = of.columns(self.layout.shape());
        let (x, weight) = (
            Matrix::new(x, columns),
            Matrix::new(self.parameter(of), columns),
        );
        let (rows, outputs) = (x.row_count(), weight.row_count());
        let mut out = vec![T::ZERO; rows * outputs];
        gemm(&mut out, outputs, Scaling::OVERWRITE, x, weight.t());
        if let Some(lora) = self.layout.lora_slices(of) {
            let inner = self.lora_inner(of, x);
            let inner = Matrix::new(&inner, lora.width);
            let b = Matrix::new(&self.trainable[lora.b], lora.width);
            gemm(&mut out, outputs, Scaling::ACCUMULATE, inner, b.t());
        }
        if let Some(bias) = of.bias_in(self.layout.shape()) {
            let bias = self.parameter(bias);
            for row in out.chunks_exact_mut(outputs) {
                add(row, bias);
            }
        }
        out
    }

    /// `scale · x · Aᵀ`.
    fn lora_inner(&self, of: Parameter, x: Matrix<'_, T>) -> Vec<T> {
        let Some(lora) = self.layout.lora_slices(of) else {
            return Vec::new();
        };
        let a = Matrix::new(&self.trainable[lora.a], of.columns(self.layout.shape()));
        let mut inner = vec![T::ZERO; x.row_count() * lora.width];
        let scale = T::from_f64(f64::from(self.layout.lora_scale()));
        gemm(&mut inner, lora.width, Scaling::times(scale), x, a.t());
        inner
    }

    /// From the gradient of what [`Self::linear`] gave to that of what it read. Accumulates the gradients of what trains.
    pub(super) fn linear_bwd(&mut self, of: Parameter, x: &[T], d_out: &[T]) -> Vec<T> {
        let columns = of.columns(self.layout.shape());
        let outputs = self.parameter(of).len() / columns;
        if let Some(bias) = of.bias_in(self.layout.shape())
            && let Some(d_bias) = self.grad_mut(bias)
        {
            for row in d_out.chunks_exact(outputs) {
                add(d_bias, row);
            }
        }
        let mut d_x = vec![T::ZERO; x.len()];
        let (x, d_out) = (Matrix::new(x, columns), Matrix::new(d_out, outputs));
        let weight = Matrix::new(self.parameter(of), columns);
        gemm(&mut d_x, columns, Scaling::OVERWRITE, d_out, weight);
        if let Some(range) = self.layout.parameter(of) {
            let to = &mut self.grad[range];
            gemm(to, columns, Scaling::ACCUMULATE, d_out.t(), x);
        }
        if let Some(lora) = self.layout.lora_slices(of) {
            let inner = self.lora_inner(of, x);
            let to = &mut self.grad[lora.b.clone()];
            let inner = Matrix::new(&inner, lora.width);
            gemm(to, lora.width, Scaling::ACCUMULATE, d_out.t(), inner);
            let b = Matrix::new(&self.trainable[lora.b], lora.width);
            let mut d_inner = vec![T::ZERO; d_out.row_count() * lora.width];
            let scale = T::from_f64(f64::from(self.layout.lora_scale()));
            gemm(&mut d_inner, lora.width, Scaling::times(scale), d_out, b);
            let d_inner = Matrix::new(&d_inner, lora.width);
            let to = &mut self.grad[lora.a.clone()];
            gemm(to, columns, Scaling::ACCUMULATE, d_inner.t(), x);
            let a = Matrix::new(&self.trainable[lora.a], columns);
            gemm(&mut d_x, columns, Scaling::ACCUMULATE, d_inner, a);
        }
        d_x
    }

    /// Zeroes the gradients outside the diagonal blocks of LoRA's B, which are no parameters.
    pub(super) fn mask_lora_grads(&mut self) {
        let Some(lora) = self.layout.lora() else {
            return;
        };
        let blocks = lora.blocks();
        for layer in 0..self.layout.shape().layers {
            for (projection, columns) in &blocks {
                let Some(slices) = self.layout.lora_slices(projection.parameter(layer)) else {
                    continue;
                };
                let mask = row_mask(*projection, &self.layout);
                let rows = self.grad[slices.b].chunks_exact_mut(slices.width);
                for (row, own) in rows.zip(mask) {
                    if !own {
                        row[columns.clone()].fill(T::ZERO);
                    }
                }
            }
        }
    }
}

fn row_mask(projection: Projection, layout: &TrainableLayout) -> impl Iterator<Item = bool> {
    let mask = projection.row_mask(layout.shape());
    mask.into_iter().map(|own| own != 0.0)
}
