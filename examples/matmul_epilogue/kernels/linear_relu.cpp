// out = relu(x @ weight^T + bias), x: m x k, weight: n x k, both row-major.
//
// The product itself is the provided gemm, called on panels of rows; bias and ReLU then run over a panel that is
// still in the second-level cache, instead of over the whole matrix after it has been written to memory.
#include <cstdint>

// Provided on the CPU target: row-major c = alpha * op(a) op(b) + beta * c, on all cores.
extern "C" void warpsmith_gemm(int transa, int transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
                               int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

extern "C" int linear_relu(float* out, const float* x, const float* weight, const float* bias, int64_t m, int64_t n,
                           int64_t k, void*) {
    // About 2 MiB of output a panel: small enough to stay in cache, tall enough for the gemm to run at full speed.
    int64_t panel = (int64_t{1} << 19) / (n > 0 ? n : 1);
    panel = panel < 64 ? 64 : panel;
    for (int64_t start = 0; start < m; start += panel) {
        const int64_t height = start + panel < m ? panel : m - start;
        float* to = out + start * n;
        warpsmith_gemm(0, 1, height, n, k, 1.0f, x + start * k, k, weight, k, 0.0f, to, n);
#pragma omp parallel for schedule(static)
        for (int64_t row = 0; row < height; ++row) {
            float* line = to + row * n;
#pragma omp simd simdlen(16)
            for (int64_t i = 0; i < n; ++i) {
                const float v = line[i] + bias[i];
                line[i] = v < 0.0f ? 0.0f : v;  // in this order NaN stays NaN, as in torch.relu
            }
        }
    }
    return 0;
}
