//! Matrix products with weights, forward and backward, by cuBLAS.
#![expect(clippy::many_single_char_names, reason = "the names are those of BLAS")]

use std::ops::Range;

use cudarc::cublas::result::gemm_ex;
use cudarc::cublas::sys::{self, cublasGemmAlgo_t, cublasOperation_t, cudaDataType};
use cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr};

use crate::{Gpu, GpuError, bf16};

/// Whether a result replaces what is there or is added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteMode {
    Overwrite,
    Accumulate,
}

impl WriteMode {
    pub(crate) fn overwrites(self) -> i32 {
        i32::from(self == Self::Overwrite)
    }
}

/// What a product may be written as.
pub trait GemmOutput: DeviceRepr {
    #[doc(hidden)]
    const TYPE: cudaDataType;
    #[doc(hidden)]
    const IS_F32: bool;
}

impl GemmOutput for bf16 {
    const TYPE: cudaDataType = cudaDataType::CUDA_R_16BF;
    const IS_F32: bool = false;
}

impl GemmOutput for f32 {
    const TYPE: cudaDataType = cudaDataType::CUDA_R_32F;
    const IS_F32: bool = true;
}

/// How a product is written: times `alpha`, over what is there or added to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GemmWrite {
    pub alpha: f32,
    pub mode: WriteMode,
}

impl GemmWrite {
    pub const OVERWRITE: Self = Self {
        alpha: 1.0,
        mode: WriteMode::Overwrite,
    };
    pub const ACCUMULATE: Self = Self {
        alpha: 1.0,
        mode: WriteMode::Accumulate,
    };

    /// Overwrites with a multiple.
    pub fn scaled(alpha: f32) -> Self {
        Self {
            alpha,
            ..Self::OVERWRITE
        }
    }
}

/// A matrix as cuBLAS sees it, in column-major order: what is a row here is a column there.
struct Operand {
    address: u64,
    operation: cublasOperation_t,
    /// Elements from one column to the next.
    stride: usize,
}

impl Gpu {
    /// `out[rows x outputs] = x[rows x inputs] · weight[outputs x inputs]ᵀ`, accumulated in float32.
    pub fn linear<T: GemmOutput>(
        &self,
        out: &mut impl DevicePtrMut<T>,
        x: &impl DevicePtr<bf16>,
        weight: &impl DevicePtr<bf16>,
        sizes: (usize, usize),
    ) -> Result<(), GpuError> {
        self.linear_with(out, x, weight, sizes, GemmWrite::OVERWRITE)
    }

    /// The same with a choice of how it is written.
    pub fn linear_with<T: GemmOutput>(
        &self,
        out: &mut impl DevicePtrMut<T>,
        x: &impl DevicePtr<bf16>,
        weight: &impl DevicePtr<bf16>,
        (rows, inputs): (usize, usize),
        write: GemmWrite,
    ) -> Result<(), GpuError> {
        let outputs = weight.len() / inputs;
        assert!(x.len() >= rows * inputs && out.len() >= rows * outputs);
        self.cublas_gemm(
            out,
            [
                self.operand(weight, cublasOperation_t::CUBLAS_OP_T, inputs),
                self.operand(x, cublasOperation_t::CUBLAS_OP_N, inputs),
            ],
            [outputs, rows, inputs],
            write,
        )
    }

    /// The gradient of the input: `d_x[rows x inputs] = d_out[rows x outputs] · weight`.
    pub fn linear_bwd_input<T: GemmOutput>(
        &self,
        d_x: &mut impl DevicePtrMut<T>,
        d_out: &impl DevicePtr<bf16>,
        weight: &impl DevicePtr<bf16>,
        sizes: (usize, usize),
    ) -> Result<(), GpuError> {
        self.linear_bwd_input_with(d_x, d_out, weight, sizes, GemmWrite::OVERWRITE)
    }

    /// The same with a choice of how it is written.
    pub fn linear_bwd_input_with<T: GemmOutput>(
        &self,
        d_x: &mut impl DevicePtrMut<T>,
        d_out: &impl DevicePtr<bf16>,
        weight: &impl DevicePtr<bf16>,
        (rows, inputs): (usize, usize),
        write: GemmWrite,
    ) -> Result<(), GpuError> {
        let outputs = weight.len() / inputs;
        assert!(d_out.len() >= rows * outputs && d_x.len() >= rows * inputs);
        self.cublas_gemm(
            d_x,
            [
                self.operand(weight, cublasOperation_t::CUBLAS_OP_N, inputs),
                self.operand(d_out, cublasOperation_t::CUBLAS_OP_N, outputs),
            ],
            [inputs, rows, outputs],
            write,
        )
    }

    /// The gradient of the weight: `d_weight[outputs x inputs] (+)= d_out[rows x outputs]ᵀ · x[rows x inputs]`.
    pub fn linear_bwd_weight(
        &self,
        (d_weight, mode): (&mut impl DevicePtrMut<f32>, WriteMode),
        d_out: &impl DevicePtr<bf16>,
        x: &impl DevicePtr<bf16>,
        (rows, inputs): (usize, usize),
    ) -> Result<(), GpuError> {
        let outputs = d_weight.len() / inputs;
        assert!(d_out.len() >= rows * outputs && x.len() >= rows * inputs);
        self.cublas_gemm(
            d_weight,
            [
                self.operand(x, cublasOperation_t::CUBLAS_OP_N, inputs),
                self.operand(d_out, cublasOperation_t::CUBLAS_OP_T, outputs),
            ],
            [inputs, outputs, rows],
            GemmWrite { alpha: 1.0, mode },
        )
    }

    /// Multiplies `columns` of each row of a matrix of `width` columns by that row's scale, in place.
    pub fn scale_rows(
        &self,
        matrix: &mut impl DevicePtrMut<f32>,
        (width, columns): (usize, Range<usize>),
        scales: &impl DevicePtr<f32>,
    ) -> Result<(), GpuError> {
        let rows = matrix.len() / width;
        assert!(scales.len() == rows && columns.end <= width);
        let scales = self.address(scales) as *const f32;
        let (start, _written) = matrix.device_ptr_mut(&self.stream);
        let start = (start as *mut f32).wrapping_add(columns.start);
        #[expect(unsafe_code, reason = "calls cuBLAS with addresses")]
        // SAFETY: sizes were checked. What is a row here is a column there; in place is allowed where both strides are one.
        unsafe {
            sys::cublasSdgmm(
                *self.blas.handle(),
                sys::cublasSideMode_t::CUBLAS_SIDE_RIGHT,
                columns.len() as i32,
                rows as i32,
                start,
                width as i32,
                scales,
                1,
                start,
                width as i32,
            )
            .result()?;
        }
        Ok(())
    }

    fn operand(
        &self,
        of: &impl DevicePtr<bf16>,
        operation: cublasOperation_t,
        stride: usize,
    ) -> Operand {
        Operand {
            address: self.address(of),
            operation,
            stride,
        }
    }

    /// Sizes are m, n and k as cuBLAS sees them.
    fn cublas_gemm<T: GemmOutput>(
        &self,
        out: &mut impl DevicePtrMut<T>,
        [a, b]: [Operand; 2],
        [m, n, k]: [usize; 3],
        GemmWrite { alpha, mode }: GemmWrite,
    ) -> Result<(), GpuError> {
        let beta: f32 = match mode {
            WriteMode::Overwrite => 0.0,
            WriteMode::Accumulate => 1.0,
        };
        let (out, _written) = out.device_ptr_mut(&self.stream);
        #[expect(unsafe_code, reason = "calls cuBLAS with addresses")]
        // SAFETY: callers have checked the sizes.
        unsafe {
            gemm_ex(
                *self.blas.handle(),
                a.operation,
                b.operation,
                m as i32,
                n as i32,
                k as i32,
                (&raw const alpha).cast(),
                a.address as *const _,
                cudaDataType::CUDA_R_16BF,
                a.stride as i32,
                b.address as *const _,
                cudaDataType::CUDA_R_16BF,
                b.stride as i32,
                (&raw const beta).cast(),
                out as *mut _,
                T::TYPE,
                m as i32,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )?;
        }
        Ok(())
    }
}
