// Decoding: attention of one new position per sequence over its KV cache (FlashDecoding).
//
// The kernel is bound by reading keys and values, which the query heads of one KV head share: a block serves them all. Each of its
// warps takes sixteen positions at a time with a running maximum and sum of its own, which are combined at the end. Positions are
// the rows of the tensor cores' tiles, heads the columns. Which dimension of a head stands in which column of a tile does not
// matter as long as both operands agree, so lanes read 16 bytes at once, straight from global memory.
//
// Before that, bias, head norm and RoPE are applied to the new position's queries and key, and its key and value go to the cache.
#include "primitives.cuh"

namespace {

constexpr int warps = 10, threads = 32 * warps, max_group = 8, tile_positions = 16;
constexpr float masked_score = -1e30f;  // less than any score, and finite: subtracting it gives no NaN

}  // namespace

struct DecodeParams {
    bf16* out;
    // Where several blocks split a sequence: their partial results, and how many of them have finished.
    float* partial_sums;
    float2* partial_max_sum;
    uint32_t* finished_splits;
    const bf16* qkv;
    const float* bias;        // may be null
    const float* query_norm;  // as may these
    const float* key_norm;
    const float* frequencies;
    bf16* keys;
    bf16* values;
    const uint32_t* slots;
    const uint32_t* positions;
    int heads, kv_heads, capacity;
    float scale, epsilon;
};

namespace {

// Bias, head norm and RoPE of one head of the new position, by a warp.
template <int D>
__device__ void bias_norm_rope(bf16* to, const bf16* from, const float* bias, const float* norm, const float* frequencies,
                               uint32_t position, float epsilon) {
    constexpr int half = D / 2, each = half / 32;
    const int lane = threadIdx.x % 32;
    float x1[each], x2[each], squares = 0.0f;
#pragma unroll
    for (int j = 0; j < each; ++j) {
        const int i = lane + 32 * j;
        x1[j] = __bfloat162float(from[i]);
        x2[j] = __bfloat162float(from[half + i]);
        if (bias) {
            x1[j] += bias[i];
            x2[j] += bias[half + i];
        }
        squares += x1[j] * x1[j] + x2[j] * x2[j];
    }
    const float scale = norm ? rsqrtf(warp_sum(squares) / D + epsilon) : 1.0f;
#pragma unroll
    for (int j = 0; j < each; ++j) {
        const int i = lane + 32 * j;
        if (norm) {
            x1[j] *= scale * norm[i];
            x2[j] *= scale * norm[half + i];
        }
        if (frequencies) {
            float sine, cosine;
            sincosf(static_cast<float>(position) * frequencies[i], &sine, &cosine);
            const float rotated = x1[j] * cosine - x2[j] * sine;
            x2[j] = x2[j] * cosine + x1[j] * sine;
            x1[j] = rotated;
        }
        to[i] = __float2bfloat16_rn(x1[j]);
        to[half + i] = __float2bfloat16_rn(x2[j]);
    }
}

// A lane's part of the keys and values of sixteen positions. Positions from `end` on are read as the last one.
template <int D>
struct KvTile {
    uint4 keys[2][D / 32], values[4][D / 64];

    __device__ void read_keys(const bf16* from, int first, int end) {
        const int r = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int low = 0; low < 2; ++low) {
            const bf16* row = from + static_cast<size_t>(min(first + r + 8 * low, end - 1)) * D + 8 * t;
#pragma unroll
            for (int i = 0; i < D / 32; ++i) keys[low][i] = *reinterpret_cast<const uint4*>(row + 32 * i);
        }
    }

    __device__ void read_values(const bf16* from, int first, int end) {
        const int r = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const bf16* row = from + static_cast<size_t>(min(first + 2 * t + k % 2 + k / 2 * 8, end - 1)) * D + 8 * r;
#pragma unroll
            for (int i = 0; i < D / 64; ++i) values[k][i] = *reinterpret_cast<const uint4*>(row + 64 * i);
        }
    }
};

// Two positions' bfloat16 of the low halves, or of the high halves.
__device__ uint32_t low_halves(uint32_t x1, uint32_t x2) { return __byte_perm(x1, x2, 0x5410); }
__device__ uint32_t high_halves(uint32_t x1, uint32_t x2) { return __byte_perm(x1, x2, 0x7632); }

__device__ uint32_t movmatrix_trans(uint32_t pair) {
    uint32_t other;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
    return other;
}

// Over the lanes that hold the same columns.
__device__ float column_max(float value) {
#pragma unroll
    for (int step = 4; step < 32; step <<= 1) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
    return value;
}

__device__ float column_sum(float value) {
#pragma unroll
    for (int step = 4; step < 32; step <<= 1) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

template <int D>
__device__ void decode(const DecodeParams& params) {
    __shared__ __align__(16) bf16 queries[max_group][D + 8];
    __shared__ __align__(16) float warp_acc[warps][max_group][D];
    __shared__ float2 warp_max_sum[warps][max_group];
    __shared__ bool is_last;
    const int kv_head = blockIdx.x, row = blockIdx.y, split = blockIdx.z, splits = gridDim.z;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int group = params.heads / params.kv_heads;
    pdl_launch_dependents();
    const uint32_t position = params.positions[row];
    const int length = static_cast<int>(position) + 1;
    const int split_length = ((length + splits - 1) / splits + tile_positions - 1) / tile_positions * tile_positions;
    const int begin = split * split_length, end = min(length, begin + split_length);
    const bool has_new_position = begin < length && end == length;
    const size_t base = (static_cast<size_t>(params.slots[row]) * params.kv_heads + kv_head) * params.capacity * D;
    bf16 *keys = params.keys + base, *values = params.values + base;

    // Earlier steps' keys and values are in the cache already; the tile with the new position is read after that has been written.
    KvTile<D> kv;
    int first = begin + warp * tile_positions;
    const bool loaded_early = first < end && !(has_new_position && first + tile_positions >= end);
    if (loaded_early) {
        kv.read_keys(keys, first, end);
        kv.read_values(values, first, end);
    }
    pdl_wait();
    const bf16* new_qkv = params.qkv + static_cast<size_t>(row) * (params.heads + 2 * params.kv_heads) * D;
    for (int item = warp; item < max_group + 2; item += warps) {
        if (item < max_group) {
            const int head = kv_head * group + item;
            if (item < group)
                bias_norm_rope<D>(queries[item], new_qkv + head * D, params.bias ? params.bias + head * D : nullptr,
                                  params.query_norm, params.frequencies, position, params.epsilon);
            else
                for (int i = lane; i < D; i += 32) queries[item][i] = __float2bfloat16_rn(0.0f);
        } else if (has_new_position) {
            const bool is_value = item > max_group;
            const int head = params.heads + (is_value ? params.kv_heads : 0) + kv_head;
            bias_norm_rope<D>((is_value ? values : keys) + static_cast<size_t>(position) * D, new_qkv + head * D,
                              params.bias ? params.bias + head * D : nullptr, is_value ? nullptr : params.key_norm,
                              is_value ? nullptr : params.frequencies, position, params.epsilon);
        }
    }
    __syncthreads();
    if (first < end && !loaded_early) {
        kv.read_keys(keys, first, end);
        kv.read_values(values, first, end);
    }
    uint4 query[D / 32];
#pragma unroll
    for (int i = 0; i < D / 32; ++i) query[i] = *reinterpret_cast<const uint4*>(&queries[r][32 * i + 8 * t]);

    const float scale = params.scale * 1.44269504f;  // exp2 below
    float acc[D / 16][4] = {}, row_max[2] = {masked_score, masked_score}, row_sum[2] = {};
    for (; first < end; first += warps * tile_positions) {
        float even[4] = {}, odd[4] = {};
#pragma unroll
        for (int i = 0; i < D / 32; ++i) {
            const uint4 &low = kv.keys[0][i], &high = kv.keys[1][i];
            mma_m16n8k16(even, low.x, high.x, low.y, high.y, query[i].x, query[i].y);
            mma_m16n8k16(odd, low.z, high.z, low.w, high.w, query[i].z, query[i].w);
        }
        const int next = first + warps * tile_positions;
        if (next < end) kv.read_keys(keys, next, end);
        float score[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) score[i] = first + r + i / 2 * 8 < end ? (even[i] + odd[i]) * scale : masked_score;
        float rescale[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float new_max = fmaxf(row_max[h], column_max(fmaxf(score[h], score[h + 2])));
            rescale[h] = exp2f(row_max[h] - new_max);
            row_max[h] = new_max;
            score[h] = exp2f(score[h] - new_max);
            score[h + 2] = exp2f(score[h + 2] - new_max);
            row_sum[h] = row_sum[h] * rescale[h] + score[h] + score[h + 2];
        }
        const uint32_t low = movmatrix_trans(to_bf16(score[0], score[1])), high = movmatrix_trans(to_bf16(score[2], score[3]));
#pragma unroll
        for (int tile = 0; tile < D / 16; ++tile) {
            uint32_t words[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const uint4& value = kv.values[k][tile / 4];
                words[k] = tile % 4 == 0 ? value.x : tile % 4 == 1 ? value.y : tile % 4 == 2 ? value.z : value.w;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[tile][i] *= rescale[i % 2];
            mma_m16n8k16(acc[tile], low_halves(words[0], words[1]), high_halves(words[0], words[1]), low_halves(words[2], words[3]),
                         high_halves(words[2], words[3]), low, high);
        }
        if (next < end) kv.read_values(values, next, end);
    }

#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int head = 2 * t + h;
#pragma unroll
        for (int tile = 0; tile < D / 16; ++tile)
            *reinterpret_cast<float2*>(&warp_acc[warp][head][tile / 4 * 64 + 8 * r + tile % 4 * 2]) =
                make_float2(acc[tile][h], acc[tile][h + 2]);
        const float total = column_sum(row_sum[h]);
        if (r == 0) warp_max_sum[warp][head] = make_float2(row_max[h], total);
    }
    __syncthreads();
    const size_t heads = static_cast<size_t>(row) * params.heads + kv_head * group;
    for (int i = threadIdx.x; i < group * D; i += threads) {
        const int head = i / D, d = i % D;
        float new_max = masked_score;
#pragma unroll
        for (int w = 0; w < warps; ++w) new_max = fmaxf(new_max, warp_max_sum[w][head].x);
        float total = 0.0f, sum = 0.0f;
#pragma unroll
        for (int w = 0; w < warps; ++w) {
            const float rescale = exp2f(warp_max_sum[w][head].x - new_max);
            total += warp_max_sum[w][head].y * rescale;
            sum += warp_acc[w][head][d] * rescale;
        }
        if (splits == 1) {
            params.out[(heads + head) * D + d] = __float2bfloat16_rn(sum / total);
        } else {
            const size_t index = (heads + head) * splits + split;
            params.partial_sums[index * D + d] = sum;
            if (d == 0) params.partial_max_sum[index] = make_float2(new_max, total);
        }
    }
    if (splits == 1) return;

    // The last block of a sequence to arrive here combines the partial results.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t* finished_splits = params.finished_splits + static_cast<size_t>(row) * params.kv_heads + kv_head;
        is_last = atomicAdd(finished_splits, 1u) == static_cast<uint32_t>(splits) - 1;
        if (is_last) *finished_splits = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    for (int i = threadIdx.x; i < group * D; i += threads) {
        const size_t head = heads + i / D;
        const int d = i % D;
        float new_max = masked_score;
        for (int s = 0; s < splits; ++s) new_max = fmaxf(new_max, __ldcg(&params.partial_max_sum[head * splits + s]).x);
        float total = 0.0f, sum = 0.0f;
        for (int s = 0; s < splits; ++s) {
            const float2 part = __ldcg(&params.partial_max_sum[head * splits + s]);
            const float rescale = exp2f(part.x - new_max);
            total += part.y * rescale;
            sum += __ldcg(&params.partial_sums[(head * splits + s) * D + d]) * rescale;
        }
        params.out[head * D + d] = __float2bfloat16_rn(sum / total);
    }
}

}  // namespace

// Grid: KV heads x rows x splits of a sequence.
extern "C" __global__ __maxnreg__(80) void flash_attn_decode_64(const DecodeParams params) { decode<64>(params); }
extern "C" __global__ __maxnreg__(128) void flash_attn_decode_128(const DecodeParams params) { decode<128>(params); }
