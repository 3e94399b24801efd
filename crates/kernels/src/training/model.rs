//! What a model that trains offers, whatever computes it.

use super::adamw::AdamWStep;
use super::batch::{PackedBatch, TokenScores};
use super::trainable::{TrainState, TrainableLayout};
use crate::GpuError;

/// A transformer with trainable parameters, their gradient and an optimizer.
///
/// Gradients accumulate until the next step, so that a batch may be larger than what fits into memory at once. A backward pass must
/// follow its own forward pass. Only a GPU returns errors.
pub trait TrainableModel {
    fn layout(&self) -> &TrainableLayout;

    /// Log-probabilities and entropies of the loss tokens.
    fn score(&mut self, batch: &PackedBatch) -> Result<TokenScores, GpuError>;

    /// Adds the gradient of a loss to which [`Self::score`] was the forward pass.
    fn backward_scores(&mut self, upstream: &TokenScores) -> Result<(), GpuError>;

    /// Forward and backward where it is known beforehand how the loss changes with each log-probability, which saves work. Gives the
    /// log-probabilities; those of tokens whose gradient is zero may be zero.
    fn score_backward(
        &mut self,
        batch: &PackedBatch,
        d_logprobs: &[f32],
    ) -> Result<Vec<f32>, GpuError>;

    /// The value before each loss token.
    fn values(&mut self, batch: &PackedBatch) -> Result<Vec<f32>, GpuError>;

    /// Adds the gradient of a loss to which [`Self::values`] was the forward pass.
    fn backward_values(&mut self, upstream: &[f32]) -> Result<(), GpuError>;

    /// One optimizer step with the accumulated gradient, which is then gone. Gives its norm before clipping. Where that is not
    /// finite, nothing else is changed.
    fn step(&mut self, step: &AdamWStep) -> Result<f64, GpuError>;

    /// The gradient accumulated since the last step. Outside the diagonal blocks of LoRA's B its values mean nothing.
    fn grad(&mut self) -> Result<Vec<f32>, GpuError>;

    fn state(&self) -> Result<TrainState, GpuError>;

    /// Goes on from a state; the accumulated gradient is dropped.
    fn restore(&mut self, state: &TrainState) -> Result<(), GpuError>;

    /// Bytes in use on the device, by whomever, where it has memory of its own.
    fn device_memory(&self) -> Result<Option<usize>, GpuError>;
}
