// Index of the largest element of each row; the first one where several are equal, and a NaN counts as largest.
//
// Carrying an index through the search doubles the work of every step. Instead: find the maximum (pure vector code),
// then find its first position (a compare, stopped at the first block that has it). The row is in cache by then.
#include <cstdint>

extern "C" int argmax_rows(int64_t* out, const float* x, int64_t rows, int64_t cols, void*) {
    constexpr int64_t block = 256;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const float* in = x + row * cols;
        float top = in[0];
        int has_nan = 0;
#pragma omp simd simdlen(16) reduction(max : top) reduction(| : has_nan)
        for (int64_t i = 0; i < cols; ++i) {
            top = in[i] > top ? in[i] : top;
            has_nan |= in[i] != in[i];
        }

        int64_t at = 0;
        for (int64_t start = 0; start < cols; start += block) {
            const int64_t end = start + block < cols ? start + block : cols;
            int found = 0;
            if (has_nan) {
                for (int64_t i = start; i < end; ++i) found |= in[i] != in[i];
            } else {
#pragma omp simd simdlen(16) reduction(| : found)
                for (int64_t i = start; i < end; ++i) found |= in[i] == top;
            }
            if (found) {
                at = start;
                while (has_nan ? in[at] == in[at] : in[at] != top) ++at;
                break;
            }
        }
        out[row] = at;
    }
    return 0;
}
