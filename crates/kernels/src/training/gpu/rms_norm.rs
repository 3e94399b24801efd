//! RMS norm, forward with the residual addition and backward.

use cudarc::driver::{CudaView as View, CudaViewMut as ViewMut};

use super::reductions::PARTIALS;
use crate::launch::LaunchShape;
use crate::{Buffer, Gpu, GpuError, WriteMode, bf16};

/// The widest row that the backward RMS norm supports with so many bytes of shared memory: each warp accumulates a row of its own.
pub(super) fn max_norm_width(shared: u32) -> usize {
    shared as usize / (WARPS * size_of::<f32>())
}

const WARPS: usize = 8;
const THREADS: usize = 32 * WARPS;

#[repr(C)]
struct RmsNormFwdParams {
    out: u64,
    added: u64,
    residual: u64,
    delta: u64,
    weight: u64,
    rows: i32,
    width: i32,
    epsilon: f32,
}

#[repr(C)]
struct RmsNormBwdParams {
    normed: u64,
    d_residual: u64,
    d_residual_bf16: u64,
    weight_partials: u64,
    residual: u64,
    weight: u64,
    rows: i32,
    width: i32,
    epsilon: f32,
    overwrite: i32,
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// `added = residual + delta; out = added / rms(added) * weight`.
    #[expect(clippy::too_many_arguments, reason = "the operands of one kernel")]
    pub fn rms_norm_residual_fwd(
        &self,
        out: &mut Buffer<bf16>,
        added: Option<&mut Buffer<f32>>,
        residual: &Buffer<f32>,
        delta: Option<&Buffer<bf16>>,
        weight: &View<'_, f32>,
        rows: usize,
        epsilon: f32,
    ) -> Result<(), GpuError> {
        let width = weight.len();
        Self::check_width(width)?;
        assert!(out.len() >= rows * width && residual.len() >= rows * width);
        let added = added.map_or(0, |added| {
            assert!(added.len() >= rows * width);
            self.address(added)
        });
        assert!(delta.is_none_or(|delta| delta.len() >= rows * width));
        let params = RmsNormFwdParams {
            out: self.address(out),
            added,
            residual: self.address(residual),
            delta: self.address_or_null(delta),
            weight: self.address(weight),
            rows: rows as i32,
            width: width as i32,
            epsilon,
        };
        let launch = LaunchShape::new((rows.div_ceil(WARPS), 1, 1), THREADS);
        // SAFETY: sizes were checked; the kernel waits before it reads anything.
        unsafe {
            self.launch(
                &self.training_kernels()?.rms_norm_residual_fwd,
                &launch,
                &params,
            )
        }
    }

    /// From the gradient of the normed rows, which `normed` holds, to the gradient of the residual, in float32 and bfloat16.
    /// Afterwards `normed` holds the normed rows. The gradient of the weight comes as [`PARTIALS`] partial sums.
    #[expect(clippy::too_many_arguments, reason = "the operands of one kernel")]
    pub fn rms_norm_residual_bwd(
        &self,
        normed: &mut Buffer<bf16>,
        (d_residual, mode): (&mut Buffer<f32>, WriteMode),
        d_residual_bf16: &mut Buffer<bf16>,
        weight_partials: &mut ViewMut<'_, f32>,
        residual: &Buffer<f32>,
        weight: &View<'_, f32>,
        rows: usize,
        epsilon: f32,
    ) -> Result<(), GpuError> {
        let width = weight.len();
        Self::check_width(width)?;
        let count = rows * width;
        assert!(normed.len() >= count && d_residual.len() >= count && residual.len() >= count);
        assert!(d_residual_bf16.len() >= count && weight_partials.len() == PARTIALS * width);
        let params = RmsNormBwdParams {
            normed: self.address(normed),
            d_residual: self.address(d_residual),
            d_residual_bf16: self.address(d_residual_bf16),
            weight_partials: self.address(weight_partials),
            residual: self.address(residual),
            weight: self.address(weight),
            rows: rows as i32,
            width: width as i32,
            epsilon,
            overwrite: mode.overwrites(),
        };
        let launch = LaunchShape {
            shared_bytes: (WARPS * width * size_of::<f32>()) as u32,
            ..LaunchShape::new((PARTIALS, 1, 1), THREADS)
        };
        // SAFETY: sizes were checked; the kernel waits before it reads anything.
        unsafe {
            self.launch(
                &self.training_kernels()?.rms_norm_residual_bwd,
                &launch,
                &params,
            )
        }
    }
}
