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
        // A true division, not a product with 1 / top: the same bits as the reference, and the memory is slower still.
#pragma omp simd simdlen(16)
        for (int64_t i = 0; i < cols; ++i) to[i] = in[i] / top;
    }
    return 0;
}
