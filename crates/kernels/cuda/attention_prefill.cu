// Attention of many new positions of a sequence over itself and everything before: prompts.
//
// A block has up to 64 positions of one head, a warp 16 of them. Keys and values come in tiles of 64 through shared memory;
// scores never leave it. Products are on tensor cores, sums and softmax in float32.
#include <mma.h>

#include "common.cuh"

using namespace nvcuda;

// Neighbouring new positions of one sequence; what the host cuts segments into.
struct Tile {
    uint32_t row, count, slot, position;
};

namespace {

constexpr int tile = 64, warps = 4, threads = 32 * warps;
constexpr float nothing = -1e30f;

template <int D>
struct Shared {
    // Rows are a few numbers longer than they need be, so that neighbours lie in different banks.
    union {
        alignas(32) bf16 query[tile][D + 8];  // until each warp has its own in registers
        alignas(32) float score[tile][tile + 4];
    };
    alignas(32) bf16 key[tile][D + 8];
    alignas(32) bf16 value[tile][D + 8];
    alignas(32) bf16 share[tile][tile + 8];
    alignas(32) float sum[tile][D + 4];
};

template <int D>
__device__ void prefill(bf16* out, const bf16* qkv, int qkv_width, const bf16* keys, const bf16* values, const Tile* tiles,
                        int heads, int kv_heads, int capacity, float scale) {
    extern __shared__ __align__(32) unsigned char room[];
    Shared<D>& s = *reinterpret_cast<Shared<D>*>(room);
    const Tile at = tiles[blockIdx.x];
    const int head = blockIdx.y, kv_head = head / (heads / kv_heads);
    const int count = static_cast<int>(at.count), first = static_cast<int>(at.position);
    const size_t base = (static_cast<size_t>(at.slot) * kv_heads + kv_head) * capacity;
    constexpr int eights = D / 8;

    for (int i = threadIdx.x; i < tile * eights; i += threads) {
        const int r = i / eights, c = i % eights * 8;
        Eight eight = {};
        if (r < count) eight = *reinterpret_cast<const Eight*>(qkv + static_cast<size_t>(at.row + r) * qkv_width + head * D + c);
        *reinterpret_cast<Eight*>(&s.query[r][c]) = eight;
    }
    for (int i = threadIdx.x; i < tile * D; i += threads) s.sum[i / D][i % D] = 0.0f;

    // Two lanes have a row of the warp's sixteen: one the left half, one the right.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp * 16 + lane / 2, side = lane % 2;
    float top = nothing, total = 0.0f;
    __syncthreads();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> query[D / 16];
#pragma unroll
    for (int k = 0; k < D; k += 16) wmma::load_matrix_sync(query[k / 16], &s.query[warp * 16][k], D + 8);
    const int length = first + count;
    for (int from = 0; from < length; from += tile) {
        __syncthreads();  // everybody is done with the tile before
        for (int i = threadIdx.x; i < tile * eights; i += threads) {
            const int r = i / eights, c = i % eights * 8;
            Eight key = {}, value = {};
            if (from + r < length) {
                const size_t place = (base + from + r) * D + c;
                key = *reinterpret_cast<const Eight*>(keys + place);
                value = *reinterpret_cast<const Eight*>(values + place);
            }
            *reinterpret_cast<Eight*>(&s.key[r][c]) = key;
            *reinterpret_cast<Eight*>(&s.value[r][c]) = value;
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < tile; n += 16) {
            wmma::fragment<wmma::accumulator, 16, 16, 16, float> product;
            wmma::fill_fragment(product, 0.0f);
#pragma unroll
            for (int k = 0; k < D; k += 16) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::col_major> right;
                wmma::load_matrix_sync(right, &s.key[n][k], D + 8);
                wmma::mma_sync(product, query[k / 16], right, product);
            }
            wmma::store_matrix_sync(&s.score[warp * 16][n], product, tile + 4, wmma::mem_row_major);
        }
        __syncwarp();

        // A row sees itself and what came before. Rows beyond `count` see what they like; nobody reads them.
        const int seen = min(tile, first + row - from + 1);
        float highest = top;
        for (int c = side * 32; c < side * 32 + 32; ++c)
            if (c < seen) highest = fmaxf(highest, s.score[row][c] * scale * 1.44269504f);
        highest = fmaxf(highest, __shfl_xor_sync(~0u, highest, 1));
        const float shrink = exp2f(top - highest);
        top = highest;
        float part = 0.0f;
        for (int c = side * 32; c < side * 32 + 32; ++c) {
            const float share = c < seen ? exp2f(s.score[row][c] * scale * 1.44269504f - highest) : 0.0f;
            s.share[row][c] = __float2bfloat16_rn(share);
            part += share;
        }
        total = total * shrink + part + __shfl_xor_sync(~0u, part, 1);
        for (int d = side * (D / 2); d < (side + 1) * (D / 2); ++d) s.sum[row][d] *= shrink;
        __syncwarp();
#pragma unroll
        for (int n = 0; n < D; n += 16) {
            wmma::fragment<wmma::accumulator, 16, 16, 16, float> product;
            wmma::load_matrix_sync(product, &s.sum[warp * 16][n], D + 4, wmma::mem_row_major);
#pragma unroll
            for (int k = 0; k < tile; k += 16) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> left;
                wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> right;
                wmma::load_matrix_sync(left, &s.share[warp * 16][k], tile + 8);
                wmma::load_matrix_sync(right, &s.value[k][n], D + 8);
                wmma::mma_sync(product, left, right, product);
            }
            wmma::store_matrix_sync(&s.sum[warp * 16][n], product, D + 4, wmma::mem_row_major);
        }
        __syncwarp();
    }
    if (row < count) {
        bf16* to = out + (static_cast<size_t>(at.row + row) * heads + head) * D;
        for (int d = side * (D / 2); d < (side + 1) * (D / 2); d += 8) {
            float eight[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) eight[j] = s.sum[row][d + j] / total;
            *reinterpret_cast<Eight*>(to + d) = narrow(eight);
        }
    }
}

}  // namespace

#define PREFILL(D)                                                                                                       \
    extern "C" __global__ __launch_bounds__(threads) void attention_prefill_##D(                                        \
        bf16* out, const bf16* qkv, int qkv_width, const bf16* keys, const bf16* values, const Tile* tiles, int heads,   \
        int kv_heads, int capacity, float scale) {                                                                       \
        static_assert(sizeof(Shared<D>) == 512 * D + 29696, "the host asks for this much");                              \
        prefill<D>(out, qkv, qkv_width, keys, values, tiles, heads, kv_heads, capacity, scale);                          \
    }
PREFILL(64)
PREFILL(128)
