//! The fused AdamW step, with clipping by the gradient's global norm.

use cudarc::driver::DeviceRepr;

use crate::launch::LaunchShape;
use crate::training::adamw::AdamWStep;
use crate::{Buffer, Gpu, GpuError, bf16};

/// As in the kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct DeviceAdamWStep {
    learning_rate: f32,
    inverse_root_second: f32,
    decay_factor: f32,
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    max_grad_norm: f32,
}

#[expect(unsafe_code, reason = "plain numbers, laid out as the kernel's struct")]
// SAFETY: see the reason.
unsafe impl DeviceRepr for DeviceAdamWStep {}
#[expect(unsafe_code, reason = "plain numbers")]
// SAFETY: see the reason.
unsafe impl cudarc::driver::ValidAsZeroBits for DeviceAdamWStep {}

impl From<AdamWStep> for DeviceAdamWStep {
    fn from(step: AdamWStep) -> Self {
        let (adamw, exponent) = (step.adamw, step.exponent());
        Self {
            learning_rate: (step.learning_rate / (1.0 - adamw.beta1.powi(exponent))) as f32,
            inverse_root_second: (1.0 - adamw.beta2.powi(exponent)).sqrt().recip() as f32,
            decay_factor: (1.0 - step.learning_rate * adamw.weight_decay) as f32,
            beta1: adamw.beta1 as f32,
            beta2: adamw.beta2 as f32,
            epsilon: adamw.epsilon as f32,
            max_grad_norm: adamw.max_grad_norm as f32,
        }
    }
}

/// All trainable parameters of a model, with their gradients and optimizer moments.
pub struct DeviceParameters {
    pub weights: Buffer<f32>,
    /// What matrix products read.
    pub weights_bf16: Buffer<bf16>,
    pub grad: Buffer<f32>,
    pub first_moment: Buffer<f32>,
    pub second_moment: Buffer<f32>,
    /// Weight decay applies from this index on.
    pub decay_start: usize,
    /// Of the last step, before clipping.
    grad_norm_buffer: Buffer<f32>,
    partials: Buffer<f32>,
    step: Buffer<DeviceAdamWStep>,
}

impl DeviceParameters {
    pub fn new(gpu: &Gpu, weights: &[f32], decay_start: usize) -> Result<Self, GpuError> {
        let count = weights.len();
        assert!(count.is_multiple_of(4) && decay_start.is_multiple_of(4));
        let weights_bf16: Vec<bf16> = weights.iter().copied().map(bf16::from_f32).collect();
        Ok(Self {
            weights: gpu.upload(weights)?,
            weights_bf16: gpu.upload(&weights_bf16)?,
            grad: gpu.zeros(count)?,
            first_moment: gpu.zeros(count)?,
            second_moment: gpu.zeros(count)?,
            decay_start,
            grad_norm_buffer: gpu.zeros(1)?,
            partials: gpu.zeros(BLOCKS)?,
            step: gpu.zeros(1)?,
        })
    }

    /// Norm of the last step's gradient before clipping. Where it is not finite, that step changed nothing.
    pub fn grad_norm(&self, gpu: &Gpu) -> Result<f32, GpuError> {
        Ok(gpu.read(&self.grad_norm_buffer, 1)?[0])
    }
}

const THREADS: usize = 512;
/// Also the number of partial sums of the gradient's norm, which therefore does not depend on the device.
const BLOCKS: usize = 528;

#[repr(C)]
struct GradNormParams {
    partials: u64,
    grad: u64,
    count: u64,
}

#[repr(C)]
struct AdamWParams {
    weights: u64,
    first_moment: u64,
    second_moment: u64,
    weights_bf16: u64,
    grad_norm: u64,
    grad: u64,
    partials: u64,
    step: u64,
    count: u64,
    decay_from: u64,
    partial_count: i32,
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Sets what the following calls of [`Self::adamw_fused`] use.
    pub fn write_adamw_step(
        &self,
        parameters: &mut DeviceParameters,
        step: AdamWStep,
    ) -> Result<(), GpuError> {
        self.write(&mut parameters.step, &[step.into()])
    }

    /// One optimizer step of all parameters.
    pub fn adamw_fused(&self, parameters: &mut DeviceParameters) -> Result<(), GpuError> {
        let kernels = self.training_kernels()?;
        let count = parameters.weights.len();
        let grad_norm = GradNormParams {
            partials: self.address(&parameters.partials),
            grad: self.address(&parameters.grad),
            count: count as u64,
        };
        let update = AdamWParams {
            weights: self.address(&parameters.weights),
            first_moment: self.address(&parameters.first_moment),
            second_moment: self.address(&parameters.second_moment),
            weights_bf16: self.address(&parameters.weights_bf16),
            grad_norm: self.address(&parameters.grad_norm_buffer),
            grad: self.address(&parameters.grad),
            partials: self.address(&parameters.partials),
            step: self.address(&parameters.step),
            count: count as u64,
            decay_from: parameters.decay_start as u64,
            partial_count: BLOCKS as i32,
        };
        let launch = LaunchShape::new((BLOCKS, 1, 1), THREADS);
        // SAFETY: all buffers have the same length, except those whose lengths are constants.
        unsafe {
            self.launch(&kernels.grad_norm_partials, &launch, &grad_norm)?;
            self.launch(&kernels.adamw_fused, &launch, &update)
        }
    }
}
