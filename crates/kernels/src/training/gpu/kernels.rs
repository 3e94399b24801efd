//! Kernels of training. They are loaded when they are first needed: inference needs none of them.

use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::CUdevice_attribute;
use cudarc::driver::{CudaContext, CudaFunction};

use super::cross_entropy::max_logits_smem;
use super::flash_attn::{FlashAttnKernels, FlashAttnKind};
use super::rms_norm::max_norm_width;
use crate::gpu::allow_shared;
use crate::ptx::PtxArch;
use crate::{Gpu, GpuError};

pub(crate) struct TrainingKernels {
    pub(super) rms_norm_residual_fwd: CudaFunction,
    pub(super) rms_norm_residual_bwd: CudaFunction,
    /// The widest row that the backward kernel has shared memory for.
    pub(super) max_norm_width: usize,
    pub(super) swiglu_bwd: CudaFunction,
    pub(super) rope_qk_fwd: CudaFunction,
    pub(super) rope_qk_bwd: CudaFunction,
    pub(super) column_sum_partials: CudaFunction,
    pub(super) sum_partials: CudaFunction,
    pub(super) zero_fill: CudaFunction,
    pub(super) gather_rows: CudaFunction,
    pub(super) scatter_rows: CudaFunction,
    pub(super) embedding_bwd: CudaFunction,
    pub(super) cross_entropy_fused: CudaFunction,
    /// Most bytes of logits that one of its blocks holds in shared memory.
    pub(super) logits_smem_bytes: u32,
    pub(super) grad_norm_partials: CudaFunction,
    pub(super) adamw_fused: CudaFunction,
    pub(super) flash_attn: FlashAttnKernels,
    /// Loaded at the first use.
    pub(super) flash_attn_sm90: OnceLock<FlashAttnKernels>,
}

impl TrainingKernels {
    fn load(context: &Arc<CudaContext>, arch: PtxArch) -> Result<Self, GpuError> {
        let function = |module: &'static str, name: &str| -> Result<CudaFunction, GpuError> {
            Ok(arch.load(context, module)?.load_function(name)?)
        };
        let rms_norm = arch.load(context, "rms_norm")?;
        let rope = arch.load(context, "rope")?;
        let reductions = arch.load(context, "reductions")?;
        let gather_scatter = arch.load(context, "gather_scatter")?;
        let adamw = arch.load(context, "adamw")?;
        let flash_attn = arch.load(context, "flash_attn_varlen")?;
        let rms_norm_residual_bwd = rms_norm.load_function("rms_norm_residual_bwd")?;
        let cross_entropy_fused = function("cross_entropy", "cross_entropy_fused")?;
        let max_shared = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let max_shared = context.attribute(max_shared)?.cast_unsigned();
        let logits_smem_bytes = max_logits_smem(max_shared);
        allow_shared(&rms_norm_residual_bwd, max_shared)?;
        allow_shared(&cross_entropy_fused, logits_smem_bytes)?;
        Ok(Self {
            rms_norm_residual_fwd: rms_norm.load_function("rms_norm_residual_fwd")?,
            rms_norm_residual_bwd,
            max_norm_width: max_norm_width(max_shared),
            swiglu_bwd: function("swiglu_bwd", "swiglu_bwd")?,
            rope_qk_fwd: rope.load_function("rope_qk_fwd")?,
            rope_qk_bwd: rope.load_function("rope_qk_bwd")?,
            column_sum_partials: reductions.load_function("column_sum_partials")?,
            sum_partials: reductions.load_function("sum_partials")?,
            zero_fill: gather_scatter.load_function("zero_fill")?,
            gather_rows: gather_scatter.load_function("gather_rows")?,
            scatter_rows: gather_scatter.load_function("scatter_rows")?,
            embedding_bwd: function("embedding_bwd", "embedding_bwd")?,
            cross_entropy_fused,
            logits_smem_bytes,
            grad_norm_partials: adamw.load_function("grad_norm_partials")?,
            adamw_fused: adamw.load_function("adamw_fused")?,
            flash_attn: FlashAttnKernels::load(&flash_attn, FlashAttnKind::Mma)?,
            flash_attn_sm90: OnceLock::new(),
        })
    }
}

impl Gpu {
    /// Loads them at the first call, which no CUDA graph may capture.
    pub(crate) fn training_kernels(&self) -> Result<&TrainingKernels, GpuError> {
        if let Some(loaded) = self.training_kernels.get() {
            return Ok(loaded);
        }
        let arch = PtxArch::for_capability(self.stream.context().compute_capability()?);
        let loaded = TrainingKernels::load(self.stream.context(), arch)?;
        Ok(self.training_kernels.get_or_init(|| loaded))
    }
}
