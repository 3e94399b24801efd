// The two ends of a step: what was said against logits, and new weights from gradients.
#include "common.cuh"

namespace {

constexpr int threads = 512;

// Several sums of a block at once, for every thread.
struct Partial {
    float top, total, weighted;  // sums of exp(x - top), and of x times that
};

__device__ inline Partial join(const Partial& one, const Partial& two) {
    const float top = fmaxf(one.top, two.top);
    const float left = __expf(one.top - top), right = __expf(two.top - top);
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
};

// The log-probability of a row's target and the entropy of its distribution; then slopes of its logits. Grid: rows.
// A row that the loss does not depend on is skipped where slopes are asked for.
extern "C" __global__ __launch_bounds__(threads) void training_score(const Score asked) {
    __shared__ Partial room[threads / 32];
    wait_for_previous();
    const int vocabulary = asked.vocabulary;
    const size_t row = blockIdx.x;
    const float* logits = asked.logits + row * vocabulary;
    bf16* slopes = asked.slopes ? asked.slopes + row * vocabulary : nullptr;
    const float2 wanted = slopes ? asked.wanted[row] : make_float2(0.0f, 0.0f);
    if (slopes && wanted.x == 0.0f && wanted.y == 0.0f) {
        for (int i = 8 * threadIdx.x; i < vocabulary; i += 8 * threads) *reinterpret_cast<Eight*>(slopes + i) = {};
        if (threadIdx.x == 0) asked.logprobs[row] = asked.entropies[row] = 0.0f;
        return;
    }
    Partial mine = {-1e30f, 0.0f, 0.0f};
    for (int i = 4 * threadIdx.x; i < vocabulary; i += 4 * threads) {
        const float4 x = *reinterpret_cast<const float4*>(logits + i);
        const float top = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
        if (top > mine.top) {
            const float shrink = __expf(mine.top - top);
            mine = {top, mine.total * shrink, mine.weighted * shrink};
        }
        const float a = __expf(x.x - mine.top), b = __expf(x.y - mine.top), c = __expf(x.z - mine.top), d = __expf(x.w - mine.top);
        mine.total += (a + b) + (c + d);
        mine.weighted += (a * x.x + b * x.y) + (c * x.z + d * x.w);
    }
    mine = join_block(mine, room);
    const float log_total = mine.top + logf(mine.total), entropy = log_total - mine.weighted / mine.total;
    const int target = static_cast<int>(asked.targets[row]);
    if (threadIdx.x == 0) {
        asked.logprobs[row] = logits[target] - log_total;
        asked.entropies[row] = entropy;
    }
    if (!slopes) return;
    // Of the log-probability: (i is the target) - p. Of the entropy: -p * (log p + entropy).
    for (int i = 8 * threadIdx.x; i < vocabulary; i += 8 * threads) {
        const float4 low = *reinterpret_cast<const float4*>(logits + i), high = *reinterpret_cast<const float4*>(logits + i + 4);
        float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float logp = x[j] - log_total, p = __expf(logp);
            x[j] = -p * (wanted.x + wanted.y * (logp + entropy)) + (i + j == target ? wanted.x : 0.0f);
        }
        *reinterpret_cast<Eight*>(slopes + i) = narrow(x);
    }
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
