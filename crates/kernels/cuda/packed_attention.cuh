// What the kernels of packed attention take, and sums in registers.
#pragma once
#include "common.cuh"

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
