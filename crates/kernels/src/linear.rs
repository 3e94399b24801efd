//! Products with weight matrices, by cuBLAS.

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
        (rows, inputs): (usize, usize),
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
            Adding::Anew,
        )
    }

    /// From slopes of outputs to slopes of what was multiplied: `out[rows x inputs] = slopes[rows x outputs] · weight`.
    pub fn linear_back_to_inputs<T: Product>(
        &self,
        out: &mut impl DevicePtrMut<T>,
        slopes: &impl DevicePtr<bf16>,
        weight: &impl DevicePtr<bf16>,
        (rows, inputs): (usize, usize),
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
            Adding::Anew,
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
            adding,
        )
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
        adding: Adding,
    ) -> Result<(), GpuError> {
        let one = 1.0f32;
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
                (&raw const one).cast(),
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
