//! Rows by index: gather, scatter, and filling with zeros.

use cudarc::driver::{CudaView as View, DevicePtrMut, ValidAsZeroBits};

use crate::launch::LaunchShape;
use crate::{Buffer, Gpu, GpuError, bf16};

const WARPS: usize = 8;
const THREADS: usize = 32 * WARPS;

#[repr(C)]
struct ZeroFillParams {
    at: u64,
    vectors: u64,
}

#[repr(C)]
struct RowIndexParams {
    out: u64,
    from: u64,
    indices: u64,
    rows: i32,
    count: i32,
    width: i32,
}

#[expect(unsafe_code, reason = "launches kernels; sizes are checked before")]
impl Gpu {
    /// Fills with zeros, a multiple of sixteen bytes.
    pub fn zero_fill<T: ValidAsZeroBits>(
        &self,
        buffer: &mut impl DevicePtrMut<T>,
    ) -> Result<(), GpuError> {
        let bytes = buffer.len() * size_of::<T>();
        assert!(bytes.is_multiple_of(16));
        let vectors = bytes / 16;
        let params = ZeroFillParams {
            at: buffer.device_ptr_mut(&self.stream).0,
            vectors: vectors as u64,
        };
        let launch = LaunchShape::new((vectors.div_ceil(THREADS), 1, 1), THREADS);
        // SAFETY: zero bits are a valid value of this type.
        unsafe { self.launch(&self.training_kernels()?.zero_fill, &launch, &params) }
    }

    /// `out[i] = from[indices[i]]`, and zeros where that is no row.
    pub fn gather_rows(
        &self,
        out: &mut Buffer<bf16>,
        (from, rows): (&Buffer<bf16>, usize),
        indices: &View<'_, u32>,
        width: usize,
    ) -> Result<(), GpuError> {
        assert!(out.len() >= indices.len() * width && from.len() >= rows * width);
        let params = self.row_index_params(out, from, indices, (rows, width))?;
        let launch = LaunchShape::new((indices.len().div_ceil(WARPS), 1, 1), THREADS);
        // SAFETY: sizes were checked; the kernel skips indices beyond the rows.
        unsafe { self.launch(&self.training_kernels()?.gather_rows, &launch, &params) }
    }

    /// `out[indices[i]] = from[i]`; no index may occur twice.
    pub fn scatter_rows(
        &self,
        (out, rows): (&mut Buffer<bf16>, usize),
        from: &Buffer<bf16>,
        indices: &View<'_, u32>,
        width: usize,
    ) -> Result<(), GpuError> {
        assert!(out.len() >= rows * width && from.len() >= indices.len() * width);
        let params = self.row_index_params(out, from, indices, (rows, width))?;
        let launch = LaunchShape::new((indices.len().div_ceil(WARPS), 1, 1), THREADS);
        // SAFETY: sizes were checked; the kernel skips indices beyond the rows.
        unsafe { self.launch(&self.training_kernels()?.scatter_rows, &launch, &params) }
    }

    /// Parameters of both.
    fn row_index_params(
        &self,
        out: &Buffer<bf16>,
        from: &Buffer<bf16>,
        indices: &View<'_, u32>,
        (rows, width): (usize, usize),
    ) -> Result<RowIndexParams, GpuError> {
        Self::check_width(width)?;
        Ok(RowIndexParams {
            out: self.address(out),
            from: self.address(from),
            indices: self.address(indices),
            rows: rows as i32,
            count: indices.len() as i32,
            width: width as i32,
        })
    }
}
