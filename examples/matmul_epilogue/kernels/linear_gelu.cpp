// out = gelu_tanh(x @ weight^T + bias), x: m x k, weight: n x k, both row-major.
//
// The product itself is the provided gemm, called on panels of rows; bias and GELU then run over a panel that is
// still in the second-level cache, instead of over the whole matrix after it has been written to memory.
#include <cstdint>
#include <cstring>

// Provided on the CPU target: row-major c = alpha * op(a) op(b) + beta * c, on all cores.
extern "C" void warpsmith_gemm(int transa, int transb, int64_t m, int64_t n, int64_t k, float alpha, const float* a,
                               int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc);

// exp(x) to about 1 ulp, written so that the compiler turns a loop of it into vector code: no branch, no call.
// x = n ln2 + r with |r| <= ln2/2; a polynomial gives exp(r), and n is added to its exponent bits.
static inline float exp_approx(float x) {
    x = x < -87.3f ? -87.3f : x;  // keeps n in the range of normal numbers; NaN passes through
    x = x > 88.3f ? 88.3f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer held in the low bits
    const float n = shifted - 12582912.0f;
    const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t bits, exponent;
    std::memcpy(&bits, &p, 4);
    std::memcpy(&exponent, &shifted, 4);
    bits += exponent << 23;
    std::memcpy(&p, &bits, 4);
    return p;
}

extern "C" int linear_gelu(float* out, const float* x, const float* weight, const float* bias, int64_t m, int64_t n,
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
                // 0.5 v (1 + tanh u) = v * sigmoid(2u) = v / (1 + e^(-2u)): no tanh, and no cancellation for u < 0.
                const float v = line[i] + bias[i];
                const float u = 0.797884561f * (v + 0.044715f * v * v * v);
                line[i] = v / (1.0f + exp_approx(-2.0f * u));
            }
        }
    }
    return 0;
}
