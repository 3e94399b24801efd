//! Sums over rows, in two deterministic steps: partial sums, then their sum.

use cudarc::driver::CudaViewMut as ViewMut;

use crate::launch::LaunchShape;
use crate::{Buffer, Gpu, GpuError, WriteMode, bf16};

/// Partial sums of a sum over rows: one a block, and always the same number, so that the result does not depend on the device.
pub const PARTIALS: usize = 264;

const THREADS: usize = 256;

#[repr(C)]
struct ColumnSumParams {
    partials: u64,
    x: u64,
    rows: i32,
    width: i32,
}

#[repr(C)]
struct SumPartialsParams {
    sums: u64,
    partials: u64,
    count: i32,
    width: i32,
    overwrite: i32,
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Sums of columns, as [`PARTIALS`] partial sums.
    pub fn column_sum_partials(
        &self,
        partials: &mut Buffer<f32>,
        x: &Buffer<bf16>,
        (rows, width): (usize, usize),
    ) -> Result<(), GpuError> {
        Self::check_width(width)?;
        assert!(partials.len() >= PARTIALS * width && x.len() >= rows * width);
        let params = ColumnSumParams {
            partials: self.address(partials),
            x: self.address(x),
            rows: rows as i32,
            width: width as i32,
        };
        let launch = LaunchShape::new((width.div_ceil(64), PARTIALS, 1), THREADS);
        // SAFETY: sizes were checked; the kernel waits before it reads anything.
        unsafe {
            self.launch(
                &self.training_kernels()?.column_sum_partials,
                &launch,
                &params,
            )
        }
    }

    /// Adds up [`PARTIALS`] partial sums each of several sums: `[sum][partial][column]`.
    pub fn sum_partials(
        &self,
        (sums, mode): (&mut ViewMut<'_, f32>, WriteMode),
        partials: &Buffer<f32>,
        width: usize,
    ) -> Result<(), GpuError> {
        let count = sums.len() / width;
        assert!(sums.len() == count * width && partials.len() >= count * PARTIALS * width);
        let params = SumPartialsParams {
            sums: self.address(sums),
            partials: self.address(partials),
            count: PARTIALS as i32,
            width: width as i32,
            overwrite: mode.overwrites(),
        };
        let launch = LaunchShape::new((width.div_ceil(32), count, 1), THREADS);
        // SAFETY: sizes were checked; the kernel waits before it reads anything.
        unsafe { self.launch(&self.training_kernels()?.sum_partials, &launch, &params) }
    }
}
