// out = relu(x @ weight^T + bias), x: m x k, weight: n x k, both row-major.
//
// The product is in strict float32, and bias and ReLU are its epilogue: they run on the accumulators, before the result is
// written for the first and only time.
#include "warpsmith.h"

extern "C" int linear_relu(float* out, const float* x, const float* weight, const float* bias, int64_t m, int64_t n,
                           int64_t k, cudaStream_t stream) {
    WarpsmithGemm gemm{m, n, k};
    gemm.transpose_b = true;
    gemm.activation = WARPSMITH_RELU;
    return warpsmith_gemm(out, x, weight, bias, gemm, stream);
}
