// c = op(a) @ op(b), row-major, strict float32 by cuBLAS (TF32 is off unless asked for).
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cstdint>

static cublasHandle_t handle = nullptr;

// a is m x k (k x m when transposed), b is k x n (n x k when transposed). cuBLAS is column-major: it computes c^T.
extern "C" int gemm(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, int64_t transpose_a,
                    int64_t transpose_b, void* stream) {
    if (!handle)
        if (const int status = cublasCreate(&handle)) return status;
    if (const int status = cublasSetStream(handle, static_cast<cudaStream_t>(stream))) return status;
    const float one = 1.0f, zero = 0.0f;
    return cublasSgemm(handle, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                       static_cast<int>(n), static_cast<int>(m), static_cast<int>(k), &one, b,
                       static_cast<int>(transpose_b ? k : n), a, static_cast<int>(transpose_a ? m : k), &zero, c,
                       static_cast<int>(n));
}
