// out[b, j, i] = x[b, i, j] * scale[j].
//
// A plain transposition uses one element of every cache line it touches on one of its sides. Here small squares are
// transposed in registers, so that each line is read or written whole, and the scaling costs nothing on top.
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int lanes = 16;
#elif defined(__AVX__)
constexpr int lanes = 8;
#else
constexpr int lanes = 4;
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
    if constexpr (lanes > 4) swap_blocks<4>(v);
    if constexpr (lanes > 8) swap_blocks<8>(v);
#pragma GCC unroll 16
    for (int j = 0; j < lanes; ++j) {
        const vec scaled = v[j] * scale[j];
        std::memcpy(to + j * rows, &scaled, sizeof(vec));
    }
}

extern "C" int transpose_scale(float* out, const float* x, const float* scale, int64_t batch, int64_t rows,
                               int64_t cols, void*) {
    // A task is a strip of columns: its reads are pieces of four cache lines, its writes go to 64 rows of the output,
    // few enough for the caches and the address translation to hold.
    constexpr int64_t strip = 64;
    const int64_t strips = (cols + strip - 1) / strip;
#pragma omp parallel for schedule(static) collapse(2)
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t n = 0; n < strips; ++n) {
            const int64_t begin = n * strip, end = begin + strip < cols ? begin + strip : cols;
            const float* in = x + b * rows * cols;
            float* to = out + b * rows * cols;
            const int64_t whole_rows = rows - rows % lanes, whole_cols = end - (end - begin) % lanes;
            for (int64_t i = 0; i < whole_rows; i += lanes)
                for (int64_t j = begin; j < whole_cols; j += lanes)
                    square(to + j * rows + i, in + i * cols + j, scale + j, rows, cols);
            // What no square covers: the last columns, then the last rows.
            for (int64_t j = whole_cols; j < end; ++j)
                for (int64_t i = 0; i < whole_rows; ++i) to[j * rows + i] = in[i * cols + j] * scale[j];
            for (int64_t j = begin; j < end; ++j)
                for (int64_t i = whole_rows; i < rows; ++i) to[j * rows + i] = in[i * cols + j] * scale[j];
        }
    return 0;
}
