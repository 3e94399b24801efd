// What both implementations of training attention share: kernel parameters, accumulators in registers, the causal mask and the
// online softmax. Sequences of different lengths are packed one after the other, as in FlashAttention's varlen interface.
#pragma once
#include "tile_load.cuh"

// Consecutive rows of one packed sequence, which spans rows `begin` to `end`: a query block in the forward and dQ kernels, a key
// block in the dK/dV kernel. `count` is zero where a thread block has nothing to do.
struct SequenceBlock {
    uint32_t row, count, begin, end;
};

// `lse` and `delta` are laid out [head][row].
struct FwdParams {
    bf16* out;   // [row][head][dim]
    float* lse;  // log of the sum over exp(score)
    const bf16* qkv;
    const SequenceBlock* blocks;
    int heads, kv_heads, rows;
    float scale;
};

struct BwdParams {
    bf16* d_qkv;
    float* delta;  // rowsum(dO * O), written by the dQ kernel and read by the dK/dV kernel
    const bf16* d_out;
    const bf16* out;
    const float* lse;
    const bf16* qkv;
    const SequenceBlock* blocks;
    int heads, kv_heads, rows;
    float scale;
};

constexpr float masked_score = -1e30f, log2e = 1.44269504f;

// What a warp has of a product: 16 rows, C columns in tiles of 8.
template <int C>
struct Accumulator {
    float frag[C / 8][4];
    __device__ void zero() {
#pragma unroll
        for (int n = 0; n < C / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) frag[n][i] = 0.0f;
    }
    // Sixteen columns in bfloat16, as operand A of the next product.
    __device__ void a_fragment(uint32_t (&to)[4], int column) const {
        const float (&low)[4] = frag[column / 8];
        const float (&high)[4] = frag[column / 8 + 1];
        to[0] = to_bf16(low[0], low[1]);
        to[1] = to_bf16(low[2], low[3]);
        to[2] = to_bf16(high[0], high[1]);
        to[3] = to_bf16(high[2], high[3]);
    }
};

// Which scores of a row are masked: those of columns beyond the row, or of columns before it where scores are transposed.
enum class CausalMask { future, past };

// Scores of rows `row` and `row` + 8, at every fourth pair of columns from `column` on.
template <CausalMask mask, int N>
__device__ inline void apply_causal_mask(Accumulator<N>& scores, int column, int row) {
    const int limit = row - column;
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int offset = 8 * n + i % 2 - i / 2 * 8;
            if (mask == CausalMask::future ? offset > limit : offset < limit) scores.frag[n][i] = masked_score;
        }
}

// Online softmax: scores become exp(score - row_max), and row_max and this lane's part of row_sum are updated. Outputs that were
// accumulated with the maximum before must be multiplied by `rescale`.
template <int N>
__device__ inline void online_softmax(Accumulator<N>& scores, float (&row_max)[2], float (&row_sum)[2], float (&rescale)[2],
                                      float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float highest = row_max[half];
#pragma unroll
        for (int n = 0; n < N / 8; ++n) highest = fmaxf(highest, fmaxf(scores.frag[n][2 * half], scores.frag[n][2 * half + 1]));
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
        rescale[half] = exp2_approx((row_max[half] - highest) * scale);
        const float shift = highest * scale;
        row_max[half] = highest;
        float part = 0.0f;
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
                scores.frag[n][i] = exp2_approx(scores.frag[n][i] * scale - shift);
                part += scores.frag[n][i];
            }
        row_sum[half] = row_sum[half] * rescale[half] + part;
    }
}

template <int D>
__device__ inline void scale_rows(Accumulator<D>& acc, const float (&by)[2]) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc.frag[n][i] *= by[i / 2];
}

// Divides one of a lane's two rows by its sum, and returns that sum. `part` is this lane's part of it.
template <int D>
__device__ inline float divide_by_row_sum(Accumulator<D>& out, int half, float part) {
    float sum = part;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
        out.frag[n][2 * half] *= inverse;
        out.frag[n][2 * half + 1] *= inverse;
    }
    return sum;
}

// rowsum(dO * O) of one row. Four lanes share a row: each adds up every fourth group of eight columns.
template <int D>
__device__ inline float row_delta(const bf16* d_out, const bf16* out, bool valid) {
    float sum = 0.0f;
    if (valid)
#pragma unroll
        for (int from = 0; from < D; from += 32) {
            const int c = from + 8 * (threadIdx.x % 4);
            float d_values[8], values[8];
            to_float(*reinterpret_cast<const Bf16x8*>(d_out + c), d_values);
            to_float(*reinterpret_cast<const Bf16x8*>(out + c), values);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += d_values[i] * values[i];
        }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return sum;
}

// Writes a warp's accumulators as bfloat16 rows of `to`, by way of its own rows of shared memory, from row `first` of `tile` on.
// Nobody may read those any more.
template <int D, int M, typename Tile>
__device__ inline void store_rows(bf16* to, size_t stride, int count, Tile& tile, int first, const Accumulator<D> (&acc)[M],
                                  float scale) {
    const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            const float (&frag)[4] = acc[m].frag[n];
            const int row = first + 16 * m + r;
            reinterpret_cast<uint32_t*>(tile.chunk(row, n))[t] = to_bf16(frag[0] * scale, frag[1] * scale);
            reinterpret_cast<uint32_t*>(tile.chunk(row + 8, n))[t] = to_bf16(frag[2] * scale, frag[3] * scale);
        }
    __syncwarp();
    for (int i = lane; i < 16 * M * (D / 8); i += 32) {
        const int row = first + i / (D / 8), c = i % (D / 8);
        if (row < count) *reinterpret_cast<Bf16x8*>(to + row * stride + c * 8) = *tile.chunk(row, c);
    }
}
