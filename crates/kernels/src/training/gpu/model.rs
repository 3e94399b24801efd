//! A model that trains on a GPU: forward, backward, optimizer step.

use std::cell::RefCell;
use std::rc::Rc;

use super::batch::BatchExtent;
use super::buffers::TrainBuffers;
use super::cross_entropy::ScoreGrad;
use super::frozen::FrozenWeights;
use super::pass::Pass;
use super::weights::TrainableWeights;
use crate::training::adamw::AdamWStep;
use crate::training::batch::{PackedBatch, TokenScores};
use crate::training::lora::LoraWidths;
use crate::training::model::TrainableModel;
use crate::training::trainable::{ModelHead, TrainState, TrainableInit, TrainableLayout};
use crate::{CudaGraph, Gpu, GpuError, VEC, WriteMode, bf16};

/// Passes with the same key launch the same kernels with the same arguments: one CUDA graph serves them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct GraphKey {
    extent: BatchExtent,
    mode: WriteMode,
    /// Of the buffers.
    generation: u64,
}

/// Most CUDA graphs that are held; further passes are launched kernel by kernel.
const MAX_GRAPHS: usize = 32;

/// A policy or a critic. Several models may share buffers; then nothing may come between a forward pass and its backward pass.
pub struct GpuTrainableModel {
    buffers: Rc<RefCell<TrainBuffers>>,
    weights: TrainableWeights,
    /// Whether the next gradient is added to one that is there.
    grad_mode: WriteMode,
    /// Of a value head's bias, since the last step. Upstream gradients are known on the host, and their sum with them.
    bias_grad: f64,
    /// Which of the buffers' passes was this model's last forward pass.
    forward_pass: u64,
    /// Passes that happened, with a graph from the second time on.
    graphs: Vec<(GraphKey, Option<CudaGraph>)>,
}

impl GpuTrainableModel {
    pub fn new(
        buffers: &Rc<RefCell<TrainBuffers>>,
        init: &TrainableInit<'_, FrozenWeights>,
        head: ModelHead,
    ) -> Result<Self, GpuError> {
        let borrowed = buffers.borrow();
        assert!(
            borrowed.shape() == init.shape(),
            "buffers are for models of one shape"
        );
        Ok(Self {
            weights: TrainableWeights::new(borrowed.gpu(), init, head)?,
            buffers: buffers.clone(),
            grad_mode: WriteMode::Overwrite,
            bias_grad: 0.0,
            forward_pass: 0,
            graphs: Vec::new(),
        })
    }

    /// Log-probabilities and entropies of the loss tokens.
    pub fn score(&mut self, batch: &PackedBatch) -> Result<TokenScores, GpuError> {
        self.forward(batch)?;
        self.with_pass(|pass| pass.score(None))?;
        self.scores()
    }

    /// Adds the gradient of a loss to which [`Self::score`] was the forward pass.
    pub fn backward_scores(&mut self, grads: &[ScoreGrad]) -> Result<(), GpuError> {
        self.check_forward();
        let mut buffers = self.buffers.borrow_mut();
        let (gpu, batch) = buffers.batch()?;
        if batch.loss_tokens == 0 {
            return Ok(());
        }
        batch.write_score_grads(gpu, grads)?;
        let mode = self.grad_mode;
        let mut pass = buffers.pass(&mut self.weights)?;
        pass.score(Some(mode))?;
        pass.backward(mode)?;
        self.grad_mode = WriteMode::Accumulate;
        Ok(())
    }

    /// Forward and backward where the upstream gradients are known beforehand: logits are computed once, and the whole pass is
    /// one CUDA graph when it happens again. Does not wait for the device.
    pub fn score_backward(
        &mut self,
        batch: &PackedBatch,
        grads: &[ScoreGrad],
    ) -> Result<(), GpuError> {
        if batch.loss_tokens() == 0 {
            return Ok(());
        }
        self.load(batch)?;
        let mut buffers = self.buffers.borrow_mut();
        let (gpu, loaded) = buffers.batch()?;
        loaded.write_score_grads(gpu, grads)?;
        let key = GraphKey {
            extent: loaded.extent,
            mode: self.grad_mode,
            generation: buffers.generation(),
        };
        // Graphs of freed buffers hold stale addresses.
        self.graphs
            .retain(|(other, _)| other.generation == key.generation);
        let known = self.graphs.iter().position(|(other, _)| *other == key);
        let mut pass = buffers.pass(&mut self.weights)?;
        match known {
            None => {
                forward_backward(&mut pass, key.mode)?;
                if self.graphs.len() < MAX_GRAPHS {
                    self.graphs.push((key, None));
                }
            }
            Some(index) => {
                if self.graphs[index].1.is_none() {
                    let gpu = pass.gpu;
                    let graph = gpu.capture(|| forward_backward(&mut pass, key.mode))?;
                    self.graphs[index].1 = Some(graph);
                }
                if let Some(graph) = &self.graphs[index].1 {
                    graph.launch()?;
                }
            }
        }
        self.grad_mode = WriteMode::Accumulate;
        Ok(())
    }

    /// Of the last batch. After [`Self::score_backward`], tokens whose upstream gradients are zero have zeros.
    pub fn scores(&self) -> Result<TokenScores, GpuError> {
        self.check_forward();
        let buffers = self.buffers.borrow();
        let (gpu, batch) = (buffers.gpu(), &buffers.allocated()?.batch);
        Ok(TokenScores {
            logprobs: gpu.read(&batch.logprobs, batch.loss_tokens)?,
            entropies: gpu.read(&batch.entropies, batch.loss_tokens)?,
        })
    }

    /// The value before each loss token.
    pub fn values(&mut self, batch: &PackedBatch) -> Result<Vec<f32>, GpuError> {
        self.forward(batch)?;
        self.with_pass(|pass| pass.value(None))?;
        let buffers = self.buffers.borrow();
        let (gpu, batch) = (buffers.gpu(), &buffers.allocated()?.batch);
        let bias = self.weights.layout.value_bias();
        let bias = gpu.read_at(&self.weights.parameters.weights, bias..bias + 1)?[0];
        let values = gpu.read(&batch.values, VEC * batch.loss_tokens)?;
        Ok(values
            .iter()
            .step_by(VEC)
            .map(|value| value + bias)
            .collect())
    }

    /// Adds the gradient of a loss to which [`Self::values`] was the forward pass.
    pub fn backward_values(&mut self, grads: &[f32]) -> Result<(), GpuError> {
        self.check_forward();
        let mut buffers = self.buffers.borrow_mut();
        let (gpu, batch) = buffers.batch()?;
        if batch.loss_tokens == 0 {
            return Ok(());
        }
        batch.write_value_grads(gpu, grads)?;
        let mode = self.grad_mode;
        let mut pass = buffers.pass(&mut self.weights)?;
        pass.value(Some(mode))?;
        pass.backward(mode)?;
        self.grad_mode = WriteMode::Accumulate;
        self.bias_grad += grads.iter().copied().map(f64::from).sum::<f64>();
        Ok(())
    }

    /// One optimizer step with the accumulated gradient, which is then gone. Does not wait for the device.
    pub fn step(&mut self, step: AdamWStep) -> Result<(), GpuError> {
        let buffers = self.buffers.borrow();
        let (gpu, weights) = (buffers.gpu(), &mut self.weights);
        match self.grad_mode {
            // No backward pass since the last step: the buffer holds the gradient of that one.
            WriteMode::Overwrite => gpu.zero_fill(&mut weights.parameters.grad)?,
            WriteMode::Accumulate if weights.layout.has_value_head() => {
                let mut padded = [0.0; VEC];
                padded[0] = self.bias_grad as f32;
                let start = weights.layout.value_bias();
                gpu.write_at(&mut weights.parameters.grad, start, &padded)?;
            }
            WriteMode::Accumulate => {}
        }
        weights.mask_lora_grads(gpu)?;
        gpu.write_adamw_step(&mut weights.parameters, step)?;
        self.grad_mode = WriteMode::Overwrite;
        self.bias_grad = 0.0;
        gpu.adamw_fused(&mut weights.parameters)
    }

    /// Norm of the last step's gradient before clipping. Where it is not finite, that step changed nothing.
    pub fn grad_norm(&self) -> Result<f32, GpuError> {
        let buffers = self.buffers.borrow();
        self.weights.parameters.grad_norm(buffers.gpu())
    }

    /// The gradient accumulated since the last step. Outside the diagonal blocks of LoRA's B its values mean nothing.
    pub fn grad(&self) -> Result<Vec<f32>, GpuError> {
        let layout = &self.weights.layout;
        match self.grad_mode {
            WriteMode::Overwrite => Ok(vec![0.0; layout.len()]),
            WriteMode::Accumulate => {
                let buffers = self.buffers.borrow();
                let mut grad = buffers
                    .gpu()
                    .read(&self.weights.parameters.grad, layout.len())?;
                if layout.has_value_head() {
                    grad[layout.value_bias()] = self.bias_grad as f32;
                }
                Ok(grad)
            }
        }
    }

    pub fn state(&self) -> Result<TrainState, GpuError> {
        let (len, parameters) = (self.weights.layout.len(), &self.weights.parameters);
        let buffers = self.buffers.borrow();
        let read = |values| buffers.gpu().read(values, len);
        Ok(TrainState {
            weights: read(&parameters.weights)?,
            first_moment: read(&parameters.first_moment)?,
            second_moment: read(&parameters.second_moment)?,
        })
    }

    /// Goes on from a state; the accumulated gradient is dropped.
    pub fn restore(&mut self, state: &TrainState) -> Result<(), GpuError> {
        for values in [&state.weights, &state.first_moment, &state.second_moment] {
            self.weights.check(values)?;
        }
        let weights_bf16: Vec<bf16> = state.weights.iter().copied().map(bf16::from_f32).collect();
        let buffers = self.buffers.borrow();
        let (gpu, to): (&Gpu, _) = (buffers.gpu(), &mut self.weights.parameters);
        gpu.write(&mut to.weights, &state.weights)?;
        gpu.write(&mut to.weights_bf16, &weights_bf16)?;
        gpu.write(&mut to.first_moment, &state.first_moment)?;
        gpu.write(&mut to.second_moment, &state.second_moment)?;
        self.grad_mode = WriteMode::Overwrite;
        self.bias_grad = 0.0;
        Ok(())
    }

    fn forward(&mut self, batch: &PackedBatch) -> Result<(), GpuError> {
        self.load(batch)?;
        #[expect(
            clippy::redundant_closure_for_method_calls,
            reason = "the method is not general over the lifetime of a pass"
        )]
        self.with_pass(|pass| pass.forward())
    }

    /// Begins a pass, with larger buffers where the batch needs them.
    fn load(&mut self, batch: &PackedBatch) -> Result<(), GpuError> {
        let mut buffers = self.buffers.borrow_mut();
        let lora = self.weights.layout.lora();
        let widths = lora.map_or_else(LoraWidths::default, crate::training::LoraLayout::widths);
        buffers.reserve(batch.rows(), batch.longest(), widths)?;
        self.forward_pass = buffers.load(batch)?;
        Ok(())
    }

    fn with_pass(
        &mut self,
        run: impl FnOnce(&mut Pass<'_>) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        run(&mut self.buffers.borrow_mut().pass(&mut self.weights)?)
    }

    fn check_forward(&self) {
        assert!(
            self.buffers.borrow().passes() == self.forward_pass,
            "another model used the buffers since this model's forward pass"
        );
    }
}

fn forward_backward(pass: &mut Pass<'_>, mode: WriteMode) -> Result<(), GpuError> {
    pass.forward()?;
    pass.score(Some(mode))?;
    pass.backward(mode)
}

impl TrainableModel for GpuTrainableModel {
    fn layout(&self) -> &TrainableLayout {
        &self.weights.layout
    }

    fn score(&mut self, batch: &PackedBatch) -> Result<TokenScores, GpuError> {
        Self::score(self, batch)
    }

    fn backward_scores(&mut self, upstream: &TokenScores) -> Result<(), GpuError> {
        let pairs = upstream.logprobs.iter().zip(&upstream.entropies);
        let grads: Vec<ScoreGrad> = pairs
            .map(|(&logprob, &entropy)| ScoreGrad { logprob, entropy })
            .collect();
        Self::backward_scores(self, &grads)
    }

    fn score_backward(
        &mut self,
        batch: &PackedBatch,
        d_logprobs: &[f32],
    ) -> Result<Vec<f32>, GpuError> {
        let grads: Vec<ScoreGrad> = d_logprobs
            .iter()
            .map(|&logprob| ScoreGrad {
                logprob,
                entropy: 0.0,
            })
            .collect();
        Self::score_backward(self, batch, &grads)?;
        Ok(self.scores()?.logprobs)
    }

    fn values(&mut self, batch: &PackedBatch) -> Result<Vec<f32>, GpuError> {
        Self::values(self, batch)
    }

    fn backward_values(&mut self, upstream: &[f32]) -> Result<(), GpuError> {
        Self::backward_values(self, upstream)
    }

    fn step(&mut self, step: &AdamWStep) -> Result<f64, GpuError> {
        Self::step(self, *step)?;
        Ok(f64::from(self.grad_norm()?))
    }

    fn grad(&mut self) -> Result<Vec<f32>, GpuError> {
        Self::grad(self)
    }

    fn state(&self) -> Result<TrainState, GpuError> {
        Self::state(self)
    }

    fn restore(&mut self, state: &TrainState) -> Result<(), GpuError> {
        Self::restore(self, state)
    }

    fn device_memory(&self) -> Result<Option<usize>, GpuError> {
        let (free, total) = self.buffers.borrow().gpu().free_and_total_memory()?;
        Ok(Some(total - free))
    }
}
