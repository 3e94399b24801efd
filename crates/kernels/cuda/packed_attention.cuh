// What the kernels of packed attention take, and sums in registers.
#pragma once
#include "tensor.cuh"

// Neighbouring rows of one sequence, which has rows `begin` up to `end`. None at all where a block has nothing to do.
struct Stretch {
    uint32_t row, count, begin, end;
};

// Sums of a row and head are at [head][row].
struct Forward {
    bf16* out;         // [row][head][number]
    float* log_totals;  // logarithm of the sum over exp(score)
    const bf16* qkv;
    const Stretch* stretches;
    int heads, kv_heads, rows;
    float scale;
};

struct Backward {
    bf16* slopes;      // of qkv
    float* agreements;  // sum over a head's outputs times their slopes
    const bf16* out_slopes;
    const bf16* out;
    const float* log_totals;
    const bf16* qkv;
    const Stretch* stretches;
    int heads, kv_heads, rows;
    float scale;
};

constexpr float nothing = -1e30f, log2e = 1.44269504f;

// What a warp has of a product: 16 rows, C columns in tiles of 8.
template <int C>
struct Sums {
    float at[C / 8][4];
    __device__ void clear() {
#pragma unroll
        for (int n = 0; n < C / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) at[n][i] = 0.0f;
    }
    // Sixteen columns as left factor of the next product.
    __device__ void left(uint32_t (&to)[4], int column) const {
        const float(&one)[4] = at[column / 8];
        const float(&two)[4] = at[column / 8 + 1];
        to[0] = narrow(one[0], one[1]);
        to[1] = narrow(one[2], one[3]);
        to[2] = narrow(two[0], two[1]);
        to[3] = narrow(two[2], two[3]);
    }
};

// What of a row's scores counts for nothing: those beyond its own place, or before it.
enum class Hidden { later, earlier };

// Scores of rows `row` and the eighth after it, at every fourth two columns from `column` on.
template <Hidden hidden, int N>
__device__ inline void hide(Sums<N>& score, int column, int row) {
    const int limit = row - column;
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int place = 8 * n + i % 2 - i / 2 * 8;
            if (hidden == Hidden::later ? place > limit : place < limit) score.at[n][i] = nothing;
        }
}

// Scores become shares of what was seen so far, up to a factor of each row: its highest score and the lane's part of its total are
// kept. Where the highest rose, what the outputs have of the row is too much by `shrink`.
template <int N>
__device__ inline void take_shares(Sums<N>& score, float (&top)[2], float (&total)[2], float (&shrink)[2], float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        float highest = top[half];
#pragma unroll
        for (int n = 0; n < N / 8; ++n) highest = fmaxf(highest, fmaxf(score.at[n][2 * half], score.at[n][2 * half + 1]));
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 2));
        shrink[half] = power_of_2((top[half] - highest) * scale);
        const float shift = highest * scale;
        top[half] = highest;
        float part = 0.0f;
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; ++i) {
                score.at[n][i] = power_of_2(score.at[n][i] * scale - shift);
                part += score.at[n][i];
            }
        total[half] = total[half] * shrink[half] + part;
    }
}

template <int D>
__device__ inline void scale_rows(Sums<D>& sums, const float (&by)[2]) {
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) sums.at[n][i] *= by[i / 2];
}

// Divides by the total of one of a lane's two rows, and gives that.
template <int D>
__device__ inline float divide_by_total(Sums<D>& out, int half, float part) {
    float sum = part;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float inverse = 1.0f / sum;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
        out.at[n][2 * half] *= inverse;
        out.at[n][2 * half + 1] *= inverse;
    }
    return sum;
}

// How far a row's outputs agree with their slopes. Four lanes have a row: each adds up every fourth eight numbers of it.
template <int D>
__device__ inline float agreement_of(const bf16* slopes, const bf16* outs, bool there) {
    float sum = 0.0f;
    if (there)
#pragma unroll
        for (int from = 0; from < D; from += 32) {
            const int c = from + 8 * (threadIdx.x % 4);
            float one[8], two[8];
            widen(*reinterpret_cast<const Eight*>(slopes + c), one);
            widen(*reinterpret_cast<const Eight*>(outs + c), two);
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += one[i] * two[i];
        }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return sum;
}

// Writes the warp's sums, whose first row in `room` is `first`, as rows of `to`, by way of its own rows of shared memory, which
// nobody else reads any more.
template <int D, int M, typename Room>
__device__ inline void write(bf16* to, size_t width, int count, Room& room, int first, const Sums<D> (&sums)[M], float scale) {
    const int lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            const float(&some)[4] = sums[m].at[n];
            const int row = first + 16 * m + r;
            reinterpret_cast<uint32_t*>(room.place(row, n))[t] = narrow(some[0] * scale, some[1] * scale);
            reinterpret_cast<uint32_t*>(room.place(row + 8, n))[t] = narrow(some[2] * scale, some[3] * scale);
        }
    __syncwarp();
    for (int i = lane; i < 16 * M * (D / 8); i += 32) {
        const int row = first + i / (D / 8), c = i % (D / 8);
        if (row < count) *reinterpret_cast<Eight*>(to + row * width + c * 8) = *room.place(row, c);
    }
}
