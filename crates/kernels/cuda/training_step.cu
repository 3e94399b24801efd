// The two ends of a step: what was said against logits, and new weights from gradients.
#include "common.cuh"
#include "tensor.cuh"
#if __CUDA_ARCH__ >= 900
#include <cooperative_groups.h>
#endif

namespace {

constexpr int threads = 512;

constexpr float log2e = 1.44269504f;

// Several sums of a block at once, for every thread.
struct Partial {
    float top, total, weighted;  // sums of exp(x - top), and of x times that
};

__device__ inline Partial join(const Partial& one, const Partial& two) {
    const float top = fmaxf(one.top, two.top);
    const float left = power_of_2((one.top - top) * log2e), right = power_of_2((two.top - top) * log2e);
    return {top, one.total * left + two.total * right, one.weighted * left + two.weighted * right};
}

__device__ inline Partial join_block(Partial mine, Partial* room) {
#pragma unroll
    for (int step = 16; step; step >>= 1) {
        const Partial other = {__shfl_xor_sync(~0u, mine.top, step), __shfl_xor_sync(~0u, mine.total, step),
                               __shfl_xor_sync(~0u, mine.weighted, step)};
        mine = join(mine, other);
    }
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = room[0];
    for (int warp = 1; warp < threads / 32; ++warp) mine = join(mine, room[warp]);
    return mine;
}

}  // namespace

struct Score {
    float* logprobs;
    float* entropies;
    bf16* slopes;  // of logits; may be left out
    const float* logits;
    const uint32_t* targets;
    const float2* wanted;  // how the loss changes with a row's log-probability and entropy; only with slopes
    int vocabulary;
    int share;  // logits of a row that one of its blocks has, a multiple of eight
    int kept;   // of these in shared memory, a multiple of eight; others are read twice
};

namespace {

#if __CUDA_ARCH__ >= 900
// Blocks that have a row together.
struct Company {
    cooperative_groups::cluster_group blocks = cooperative_groups::this_cluster();
    __device__ int size() const { return blocks.num_blocks(); }
    __device__ int rank() const { return blocks.block_rank(); }
    __device__ Partial join(const Partial& mine, Partial& shown) const {
        if (size() == 1) return mine;
        if (threadIdx.x == 0) shown = mine;
        blocks.sync();
        Partial all = *blocks.map_shared_rank(&shown, 0);
        for (int other = 1; other < size(); ++other) all = ::join(all, *blocks.map_shared_rank(&shown, other));
        return all;
    }
    // Nobody leaves while others read.
    __device__ void part() const {
        if (size() > 1) blocks.sync();
    }
};
#else
struct Company {
    __device__ int size() const { return 1; }
    __device__ int rank() const { return 0; }
    __device__ Partial join(const Partial& mine, Partial&) const { return mine; }
    __device__ void part() const {}
};
#endif

__device__ inline void take(Partial& mine, const float4& x) {
    const float top = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
    if (top > mine.top) {
        const float shrink = power_of_2((mine.top - top) * log2e);
        mine = {top, mine.total * shrink, mine.weighted * shrink};
    }
    const float shift = mine.top * log2e;
    const float a = power_of_2(x.x * log2e - shift), b = power_of_2(x.y * log2e - shift), c = power_of_2(x.z * log2e - shift),
                d = power_of_2(x.w * log2e - shift);
    mine.total += (a + b) + (c + d);
    mine.weighted += (a * x.x + b * x.y) + (c * x.z + d * x.w);
}

}  // namespace

// The log-probability of a row's target and the entropy of its distribution; then slopes of its logits. Grid: rows times the blocks
// that have one together. A row that the loss does not depend on is skipped where slopes are asked for.
extern "C" __global__ __launch_bounds__(threads) void training_score(const Score asked) {
    extern __shared__ __align__(16) unsigned char score_room[];
    __shared__ Partial room[threads / 32], shown;
    wait_for_previous();
    const Company company;
    const int vocabulary = asked.vocabulary, first = company.rank() * asked.share;
    const int count = max(0, min(asked.share, vocabulary - first)), kept = min(count, asked.kept);
    const size_t row = blockIdx.x / company.size();
    const float* logits = asked.logits + row * vocabulary + first;
    bf16* slopes = asked.slopes ? asked.slopes + row * vocabulary + first : nullptr;
    const float2 wanted = slopes ? asked.wanted[row] : make_float2(0.0f, 0.0f);
    if (slopes && wanted.x == 0.0f && wanted.y == 0.0f) {
        for (int i = 8 * threadIdx.x; i < count; i += 8 * threads) *reinterpret_cast<Eight*>(slopes + i) = {};
        if (threadIdx.x == 0 && first == 0) asked.logprobs[row] = asked.entropies[row] = 0.0f;
        return;
    }
    // All that is kept is on its way at once; a thread waits for what it fetched itself, in four parts.
    float* mine_kept = reinterpret_cast<float*>(score_room);
    const int fours = (kept + 4 * threads - 1) / (4 * threads), quarter = (fours + 3) / 4;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        for (int k = part * quarter; k < (part + 1) * quarter; ++k)
            if (const int i = 4 * (k * threads + threadIdx.x); i < kept) fetch(mine_kept + i, logits + i, true);
        end_group();
    }
    Partial mine = {-1e30f, 0.0f, 0.0f};
    for (int i = kept + 4 * threadIdx.x; i < count; i += 4 * threads) take(mine, *reinterpret_cast<const float4*>(logits + i));
    const auto take_part = [&](int part) {
        for (int k = part * quarter; k < (part + 1) * quarter; ++k)
            if (const int i = 4 * (k * threads + threadIdx.x); i < kept) take(mine, *reinterpret_cast<const float4*>(mine_kept + i));
    };
    wait_for_groups<3>();
    take_part(0);
    wait_for_groups<2>();
    take_part(1);
    wait_for_groups<1>();
    take_part(2);
    wait_for_groups<0>();
    take_part(3);
    mine = company.join(join_block(mine, room), shown);
    const float log_total = mine.top + logf(mine.total), entropy = log_total - mine.weighted / mine.total;
    const int target = static_cast<int>(asked.targets[row]) - first;
    if (threadIdx.x == 0 && target >= 0 && target < count) asked.logprobs[row] = logits[target] - log_total;
    if (threadIdx.x == 0 && first == 0) asked.entropies[row] = entropy;
    // Of the log-probability: (i is the target) - p. Of the entropy: -p * (log p + entropy).
    const float shift = log_total * log2e, constant = wanted.x + wanted.y * (entropy - log_total);
    const auto slope = [&](float x) { return -power_of_2(x * log2e - shift) * (constant + wanted.y * x); };
    if (slopes) {
        const auto write = [&](int i, const float* from) {
            const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
            float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int j = 0; j < 8; ++j) x[j] = slope(x[j]);
            *reinterpret_cast<Eight*>(slopes + i) = narrow(x);
        };
        for (int i = 8 * threadIdx.x; i < kept; i += 8 * threads) write(i, mine_kept + i);
        for (int i = kept + 8 * threadIdx.x; i < count; i += 8 * threads) write(i, logits + i);
        __syncthreads();  // only now: the target was written with the others
        if (threadIdx.x == 0 && target >= 0 && target < count)
            slopes[target] = __float2bfloat16_rn(wanted.x + slope(logits[target]));
    }
    company.part();
}

struct Squares {
    float* parts;  // one a block
    const float* gradient;
    size_t count;  // a multiple of four
};

extern "C" __global__ __launch_bounds__(threads) void training_squares(const Squares asked) {
    __shared__ float room[threads / 32];
    wait_for_previous();
    float sum = 0.0f;
    for (size_t i = 4 * (static_cast<size_t>(blockIdx.x) * threads + threadIdx.x); i < asked.count;
         i += 4 * static_cast<size_t>(gridDim.x) * threads) {
        const float4 one = *reinterpret_cast<const float4*>(asked.gradient + i);
        sum += (one.x * one.x + one.y * one.y) + (one.z * one.z + one.w * one.w);
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) asked.parts[blockIdx.x] = sum;
}

// What changes from step to step.
struct Settings {
    float rate;       // over how much of the first mean is not its start
    float root;       // one over the root of how much of the second mean is not its start
    float kept;       // what weight decay leaves
    float beta1, beta2, epsilon, longest;
};

struct AdamW {
    float* weights;
    float* first;
    float* second;
    bf16* narrow_weights;
    float* length;  // of the gradient, before it is shortened
    const float* gradient;
    const float* parts;
    const Settings* settings;
    size_t count, decays_from;  // multiples of four
    int part_count;
};

// One step of all weights. Where the gradient's length is not finite, nothing is changed but that.
extern "C" __global__ __launch_bounds__(threads) void training_adamw(const AdamW asked) {
    __shared__ float room[threads / 32];
    wait_for_previous();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < asked.part_count; i += threads) sum += asked.parts[i];
    const float length = sqrtf(block_sum(sum, room));
    if (blockIdx.x == 0 && threadIdx.x == 0) *asked.length = length;
    if (!isfinite(length)) return;
    const Settings s = *asked.settings;
    const float shorten = fminf(1.0f, s.longest / (length + 1e-6f));
    for (size_t i = 4 * (static_cast<size_t>(blockIdx.x) * threads + threadIdx.x); i < asked.count;
         i += 4 * static_cast<size_t>(gridDim.x) * threads) {
        const float kept = i >= asked.decays_from ? s.kept : 1.0f;
        const float4 slopes = *reinterpret_cast<const float4*>(asked.gradient + i);
        float4 weights = *reinterpret_cast<const float4*>(asked.weights + i);
        float4 firsts = *reinterpret_cast<const float4*>(asked.first + i), seconds = *reinterpret_cast<const float4*>(asked.second + i);
        const auto step = [&](float& weight, float& first, float& second, float slope) {
            slope *= shorten;
            first = s.beta1 * first + (1.0f - s.beta1) * slope;
            second = s.beta2 * second + (1.0f - s.beta2) * slope * slope;
            weight = kept * weight - s.rate * first / (sqrtf(second) * s.root + s.epsilon);
        };
        step(weights.x, firsts.x, seconds.x, slopes.x);
        step(weights.y, firsts.y, seconds.y, slopes.y);
        step(weights.z, firsts.z, seconds.z, slopes.z);
        step(weights.w, firsts.w, seconds.w, slopes.w);
        *reinterpret_cast<float4*>(asked.weights + i) = weights;
        *reinterpret_cast<float4*>(asked.first + i) = firsts;
        *reinterpret_cast<float4*>(asked.second + i) = seconds;
        *reinterpret_cast<uint2*>(asked.narrow_weights + i) =
            make_uint2(narrow(weights.x, weights.y), narrow(weights.z, weights.w));
    }
}
