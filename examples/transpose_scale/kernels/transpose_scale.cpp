// out[b, j, i] = x[b, i, j] * scale[j].
//
// A plain transposition uses one element of every cache line it touches on one of its sides. Here small squares are
// transposed in registers, so that each line is read or written whole, and the scaling costs nothing on top.
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int lanes = 16;
#else
constexpr int lanes = 8;
#endif
typedef float vec __attribute__((vector_size(lanes * sizeof(float))));
typedef int32_t ivec __attribute__((vector_size(lanes * sizeof(int32_t))));

// One step of the transposition of a lanes x lanes square: swaps the off-diagonal blocks of size S.
// The steps S = 1, 2, 4, ... together transpose the square; each is two shuffles for a pair of rows.
template <int S>
static inline void swap_blocks(vec* v) {
    ivec low, high;
    for (int j = 0; j < lanes; ++j) {  // constants once compiled
        low[j] = j & S ? lanes + j - S : j;
        high[j] = j & S ? lanes + j : j + S;
    }
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i)
        if (!(i & S)) {
            const vec a = v[i], b = v[i + S];
            v[i] = __builtin_shuffle(a, b, low);
            v[i + S] = __builtin_shuffle(a, b, high);
        }
}

// to[j * rows + i] = from[i * cols + j] * scale[j] for one square.
static inline void square(float* to, const float* from, const float* scale, int64_t rows, int64_t cols) {
    vec v[lanes];
#pragma GCC unroll 16
    for (int i = 0; i < lanes; ++i) std::memcpy(&v[i], from + i * cols, sizeof(vec));
    swap_blocks<1>(v);
    swap_blocks<2>(v);
    swap_blocks<4>(v);
    if constexpr (lanes > 8) swap_blocks<8>(v);
#pragma GCC unroll 16
    for (int j = 0; j < lanes; ++j) {
        const vec scaled = v[j] * scale[j];
        std::memcpy(to + j * rows, &scaled, sizeof(vec));
    }
}

extern "C" int transpose_scale(float* out, const float* x, const float* scale, int64_t batch, int64_t rows,
                               int64_t cols, void*) {
    constexpr int64_t high = 64, wide = lanes;  // a block: several lines along the output, one along the input
    const int64_t block_rows = (rows + high - 1) / high;
#pragma omp parallel for schedule(static) collapse(2)
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t br = 0; br < block_rows; ++br) {
            const int64_t top = br * high, bottom = top + high < rows ? top + high : rows;
            for (int64_t left = 0; left < cols; left += wide) {
                const float* from = x + b * rows * cols + left;
                float* to = out + (b * cols + left) * rows;
                int64_t i = top;
                if (left + wide <= cols)
                    for (; i + lanes <= bottom; i += lanes) square(to + i, from + i * cols, scale + left, rows, cols);
                for (; i < bottom; ++i)  // what no square covers
                    for (int64_t j = 0; j < wide && left + j < cols; ++j)
                        to[j * rows + i] = from[i * cols + j] * scale[left + j];
            }
        }
    return 0;
}
