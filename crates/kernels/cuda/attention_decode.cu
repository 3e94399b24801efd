// Attention of one new position per sequence over everything before it.
//
// Bound by reading keys and values, which the query heads of one key head share: a block serves them all. A key is read by
// D / 8 lanes, 16 bytes each; each such team goes through positions of its own with a maximum and sums of its own, and they
// are brought together at the end. Where sequences are few, several blocks share one (`splits`) and `combine` ends it.
#include "common.cuh"

namespace {

constexpr int threads = 128, ahead = 4;  // positions a team has under way
constexpr float nothing = -1e30f;        // less than any score, and finite: no NaN from subtracting it

template <int D, int G>
__device__ void decode(bf16* out, float* part_sums, float2* part_scales, const bf16* qkv, int qkv_width, const bf16* keys,
                       const bf16* values, const uint32_t* slots, const uint32_t* positions, int kv_heads, int capacity,
                       float scale) {
    constexpr int lanes = D / 8, teams = threads / lanes;
    __shared__ float all_sums[teams][G][D];
    __shared__ float2 all_scales[teams][G];
    const int kv_head = blockIdx.x, row = blockIdx.y, split = blockIdx.z, splits = gridDim.z;
    const int lane = threadIdx.x % lanes, team = threadIdx.x / lanes;
    // Teams of one warp may end at different turns: each speaks among itself only.
    const unsigned together = ((1ull << lanes) - 1) << (threadIdx.x % 32 / lanes * lanes);
    const int length = static_cast<int>(positions[row]) + 1;
    const int share = (length + splits - 1) / splits;
    const int begin = split * share, end = min(length, begin + share);
    const size_t base = (static_cast<size_t>(slots[row]) * kv_heads + kv_head) * capacity;

    float query[G][8], sums[G][8] = {}, top[G], total[G];
#pragma unroll
    for (int g = 0; g < G; ++g) {
        widen(*reinterpret_cast<const Eight*>(qkv + static_cast<size_t>(row) * qkv_width + (kv_head * G + g) * D + lane * 8), query[g]);
#pragma unroll
        for (int j = 0; j < 8; ++j) query[g][j] *= scale * 1.44269504f;  // powers of two below
        top[g] = nothing;
        total[g] = 0.0f;
    }
    for (int first = begin + team; first < end; first += teams * ahead) {
        Eight key[ahead], value[ahead];
#pragma unroll
        for (int a = 0; a < ahead; ++a) {
            const int position = min(first + a * teams, end - 1);
            const size_t place = (base + position) * D + lane * 8;
            key[a] = *reinterpret_cast<const Eight*>(keys + place);
            value[a] = *reinterpret_cast<const Eight*>(values + place);
        }
        float score[ahead][G];
#pragma unroll
        for (int a = 0; a < ahead; ++a) {
            float k[8];
            widen(key[a], k);
#pragma unroll
            for (int g = 0; g < G; ++g) {
                float dot = 0.0f;
#pragma unroll
                for (int j = 0; j < 8; ++j) dot += query[g][j] * k[j];
#pragma unroll
                for (int step = lanes / 2; step; step >>= 1) dot += __shfl_xor_sync(together, dot, step);
                score[a][g] = first + a * teams < end ? dot : nothing;
            }
        }
#pragma unroll
        for (int g = 0; g < G; ++g) {
            float highest = top[g];
#pragma unroll
            for (int a = 0; a < ahead; ++a) highest = fmaxf(highest, score[a][g]);
            const float shrink = exp2f(top[g] - highest);
            top[g] = highest;
            total[g] *= shrink;
#pragma unroll
            for (int j = 0; j < 8; ++j) sums[g][j] *= shrink;
#pragma unroll
            for (int a = 0; a < ahead; ++a) {
                score[a][g] = exp2f(score[a][g] - highest);
                total[g] += score[a][g];
            }
        }
#pragma unroll
        for (int a = 0; a < ahead; ++a) {
            float v[8];
            widen(value[a], v);
#pragma unroll
            for (int g = 0; g < G; ++g)
#pragma unroll
                for (int j = 0; j < 8; ++j) sums[g][j] += score[a][g] * v[j];
        }
    }
#pragma unroll
    for (int g = 0; g < G; ++g) {
#pragma unroll
        for (int j = 0; j < 8; ++j) all_sums[team][g][lane * 8 + j] = sums[g][j];
        if (lane == 0) all_scales[team][g] = make_float2(top[g], total[g]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < G * D; i += threads) {
        const int g = i / D, d = i % D;
        float highest = nothing;
        for (int t = 0; t < teams; ++t) highest = fmaxf(highest, all_scales[t][g].x);
        float whole = 0.0f, sum = 0.0f;
        for (int t = 0; t < teams; ++t) {
            const float shrink = exp2f(all_scales[t][g].x - highest);
            whole += all_scales[t][g].y * shrink;
            sum += all_sums[t][g][d] * shrink;
        }
        const size_t head = (static_cast<size_t>(row) * kv_heads + kv_head) * G + g;
        if (splits == 1) {
            out[head * D + d] = __float2bfloat16_rn(sum / whole);
        } else {
            const size_t place = static_cast<size_t>(split) * gridDim.y * kv_heads * G + head;
            part_sums[place * D + d] = sum;
            if (d == 0) part_scales[place] = make_float2(highest, whole);
        }
    }
}

}  // namespace

#define DECODE(D, G)                                                                                                       \
    extern "C" __global__ __launch_bounds__(threads) void attention_decode_##D##_##G(                                      \
        bf16* out, float* part_sums, float2* part_scales, const bf16* qkv, int qkv_width, const bf16* keys,                \
        const bf16* values, const uint32_t* slots, const uint32_t* positions, int kv_heads, int capacity, float scale) {   \
        decode<D, G>(out, part_sums, part_scales, qkv, qkv_width, keys, values, slots, positions, kv_heads, capacity, scale); \
    }
#define DECODE_ALL(D) DECODE(D, 1) DECODE(D, 2) DECODE(D, 3) DECODE(D, 4) DECODE(D, 5) DECODE(D, 6) DECODE(D, 7) DECODE(D, 8)
DECODE_ALL(64)
DECODE_ALL(128)

// Brings the parts of every head together. Grid: rows x heads. Block: one head.
extern "C" __global__ void attention_combine(bf16* __restrict__ out, const float* __restrict__ part_sums,
                                             const float2* __restrict__ part_scales, int splits) {
    const size_t head = blockIdx.x, heads = gridDim.x;
    float highest = nothing;
    for (int s = 0; s < splits; ++s) highest = fmaxf(highest, part_scales[s * heads + head].x);
    float whole = 0.0f, sum = 0.0f;
    for (int s = 0; s < splits; ++s) {
        const float2 scale = part_scales[s * heads + head];
        const float shrink = exp2f(scale.x - highest);
        whole += scale.y * shrink;
        sum += part_sums[(s * heads + head) * blockDim.x + threadIdx.x] * shrink;
    }
    out[head * blockDim.x + threadIdx.x] = __float2bfloat16_rn(sum / whole);
}
