// Prefill: attention of many new positions of a sequence over themselves and its KV cache.
//
// A block has up to 64 positions of one head, a warp 16 of them. Keys and values come in tiles of 64 through shared memory;
// scores never leave it. Products run on tensor cores, sums and softmax in float32.
#include <mma.h>

#include "primitives.cuh"

using namespace nvcuda;

// Consecutive new positions of one sequence, as the host cuts prompts into tiles.
struct PrefillTile {
    uint32_t row, count, slot, position;
};

namespace {

constexpr int tile = 64, warps = 4, threads = 32 * warps;
constexpr float masked_score = -1e30f;

template <int D>
struct PrefillSmem {
    // Rows are padded, so that neighbours lie in different banks.
    union {
        alignas(32) bf16 query[tile][D + 8];  // until each warp has its rows in registers
        alignas(32) float score[tile][tile + 4];
    };
    alignas(32) bf16 key[tile][D + 8];
    alignas(32) bf16 value[tile][D + 8];
    alignas(32) bf16 probs[tile][tile + 8];
    alignas(32) float out[tile][D + 4];
};

template <int D>
__device__ void prefill(bf16* out, const bf16* qkv, int qkv_width, const bf16* keys, const bf16* values, const PrefillTile* tiles,
                        int heads, int kv_heads, int capacity, float scale) {
    extern __shared__ __align__(32) unsigned char smem_raw[];
    PrefillSmem<D>& smem = *reinterpret_cast<PrefillSmem<D>*>(smem_raw);
    const PrefillTile block = tiles[blockIdx.x];
    const int head = blockIdx.y, kv_head = head / (heads / kv_heads);
    const int count = static_cast<int>(block.count), first = static_cast<int>(block.position);
    const size_t base = (static_cast<size_t>(block.slot) * kv_heads + kv_head) * capacity;
    constexpr int row_chunks = D / 8;

    for (int i = threadIdx.x; i < tile * row_chunks; i += threads) {
        const int r = i / row_chunks, c = i % row_chunks * 8;
        Bf16x8 chunk = {};
        if (r < count)
            chunk = *reinterpret_cast<const Bf16x8*>(qkv + static_cast<size_t>(block.row + r) * qkv_width + head * D + c);
        *reinterpret_cast<Bf16x8*>(&smem.query[r][c]) = chunk;
    }
    for (int i = threadIdx.x; i < tile * D; i += threads) smem.out[i / D][i % D] = 0.0f;

    // Two lanes share a row of the warp's sixteen: one has the left half of the columns, one the right.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp * 16 + lane / 2, column_half = lane % 2;
    float row_max = masked_score, row_sum = 0.0f;
    __syncthreads();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> query[D / 16];
#pragma unroll
    for (int k = 0; k < D; k += 16) wmma::load_matrix_sync(query[k / 16], &smem.query[warp * 16][k], D + 8);
    const int length = first + count;
    for (int from = 0; from < length; from += tile) {
        __syncthreads();  // all warps are done with the tile before
        for (int i = threadIdx.x; i < tile * row_chunks; i += threads) {
            const int r = i / row_chunks, c = i % row_chunks * 8;
            Bf16x8 key = {}, value = {};
            if (from + r < length) {
                const size_t offset = (base + from + r) * D + c;
                key = *reinterpret_cast<const Bf16x8*>(keys + offset);
                value = *reinterpret_cast<const Bf16x8*>(values + offset);
            }
            *reinterpret_cast<Bf16x8*>(&smem.key[r][c]) = key;
            *reinterpret_cast<Bf16x8*>(&smem.value[r][c]) = value;
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < tile; n += 16) {
            wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
            wmma::fill_fragment(acc, 0.0f);
#pragma unroll
            for (int k = 0; k < D; k += 16) {
                wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::col_major> b;
                wmma::load_matrix_sync(b, &smem.key[n][k], D + 8);
                wmma::mma_sync(acc, query[k / 16], b, acc);
            }
            wmma::store_matrix_sync(&smem.score[warp * 16][n], acc, tile + 4, wmma::mem_row_major);
        }
        __syncwarp();

        // A row sees itself and what came before. What rows beyond `count` compute is never read.
        const int visible_keys = min(tile, first + row - from + 1);
        float new_max = row_max;
        for (int c = column_half * 32; c < column_half * 32 + 32; ++c)
            if (c < visible_keys) new_max = fmaxf(new_max, smem.score[row][c] * scale * 1.44269504f);
        new_max = fmaxf(new_max, __shfl_xor_sync(~0u, new_max, 1));
        const float rescale = exp2f(row_max - new_max);
        row_max = new_max;
        float part = 0.0f;
        for (int c = column_half * 32; c < column_half * 32 + 32; ++c) {
            const float prob = c < visible_keys ? exp2f(smem.score[row][c] * scale * 1.44269504f - new_max) : 0.0f;
            smem.probs[row][c] = __float2bfloat16_rn(prob);
            part += prob;
        }
        row_sum = row_sum * rescale + part + __shfl_xor_sync(~0u, part, 1);
        for (int d = column_half * (D / 2); d < (column_half + 1) * (D / 2); ++d) smem.out[row][d] *= rescale;
        __syncwarp();
#pragma unroll
        for (int n = 0; n < D; n += 16) {
            wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
            wmma::load_matrix_sync(acc, &smem.out[warp * 16][n], D + 4, wmma::mem_row_major);
#pragma unroll
            for (int k = 0; k < tile; k += 16) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> a;
                wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> b;
                wmma::load_matrix_sync(a, &smem.probs[warp * 16][k], tile + 8);
                wmma::load_matrix_sync(b, &smem.value[k][n], D + 8);
                wmma::mma_sync(acc, a, b, acc);
            }
            wmma::store_matrix_sync(&smem.out[warp * 16][n], acc, D + 4, wmma::mem_row_major);
        }
        __syncwarp();
    }
    if (row < count) {
        bf16* to = out + (static_cast<size_t>(block.row + row) * heads + head) * D;
        for (int d = column_half * (D / 2); d < (column_half + 1) * (D / 2); d += 8) {
            float chunk[8];
#pragma unroll
            for (int j = 0; j < 8; ++j) chunk[j] = smem.out[row][d + j] / row_sum;
            *reinterpret_cast<Bf16x8*>(to + d) = to_bf16(chunk);
        }
    }
}

}  // namespace

#define PREFILL(D)                                                                                                            \
    extern "C" __global__ __launch_bounds__(threads) void flash_attn_prefill_##D(                                             \
        bf16* out, const bf16* qkv, int qkv_width, const bf16* keys, const bf16* values, const PrefillTile* tiles, int heads, \
        int kv_heads, int capacity, float scale) {                                                                            \
        static_assert(sizeof(PrefillSmem<D>) == 512 * D + 29696, "the host requests this many bytes");                        \
        prefill<D>(out, qkv, qkv_width, keys, values, tiles, heads, kv_heads, capacity, scale);                               \
    }
PREFILL(64)
PREFILL(128)
