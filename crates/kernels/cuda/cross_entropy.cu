// Fused cross-entropy head: log-probability of each row's target and entropy of its distribution from logits, and the gradient of
// the logits where it is asked for. Logits are read from global memory once.
#include "primitives.cuh"
#include "tile_load.cuh"
#if __CUDA_ARCH__ >= 900
#include <cooperative_groups.h>
#endif

namespace {

constexpr int threads = 512;

constexpr float log2e = 1.44269504f;

// Running maximum, sum of exp(x - max), and sum of x * exp(x - max).
struct SoftmaxStats {
    float max, sum, weighted;
};

__device__ inline SoftmaxStats combine(const SoftmaxStats& a, const SoftmaxStats& b) {
    const float max = fmaxf(a.max, b.max);
    const float scale_a = exp2_approx((a.max - max) * log2e), scale_b = exp2_approx((b.max - max) * log2e);
    return {max, a.sum * scale_a + b.sum * scale_b, a.weighted * scale_a + b.weighted * scale_b};
}

// Over the block, for every thread.
__device__ inline SoftmaxStats combine_block(SoftmaxStats mine, SoftmaxStats* scratch) {
#pragma unroll
    for (int step = 16; step; step >>= 1) {
        const SoftmaxStats other = {__shfl_xor_sync(~0u, mine.max, step), __shfl_xor_sync(~0u, mine.sum, step),
                                    __shfl_xor_sync(~0u, mine.weighted, step)};
        mine = combine(mine, other);
    }
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = scratch[0];
    for (int warp = 1; warp < threads / 32; ++warp) mine = combine(mine, scratch[warp]);
    return mine;
}

}  // namespace

struct CrossEntropyParams {
    float* logprobs;
    float* entropies;
    bf16* d_logits;  // may be null
    const float* logits;
    const uint32_t* targets;
    const float2* upstream;  // the loss's gradient with respect to a row's log-probability and entropy; only with d_logits
    int vocabulary;
    int share;    // logits of a row that one of its blocks has, a multiple of eight
    int in_smem;  // of these in shared memory, a multiple of eight; others are read twice
};

namespace {

#if __CUDA_ARCH__ >= 900
// The blocks that share a row: a thread block cluster.
struct RowCluster {
    cooperative_groups::cluster_group blocks = cooperative_groups::this_cluster();
    __device__ int size() const { return blocks.num_blocks(); }
    __device__ int rank() const { return blocks.block_rank(); }
    __device__ SoftmaxStats combine(const SoftmaxStats& mine, SoftmaxStats& shared) const {
        if (size() == 1) return mine;
        if (threadIdx.x == 0) shared = mine;
        blocks.sync();
        SoftmaxStats all = *blocks.map_shared_rank(&shared, 0);
        for (int other = 1; other < size(); ++other) all = ::combine(all, *blocks.map_shared_rank(&shared, other));
        return all;
    }
    // No block exits while others read its shared memory.
    __device__ void sync_before_exit() const {
        if (size() > 1) blocks.sync();
    }
};
#else
struct RowCluster {
    __device__ int size() const { return 1; }
    __device__ int rank() const { return 0; }
    __device__ SoftmaxStats combine(const SoftmaxStats& mine, SoftmaxStats&) const { return mine; }
    __device__ void sync_before_exit() const {}
};
#endif

__device__ inline void update(SoftmaxStats& mine, const float4& x) {
    const float max = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
    if (max > mine.max) {
        const float rescale = exp2_approx((mine.max - max) * log2e);
        mine = {max, mine.sum * rescale, mine.weighted * rescale};
    }
    const float shift = mine.max * log2e;
    const float a = exp2_approx(x.x * log2e - shift), b = exp2_approx(x.y * log2e - shift), c = exp2_approx(x.z * log2e - shift),
                d = exp2_approx(x.w * log2e - shift);
    mine.sum += (a + b) + (c + d);
    mine.weighted += (a * x.x + b * x.y) + (c * x.z + d * x.w);
}

}  // namespace

// Grid: rows times the blocks that share one. With d_logits, rows whose upstream gradients are both zero are skipped: zeros are
// written.
extern "C" __global__ __launch_bounds__(threads) void cross_entropy_fused(const CrossEntropyParams params) {
    extern __shared__ __align__(16) unsigned char cross_entropy_smem[];
    __shared__ SoftmaxStats scratch[threads / 32], shared;
    pdl_wait();
    const RowCluster cluster;
    const int vocabulary = params.vocabulary, first = cluster.rank() * params.share;
    const int count = max(0, min(params.share, vocabulary - first)), in_smem = min(count, params.in_smem);
    const size_t row = blockIdx.x / cluster.size();
    const float* logits = params.logits + row * vocabulary + first;
    bf16* d_logits = params.d_logits ? params.d_logits + row * vocabulary + first : nullptr;
    const float2 upstream = d_logits ? params.upstream[row] : make_float2(0.0f, 0.0f);
    if (d_logits && upstream.x == 0.0f && upstream.y == 0.0f) {
        for (int i = 8 * threadIdx.x; i < count; i += 8 * threads) *reinterpret_cast<Bf16x8*>(d_logits + i) = {};
        if (threadIdx.x == 0 && first == 0) params.logprobs[row] = params.entropies[row] = 0.0f;
        return;
    }
    // All copies into shared memory are in flight at once; a thread waits for its own, in four parts.
    float* smem_logits = reinterpret_cast<float*>(cross_entropy_smem);
    const int vectors = (in_smem + 4 * threads - 1) / (4 * threads), quarter = (vectors + 3) / 4;
#pragma unroll
    for (int part = 0; part < 4; ++part) {
        for (int k = part * quarter; k < (part + 1) * quarter; ++k)
            if (const int i = 4 * (k * threads + threadIdx.x); i < in_smem) cp_async_16(smem_logits + i, logits + i, true);
        cp_async_commit();
    }
    SoftmaxStats mine = {-1e30f, 0.0f, 0.0f};
    for (int i = in_smem + 4 * threadIdx.x; i < count; i += 4 * threads) update(mine, *reinterpret_cast<const float4*>(logits + i));
    const auto update_part = [&](int part) {
        for (int k = part * quarter; k < (part + 1) * quarter; ++k)
            if (const int i = 4 * (k * threads + threadIdx.x); i < in_smem)
                update(mine, *reinterpret_cast<const float4*>(smem_logits + i));
    };
    cp_async_wait<3>();
    update_part(0);
    cp_async_wait<2>();
    update_part(1);
    cp_async_wait<1>();
    update_part(2);
    cp_async_wait<0>();
    update_part(3);
    mine = cluster.combine(combine_block(mine, scratch), shared);
    const float lse = mine.max + logf(mine.sum), entropy = lse - mine.weighted / mine.sum;
    const int target = static_cast<int>(params.targets[row]) - first;
    if (threadIdx.x == 0 && target >= 0 && target < count) params.logprobs[row] = logits[target] - lse;
    if (threadIdx.x == 0 && first == 0) params.entropies[row] = entropy;
    // d logprob / d logit i = (i is the target) - p_i. d entropy / d logit i = -p_i * (log p_i + entropy).
    const float shift = lse * log2e, constant = upstream.x + upstream.y * (entropy - lse);
    const auto d_logit = [&](float x) { return -exp2_approx(x * log2e - shift) * (constant + upstream.y * x); };
    if (d_logits) {
        const auto store = [&](int i, const float* from) {
            const float4 low = *reinterpret_cast<const float4*>(from), high = *reinterpret_cast<const float4*>(from + 4);
            float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int j = 0; j < 8; ++j) x[j] = d_logit(x[j]);
            *reinterpret_cast<Bf16x8*>(d_logits + i) = to_bf16(x);
        };
        for (int i = 8 * threadIdx.x; i < in_smem; i += 8 * threads) store(i, smem_logits + i);
        for (int i = in_smem + 8 * threadIdx.x; i < count; i += 8 * threads) store(i, logits + i);
        __syncthreads();  // the target's vector was stored by another thread
        if (threadIdx.x == 0 && target >= 0 && target < count)
            d_logits[target] = __float2bfloat16_rn(upstream.x + d_logit(logits[target]));
    }
    cluster.sync_before_exit();
}
