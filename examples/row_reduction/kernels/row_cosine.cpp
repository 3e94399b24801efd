// Cosine similarity of matching rows: dot(x, y) / (max(|x|, eps) * max(|y|, eps)).
//
// The three sums come out of one pass over both rows; nothing but the result is written.
#include <cmath>
#include <cstdint>

extern "C" int row_cosine(float* out, const float* x, const float* y, int64_t rows, int64_t cols, double eps, void*) {
    constexpr int64_t run = 512;  // a run is summed in float lanes, the runs in double
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const float* a = x + row * cols;
        const float* b = y + row * cols;
        double dot = 0.0, aa = 0.0, bb = 0.0;
        for (int64_t start = 0; start < cols; start += run) {
            const int64_t end = start + run < cols ? start + run : cols;
            float p = 0.0f, q = 0.0f, r = 0.0f;
#pragma omp simd simdlen(16) reduction(+ : p, q, r)
            for (int64_t i = start; i < end; ++i) {
                p += a[i] * b[i];
                q += a[i] * a[i];
                r += b[i] * b[i];
            }
            dot += p;
            aa += q;
            bb += r;
        }
        const double norm_a = std::sqrt(aa), norm_b = std::sqrt(bb);
        out[row] = static_cast<float>(dot / ((norm_a > eps ? norm_a : eps) * (norm_b > eps ? norm_b : eps)));
    }
    return 0;
}
