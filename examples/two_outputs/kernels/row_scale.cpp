// scale[r] = max |x[r, :]|, scaled[r, :] = x[r, :] / scale[r].
//
// The row is in cache when it is read for the second time, so memory sees one read and one write.
#include <cstdint>

extern "C" int row_scale(float* scaled, float* scale, const float* x, int64_t rows, int64_t cols, void*) {
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const float* in = x + row * cols;
        float* to = scaled + row * cols;
        float top = 0.0f;
#pragma omp simd simdlen(16) reduction(max : top)
        for (int64_t i = 0; i < cols; ++i) {
            const float v = __builtin_fabsf(in[i]);
            top = v > top ? v : top;
        }
        scale[row] = top;
        // A vector division takes 16 cycles and would cost more than the memory. One correction of the product with
        // 1 / top gives the correctly rounded quotient in all but rare cases, as long as 1 / top is a normal number.
        if (top > 1e-37f && top < 1e37f) {
            const float inverse = 1.0f / top;
#pragma omp simd simdlen(16)
            for (int64_t i = 0; i < cols; ++i) {
                const float q = in[i] * inverse;
                to[i] = q + (in[i] - q * top) * inverse;
            }
        } else {
            for (int64_t i = 0; i < cols; ++i) to[i] = in[i] / top;
        }
    }
    return 0;
}
