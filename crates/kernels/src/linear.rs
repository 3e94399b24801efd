//! Products with weight matrices, by cuBLAS.

use cudarc::cublas::result::gemm_ex;
use cudarc::cublas::sys::{self, cublasGemmAlgo_t, cublasOperation_t, cudaDataType};
use cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr};

use crate::{Buffer, Gpu, GpuError, bf16};

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

impl Gpu {
    /// `out[rows x outputs] = x[rows x inputs] · weight[outputs x inputs]ᵀ`, summed in float32.
    pub fn linear<T: Product>(
        &self,
        out: &mut Buffer<T>,
        x: &Buffer<bf16>,
        weight: &Buffer<bf16>,
        (rows, inputs): (usize, usize),
    ) -> Result<(), GpuError> {
        let outputs = weight.len() / inputs;
        assert!(x.len() >= rows * inputs && out.len() >= rows * outputs);
        let (one, zero) = (1.0f32, 0.0f32);
        let (weight, _read) = weight.device_ptr(&self.stream);
        let (x, _also_read) = x.device_ptr(&self.stream);
        let (out, _written) = out.device_ptr_mut(&self.stream);
        #[expect(unsafe_code, reason = "calls cuBLAS with addresses")]
        // SAFETY: sizes were checked above. cuBLAS thinks in columns: our rows are its columns, so it is asked for
        // outᵀ = weight · xᵀ.
        unsafe {
            gemm_ex(
                *self.blas.handle(),
                cublasOperation_t::CUBLAS_OP_T,
                cublasOperation_t::CUBLAS_OP_N,
                outputs as i32,
                rows as i32,
                inputs as i32,
                (&raw const one).cast(),
                weight as *const _,
                cudaDataType::CUDA_R_16BF,
                inputs as i32,
                x as *const _,
                cudaDataType::CUDA_R_16BF,
                inputs as i32,
                (&raw const zero).cast(),
                out as *mut _,
                T::TYPE,
                outputs as i32,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )?;
        }
        Ok(())
    }
}
