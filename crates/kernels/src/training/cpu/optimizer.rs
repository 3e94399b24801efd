//! Models in `f32`: the optimizer step, and states that go to and from checkpoints.

use rayon::prelude::*;

use super::model::CpuTrainableModel;
use crate::GpuError;
use crate::training::adamw::{AdamWParameter, AdamWStep, WeightDecay};
use crate::training::batch::{PackedBatch, TokenScores};
use crate::training::model::TrainableModel;
use crate::training::trainable::{TrainState, TrainableLayout};

/// Parameters that one thread updates at a time. Also what the gradient's norm is summed by, so that it does not depend on the number
/// of threads.
const CHUNK: usize = 1 << 16;

impl TrainableModel for CpuTrainableModel<f32> {
    fn layout(&self) -> &TrainableLayout {
        Self::layout(self)
    }

    fn score(&mut self, batch: &PackedBatch) -> Result<TokenScores, GpuError> {
        let scores = self.score_exact(batch);
        let (logprobs, entropies) = scores
            .into_iter()
            .map(|[logprob, entropy]| (logprob as f32, entropy as f32))
            .unzip();
        Ok(TokenScores {
            logprobs,
            entropies,
        })
    }

    fn backward_scores(&mut self, upstream: &TokenScores) -> Result<(), GpuError> {
        let pairs = upstream.logprobs.iter().zip(&upstream.entropies);
        let upstream: Vec<[f64; 2]> = pairs
            .map(|(logprob, entropy)| [f64::from(*logprob), f64::from(*entropy)])
            .collect();
        self.backward_scores_exact(&upstream);
        Ok(())
    }

    fn score_backward(
        &mut self,
        batch: &PackedBatch,
        d_logprobs: &[f32],
    ) -> Result<Vec<f32>, GpuError> {
        let upstream: Vec<[f64; 2]> = d_logprobs
            .iter()
            .map(|d_logprob| [f64::from(*d_logprob), 0.0])
            .collect();
        let logprobs = self.score_backward_exact(batch, &upstream);
        Ok(logprobs.into_iter().map(|one| one as f32).collect())
    }

    fn values(&mut self, batch: &PackedBatch) -> Result<Vec<f32>, GpuError> {
        let values = self.values_exact(batch);
        Ok(values.into_iter().map(|value| value as f32).collect())
    }

    fn backward_values(&mut self, upstream: &[f32]) -> Result<(), GpuError> {
        let upstream: Vec<f64> = upstream.iter().copied().map(f64::from).collect();
        self.backward_values_exact(&upstream);
        Ok(())
    }

    fn step(&mut self, step: &AdamWStep) -> Result<f64, GpuError> {
        self.weights.mask_lora_grads();
        let weights = &mut self.weights;
        let squares = weights.grad.par_chunks(CHUNK).map(|chunk| {
            let squares = chunk.iter().map(|grad| f64::from(*grad).powi(2));
            squares.sum::<f64>()
        });
        // Collected first: the order of the sum is that of the chunks.
        let squares: Vec<f64> = squares.collect();
        let norm = squares.iter().sum::<f64>().sqrt();
        if norm.is_finite() {
            let clip = step.clip_factor(norm);
            let decay_start = weights.layout.decay_start();
            let (exempt, decayed) = weights.trainable.split_at_mut(decay_start);
            let (exempt_grad, decayed_grad) = weights.grad.split_at(decay_start);
            let (exempt_first, decayed_first) = self.first_moment.split_at_mut(decay_start);
            let (exempt_second, decayed_second) = self.second_moment.split_at_mut(decay_start);
            let mut exempt = AdamWParameter {
                weights: exempt,
                first_moment: exempt_first,
                second_moment: exempt_second,
                decay: WeightDecay::Exempt,
            };
            let mut decayed = AdamWParameter {
                weights: decayed,
                first_moment: decayed_first,
                second_moment: decayed_second,
                decay: WeightDecay::Applied,
            };
            update(step, clip, &mut exempt, exempt_grad);
            update(step, clip, &mut decayed, decayed_grad);
        }
        // Also where it is not finite: it must not spoil the next batch.
        weights.grad.fill(0.0);
        Ok(norm)
    }

    fn grad(&mut self) -> Result<Vec<f32>, GpuError> {
        Ok(self.grad_exact().to_vec())
    }

    fn state(&self) -> Result<TrainState, GpuError> {
        Ok(TrainState {
            weights: self.weights.trainable.clone(),
            first_moment: self.first_moment.clone(),
            second_moment: self.second_moment.clone(),
        })
    }

    fn restore(&mut self, state: &TrainState) -> Result<(), GpuError> {
        let expected = self.weights.layout.len();
        for values in [&state.weights, &state.first_moment, &state.second_moment] {
            let found = values.len();
            if found != expected {
                return Err(GpuError::WrongStateSize { found, expected });
            }
        }
        self.weights.trainable.clone_from(&state.weights);
        self.first_moment.clone_from(&state.first_moment);
        self.second_moment.clone_from(&state.second_moment);
        self.weights.grad.fill(0.0);
        Ok(())
    }

    fn device_memory(&self) -> Result<Option<usize>, GpuError> {
        Ok(None)
    }
}

/// Updates on all cores.
fn update(step: &AdamWStep, clip: f64, parameter: &mut AdamWParameter<'_>, grad: &[f32]) {
    let decay = parameter.decay;
    let moments = parameter
        .first_moment
        .par_chunks_mut(CHUNK)
        .zip(parameter.second_moment.par_chunks_mut(CHUNK));
    let weights = parameter.weights.par_chunks_mut(CHUNK);
    let chunks = weights.zip(grad.par_chunks(CHUNK)).zip(moments);
    chunks.for_each(|((weights, grad), (first_moment, second_moment))| {
        let clipped: Vec<f32> = grad
            .iter()
            .map(|grad| (f64::from(*grad) * clip) as f32)
            .collect();
        let mut parameter = AdamWParameter {
            weights,
            first_moment,
            second_moment,
            decay,
        };
        step.update(&mut parameter, &clipped);
    });
}
