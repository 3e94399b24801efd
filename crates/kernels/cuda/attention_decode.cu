// Attention of one new position per sequence over everything before it.
//
// Bound by reading keys and values, which the query heads of one key head share: a block serves them all, each of its warps
// sixteen positions at a time with a maximum and sums of its own, brought together at the end. Positions are the rows of the
// tensor cores' tiles and heads the columns. Which number of a head stands in which column of a tile does not matter as long as
// both sides agree, so lanes read 16 bytes at once, straight from memory.
//
// Before that, the new position's queries and key are normed and turned, and its key and value put where they are kept.
#include "common.cuh"

namespace {

constexpr int warps = 10, threads = 32 * warps, most_heads = 8, unit = 16;
constexpr float nothing = -1e30f;  // less than any score, and finite: no NaN from subtracting it

}  // namespace

struct Asked {
    bf16* out;
    // Where several blocks share a sequence: their parts, and how many of them are done.
    float* part_sums;
    float2* part_scales;
    uint32_t* done;
    const bf16* qkv;
    const float* bias;        // may be left out
    const float* query_norm;  // so may these
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

// One head of the new position, by a warp.
template <int D>
__device__ void prepare(bf16* to, const bf16* from, const float* bias, const float* norm, const float* frequencies,
                        uint32_t position, float epsilon) {
    constexpr int half = D / 2, each = half / 32;
    const int lane = threadIdx.x % 32;
    float one[each], two[each], squares = 0.0f;
#pragma unroll
    for (int j = 0; j < each; ++j) {
        const int i = lane + 32 * j;
        one[j] = __bfloat162float(from[i]);
        two[j] = __bfloat162float(from[half + i]);
        if (bias) {
            one[j] += bias[i];
            two[j] += bias[half + i];
        }
        squares += one[j] * one[j] + two[j] * two[j];
    }
    const float scale = norm ? rsqrtf(warp_sum(squares) / D + epsilon) : 1.0f;
#pragma unroll
    for (int j = 0; j < each; ++j) {
        const int i = lane + 32 * j;
        if (norm) {
            one[j] *= scale * norm[i];
            two[j] *= scale * norm[half + i];
        }
        if (frequencies) {
            float sine, cosine;
            sincosf(static_cast<float>(position) * frequencies[i], &sine, &cosine);
            const float turned = one[j] * cosine - two[j] * sine;
            two[j] = two[j] * cosine + one[j] * sine;
            one[j] = turned;
        }
        to[i] = __float2bfloat16_rn(one[j]);
        to[half + i] = __float2bfloat16_rn(two[j]);
    }
}

// Sixteen positions' keys and values, as a lane has them. Positions from `end` on are read as the last one.
template <int D>
struct Kept {
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

// Pairs of positions' numbers: those of the lower halves, or of the upper.
__device__ uint32_t lower(uint32_t one, uint32_t two) { return __byte_perm(one, two, 0x5410); }
__device__ uint32_t upper(uint32_t one, uint32_t two) { return __byte_perm(one, two, 0x7632); }

__device__ uint32_t transposed(uint32_t pair) {
    uint32_t other;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
    return other;
}

// Over the lanes that have the same columns.
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
__device__ void decode(const Asked& asked) {
    __shared__ __align__(16) bf16 queries[most_heads][D + 8];
    __shared__ __align__(16) float all_sums[warps][most_heads][D];
    __shared__ float2 all_scales[warps][most_heads];
    __shared__ bool last;
    const int kv_head = blockIdx.x, row = blockIdx.y, split = blockIdx.z, splits = gridDim.z;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int group = asked.heads / asked.kv_heads;
    let_next_start();
    const uint32_t position = asked.positions[row];
    const int length = static_cast<int>(position) + 1;
    const int share = ((length + splits - 1) / splits + unit - 1) / unit * unit;
    const int begin = split * share, end = min(length, begin + share);
    const bool has_new = begin < length && end == length;
    const size_t base = (static_cast<size_t>(asked.slots[row]) * asked.kv_heads + kv_head) * asked.capacity * D;
    bf16 *keys = asked.keys + base, *values = asked.values + base;

    // What earlier steps kept is there already; the unit with the new position comes once that has been written.
    Kept<D> kept;
    int first = begin + warp * unit;
    const bool early = first < end && !(has_new && first + unit >= end);
    if (early) {
        kept.read_keys(keys, first, end);
        kept.read_values(values, first, end);
    }
    wait_for_previous();
    const bf16* fresh = asked.qkv + static_cast<size_t>(row) * (asked.heads + 2 * asked.kv_heads) * D;
    for (int task = warp; task < most_heads + 2; task += warps) {
        if (task < most_heads) {
            const int head = kv_head * group + task;
            if (task < group)
                prepare<D>(queries[task], fresh + head * D, asked.bias ? asked.bias + head * D : nullptr, asked.query_norm,
                           asked.frequencies, position, asked.epsilon);
            else
                for (int i = lane; i < D; i += 32) queries[task][i] = __float2bfloat16_rn(0.0f);
        } else if (has_new) {
            const bool is_value = task > most_heads;
            const int head = asked.heads + (is_value ? asked.kv_heads : 0) + kv_head;
            prepare<D>((is_value ? values : keys) + static_cast<size_t>(position) * D, fresh + head * D,
                       asked.bias ? asked.bias + head * D : nullptr, is_value ? nullptr : asked.key_norm,
                       is_value ? nullptr : asked.frequencies, position, asked.epsilon);
        }
    }
    __syncthreads();
    if (first < end && !early) {
        kept.read_keys(keys, first, end);
        kept.read_values(values, first, end);
    }
    uint4 query[D / 32];
#pragma unroll
    for (int i = 0; i < D / 32; ++i) query[i] = *reinterpret_cast<const uint4*>(&queries[r][32 * i + 8 * t]);

    const float scale = asked.scale * 1.44269504f;  // powers of two below
    float sums[D / 16][4] = {}, top[2] = {nothing, nothing}, total[2] = {};
    for (; first < end; first += warps * unit) {
        float even[4] = {}, odd[4] = {};
#pragma unroll
        for (int i = 0; i < D / 32; ++i) {
            const uint4 &low = kept.keys[0][i], &high = kept.keys[1][i];
            multiply(even, low.x, high.x, low.y, high.y, query[i].x, query[i].y);
            multiply(odd, low.z, high.z, low.w, high.w, query[i].z, query[i].w);
        }
        const int next = first + warps * unit;
        if (next < end) kept.read_keys(keys, next, end);
        float score[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) score[i] = first + r + i / 2 * 8 < end ? (even[i] + odd[i]) * scale : nothing;
        float shrink[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float highest = fmaxf(top[h], column_max(fmaxf(score[h], score[h + 2])));
            shrink[h] = exp2f(top[h] - highest);
            top[h] = highest;
            score[h] = exp2f(score[h] - highest);
            score[h + 2] = exp2f(score[h + 2] - highest);
            total[h] = total[h] * shrink[h] + score[h] + score[h + 2];
        }
        const uint32_t low = transposed(narrow(score[0], score[1])), high = transposed(narrow(score[2], score[3]));
#pragma unroll
        for (int tile = 0; tile < D / 16; ++tile) {
            uint32_t words[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const uint4& value = kept.values[k][tile / 4];
                words[k] = tile % 4 == 0 ? value.x : tile % 4 == 1 ? value.y : tile % 4 == 2 ? value.z : value.w;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) sums[tile][i] *= shrink[i % 2];
            multiply(sums[tile], lower(words[0], words[1]), upper(words[0], words[1]), lower(words[2], words[3]),
                     upper(words[2], words[3]), low, high);
        }
        if (next < end) kept.read_values(values, next, end);
    }

#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int head = 2 * t + h;
#pragma unroll
        for (int tile = 0; tile < D / 16; ++tile)
            *reinterpret_cast<float2*>(&all_sums[warp][head][tile / 4 * 64 + 8 * r + tile % 4 * 2]) =
                make_float2(sums[tile][h], sums[tile][h + 2]);
        const float whole = column_sum(total[h]);
        if (r == 0) all_scales[warp][head] = make_float2(top[h], whole);
    }
    __syncthreads();
    const size_t heads = static_cast<size_t>(row) * asked.heads + kv_head * group;
    for (int i = threadIdx.x; i < group * D; i += threads) {
        const int head = i / D, d = i % D;
        float highest = nothing;
#pragma unroll
        for (int w = 0; w < warps; ++w) highest = fmaxf(highest, all_scales[w][head].x);
        float whole = 0.0f, sum = 0.0f;
#pragma unroll
        for (int w = 0; w < warps; ++w) {
            const float shrink = exp2f(all_scales[w][head].x - highest);
            whole += all_scales[w][head].y * shrink;
            sum += all_sums[w][head][d] * shrink;
        }
        if (splits == 1) {
            asked.out[(heads + head) * D + d] = __float2bfloat16_rn(sum / whole);
        } else {
            const size_t place = (heads + head) * splits + split;
            asked.part_sums[place * D + d] = sum;
            if (d == 0) asked.part_scales[place] = make_float2(highest, whole);
        }
    }
    if (splits == 1) return;

    // The last block of a sequence to come here brings the parts together.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t* done = asked.done + static_cast<size_t>(row) * asked.kv_heads + kv_head;
        last = atomicAdd(done, 1u) == static_cast<uint32_t>(splits) - 1;
        if (last) *done = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int i = threadIdx.x; i < group * D; i += threads) {
        const size_t head = heads + i / D;
        const int d = i % D;
        float highest = nothing;
        for (int s = 0; s < splits; ++s) highest = fmaxf(highest, __ldcg(&asked.part_scales[head * splits + s]).x);
        float whole = 0.0f, sum = 0.0f;
        for (int s = 0; s < splits; ++s) {
            const float2 part = __ldcg(&asked.part_scales[head * splits + s]);
            const float shrink = exp2f(part.x - highest);
            whole += part.y * shrink;
            sum += __ldcg(&asked.part_sums[(head * splits + s) * D + d]) * shrink;
        }
        asked.out[head * D + d] = __float2bfloat16_rn(sum / whole);
    }
}

}  // namespace

// Grid: key heads x rows x blocks that share a sequence.
extern "C" __global__ __maxnreg__(80) void attention_decode_64(const Asked asked) { decode<64>(asked); }
extern "C" __global__ __maxnreg__(128) void attention_decode_128(const Asked asked) { decode<128>(asked); }
