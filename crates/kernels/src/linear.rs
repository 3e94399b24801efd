//! Products with weight matrices, by cuBLAS.

use std::ops::Range;

use cudarc::cublas::result::gemm_ex;
use cudarc::cublas::sys::{self, cublasGemmAlgo_t, cublasOperation_t, cudaDataType};
use cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr};

use crate::training::Adding;
use crate::{Gpu, GpuError, bf16};

/// What a product may be written as.
pub trait Product: DeviceRepr {
    const TYPE: cudaDataType;
}

impl Product for bf16 {
    const TYPE: cudaDataType = cudaDataType::CUDA_R_16BF;
}

impl Product for f32 {
    const TYPE: cudaDataType = cudaDataType::CUDA_R_32F;
}

/// How a product is written: so many times, over what is there or on top of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sum {
    pub by: f32,
    pub adding: Adding,
}

impl Sum {
    /// Once, and nothing else.
    pub const PLAIN: Self = Self {
        by: 1.0,
        adding: Adding::Anew,
    };
    /// Once, on top.
    pub const ON_TOP: Self = Self {
        by: 1.0,
        adding: Adding::OnTop,
    };

    /// So many times, and nothing else.
    pub fn times(by: f32) -> Self {
        Self { by, ..Self::PLAIN }
    }
}

/// A matrix as cuBLAS sees it, column after column: what is a row here is a column there.
struct Factor {
    address: u64,
    operation: cublasOperation_t,
    /// Numbers from one column to the next.
    stride: usize,
}

impl Gpu {
    /// `out[rows x outputs] = x[rows x inputs] · weight[outputs x inputs]ᵀ`, summed in float32.
    pub fn linear<T: Product>(
        &self,
        out: &mut impl DevicePtrMut<T>,
        x: &impl DevicePtr<bf16>,
        weight: &impl DevicePtr<bf16>,
        sizes: (usize, usize),
    ) -> Result<(), GpuError> {
        self.linear_sum(out, x, weight, sizes, Sum::PLAIN)
    }

    /// The same, as a sum.
    pub fn linear_sum<T: Product>(
        &self,
        out: &mut impl DevicePtrMut<T>,
        x: &impl DevicePtr<bf16>,
        weight: &impl DevicePtr<bf16>,
        (rows, inputs): (usize, usize),
        sum: Sum,
    ) -> Result<(), GpuError> {
        let outputs = weight.len() / inputs;
        assert!(x.len() >= rows * inputs && out.len() >= rows * outputs);
        self.product_by_cublas(
            out,
            [
                self.factor(weight, cublasOperation_t::CUBLAS_OP_T, inputs),
                self.factor(x, cublasOperation_t::CUBLAS_OP_N, inputs),
            ],
            [outputs, rows, inputs],
            sum,
        )
    }

    /// From slopes of outputs to slopes of what was multiplied: `out[rows x inputs] = slopes[rows x outputs] · weight`.
    pub fn linear_back_to_inputs<T: Product>(
        &self,
        out: &mut impl DevicePtrMut<T>,
        slopes: &impl DevicePtr<bf16>,
        weight: &impl DevicePtr<bf16>,
        sizes: (usize, usize),
    ) -> Result<(), GpuError> {
        self.linear_back_to_inputs_sum(out, slopes, weight, sizes, Sum::PLAIN)
    }

    /// The same, as a sum.
    pub fn linear_back_to_inputs_sum<T: Product>(
        &self,
        out: &mut impl DevicePtrMut<T>,
        slopes: &impl DevicePtr<bf16>,
        weight: &impl DevicePtr<bf16>,
        (rows, inputs): (usize, usize),
        sum: Sum,
    ) -> Result<(), GpuError> {
        let outputs = weight.len() / inputs;
        assert!(slopes.len() >= rows * outputs && out.len() >= rows * inputs);
        self.product_by_cublas(
            out,
            [
                self.factor(weight, cublasOperation_t::CUBLAS_OP_N, inputs),
                self.factor(slopes, cublasOperation_t::CUBLAS_OP_N, outputs),
            ],
            [inputs, rows, outputs],
            sum,
        )
    }

    /// And to slopes of the matrix: `out[outputs x inputs] (+)= slopes[rows x outputs]ᵀ · x[rows x inputs]`.
    pub fn linear_back_to_weights(
        &self,
        (out, adding): (&mut impl DevicePtrMut<f32>, Adding),
        slopes: &impl DevicePtr<bf16>,
        x: &impl DevicePtr<bf16>,
        (rows, inputs): (usize, usize),
    ) -> Result<(), GpuError> {
        let outputs = out.len() / inputs;
        assert!(slopes.len() >= rows * outputs && x.len() >= rows * inputs);
        self.product_by_cublas(
            out,
            [
                self.factor(x, cublasOperation_t::CUBLAS_OP_N, inputs),
                self.factor(slopes, cublasOperation_t::CUBLAS_OP_T, outputs),
            ],
            [inputs, outputs, rows],
            Sum { by: 1.0, adding },
        )
    }

    /// Multiplies `columns` of each row of a matrix of `width` columns with a number of the row's own, in place.
    pub fn scale_rows(
        &self,
        matrix: &mut impl DevicePtrMut<f32>,
        (width, columns): (usize, Range<usize>),
        by: &impl DevicePtr<f32>,
    ) -> Result<(), GpuError> {
        let rows = matrix.len() / width;
        assert!(by.len() == rows && columns.end <= width);
        let by = self.address(by) as *const f32;
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
                by,
                1,
                start,
                width as i32,
            )
            .result()?;
        }
        Ok(())
    }

    fn factor(
        &self,
        of: &impl DevicePtr<bf16>,
        operation: cublasOperation_t,
        stride: usize,
    ) -> Factor {
        Factor {
            address: self.address(of),
            operation,
            stride,
        }
    }

    /// Sizes are rows, columns and what is summed over, as cuBLAS sees them.
    fn product_by_cublas<T: Product>(
        &self,
        out: &mut impl DevicePtrMut<T>,
        [left, right]: [Factor; 2],
        [rows, columns, summed]: [usize; 3],
        Sum { by, adding }: Sum,
    ) -> Result<(), GpuError> {
        let before: f32 = match adding {
            Adding::Anew => 0.0,
            Adding::OnTop => 1.0,
        };
        let (out, _written) = out.device_ptr_mut(&self.stream);
        #[expect(unsafe_code, reason = "calls cuBLAS with addresses")]
        // SAFETY: whoever calls has checked sizes.
        unsafe {
            gemm_ex(
                *self.blas.handle(),
                left.operation,
                right.operation,
                rows as i32,
                columns as i32,
                summed as i32,
                (&raw const by).cast(),
                left.address as *const _,
                cudaDataType::CUDA_R_16BF,
                left.stride as i32,
                right.address as *const _,
                cudaDataType::CUDA_R_16BF,
                right.stride as i32,
                (&raw const before).cast(),
                out as *mut _,
                T::TYPE,
                rows as i32,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )?;
        }
        Ok(())
    }
}
