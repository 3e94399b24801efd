// The kernels of flash_attn_varlen.cu for Hopper alone, whose tensor cores read operands from shared memory (wgmma).
//
// A thread block has 128 consecutive rows of one sequence, a warpgroup 64 of them. The other operand comes in tiles, the next two
// while the current one is multiplied. One warpgroup may be a tile ahead of the other: while it waits for products or computes its
// softmax, the other one has the tensor cores.
#include "primitives.cuh"
#include "flash_attn_varlen.cuh"
#include "tile_load.cuh"
#include "wgmma.cuh"

namespace {

constexpr int block_rows = 128, threads = 256, stages = 3;

// Describes a matrix in shared memory to wgmma: 128-byte rows in groups of eight, 1024 bytes each, swizzled by 128 bytes. Rows
// wider than that go on `stride` chunks later. Address and stride count 16-byte chunks.
__device__ uint64_t smem_descriptor(uint32_t address, uint32_t stride) { return pack_u64(address | stride << 16, 64 | 1u << 30); }

// N rows of D columns as wgmma reads them: columns in slices of 64.
template <int D, int N>
struct Tile {
    alignas(1024) Bf16x8 chunks[D / 64][N][8];

    __device__ Bf16x8* chunk(int row, int index) { return &chunks[index / 8][row][index % 8 ^ (row & 7)]; }

    // Starts to copy rows, of which the first `count` are valid. All threads together copy `rows` of them at a time, a multiple of
    // eight: a thread's chunks stay in their column.
    __device__ void load_async(const bf16* from, size_t stride, int count) {
        constexpr int row_chunks = D / 8, rows = threads / row_chunks;
        static_assert(rows % 8 == 0 && N % rows == 0, "every thread copies as many");
        const int r = threadIdx.x / row_chunks, c = threadIdx.x % row_chunks;
        const bf16* source = from + r * stride + c * 8;
        Bf16x8* const to = chunk(r, c);
#pragma unroll
        for (int i = 0; i < N; i += rows) {
            cp_async_16(to + 8 * i, source, r + i < count);
            source += rows * stride;
        }
    }

    // In 16-byte chunks.
    __device__ uint32_t address() const { return (static_cast<uint32_t>(__cvta_generic_to_shared(this)) & 0x3ffff) >> 4; }

    // Rows from `row` on; the product sums over sixteen columns.
    __device__ uint64_t k_major(int row, int column) const {
        return smem_descriptor(address() + row * 8 + (column / 64 * N * 8 + column % 64 / 8), 1);
    }

    // All columns of sixteen rows from `row` on; the product sums over those rows.
    __device__ uint64_t mn_major(int row) const { return smem_descriptor(address() + row * 8, N * 8); }
};

// A thread's part of an accumulator: rows `row` and `row` + 8, counted from the block's first, at every fourth pair of columns.
struct ThreadRows {
    int warpgroup_start, row, t;
    __device__ ThreadRows()
        : warpgroup_start(warp_uniform(threadIdx.x / 128 * 64)),
          row(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
          t(threadIdx.x % 4) {}
};

// acc = a * b^T, both in shared memory.
template <int D, int N, int M>
__device__ inline void wgmma_ab_trans(Accumulator<N>& acc, const Tile<D, M>& a, int row, const Tile<D, N>& b) {
#pragma unroll
    for (int k = 0; k < D; k += 16) wgmma(acc, a.k_major(row, k), b.k_major(0, k), k == 0);
}

// acc += a * b, with a in registers.
template <int D, int N>
__device__ inline void wgmma_ab(Accumulator<D>& acc, const uint32_t (&a)[N / 16][4], const Tile<D, N>& b) {
#pragma unroll
    for (int k = 0; k < N; k += 16) wgmma(acc, a[k / 16], b.mn_major(k));
}

// A ring of tiles in shared memory, as in CUTLASS: all warps are producers and consumers. A warp arrives at a stage's `full`
// barrier when its part of the copy is done, and at its `empty` barrier when it no longer needs the tiles.
struct PipelineBarriers {
    Mbarrier full[stages], empty[stages];
};

struct TilePipeline {
    PipelineBarriers& barriers;

    __device__ TilePipeline(PipelineBarriers& barriers) : barriers(barriers) {
        if (threadIdx.x == 0)
            for (int i = 0; i < stages; ++i) {
                mbarrier_init(barriers.full[i], threads / 32);
                mbarrier_init(barriers.empty[i], threads / 32);
            }
        __syncthreads();
    }

    // Before a step's tiles are loaded: waits until all warps have released what lies in that stage.
    __device__ void producer_acquire(int step) {
        if (step >= stages) mbarrier_wait(barriers.empty[step % stages], step / stages - 1 & 1);
    }

    // A step's tiles have arrived; later copies, in so many groups, may still be in flight.
    template <int InFlight>
    __device__ void producer_commit(int step) {
        cp_async_wait<InFlight>();
        fence_proxy_async();
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.full[step % stages]);
    }

    __device__ void consumer_wait(int step) { mbarrier_wait(barriers.full[step % stages], step / stages & 1); }

    // After a wait for all products that read a step's tiles.
    __device__ void consumer_release(int step) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(barriers.empty[step % stages]);
    }
};

template <int N>
__device__ inline void to_a_fragments(uint32_t (&to)[N / 16][4], const Accumulator<N>& from) {
#pragma unroll
    for (int k = 0; k < N; k += 16) from.a_fragment(to[k / 16], k);
}

// ---- forward ----

// Keys of a tile: with heads of 64 two blocks fit into a multiprocessor, so half as many.
template <int D>
constexpr int fwd_keys = D;

template <int D>
struct FwdSmem {
    Tile<D, block_rows> query;
    Tile<D, fwd_keys<D>> key[stages], value[stages];
    PipelineBarriers barriers;
};

template <int D>
__device__ void flash_attn_fwd(const FwdParams& params) {
    extern __shared__ __align__(1024) unsigned char smem_raw[];
    FwdSmem<D>& smem = *reinterpret_cast<FwdSmem<D>*>(smem_raw);
    constexpr int N = fwd_keys<D>;
    TilePipeline pipeline(smem.barriers);
    pdl_wait();
    const SequenceBlock block = params.blocks[blockIdx.y];
    if (block.count == 0) return;
    const int head = blockIdx.x, kv_head = head / (params.heads / params.kv_heads), count = block.count;
    const size_t qkv_stride = static_cast<size_t>(params.heads + 2 * params.kv_heads) * D;
    const bf16* keys = params.qkv + block.begin * qkv_stride + (params.heads + kv_head) * D;
    const bf16* values = keys + params.kv_heads * D;
    const int block_start = block.row - block.begin, visible_keys = block_start + count, steps = (visible_keys + N - 1) / N;

    // Values are multiplied one step after their keys, so that this product overlaps with that step's softmax.
    const auto load_step = [&](int step) {
        if (step <= steps) {
            pipeline.producer_acquire(step);
            const int key_start = step * N, to = step % stages;
            if (step < steps) smem.key[to].load_async(keys + key_start * qkv_stride, qkv_stride, visible_keys - key_start);
            if (step > 0)
                smem.value[to].load_async(values + (key_start - N) * qkv_stride, qkv_stride, visible_keys - key_start + N);
        }
        cp_async_commit();
    };
    smem.query.load_async(params.qkv + block.row * qkv_stride + head * D, qkv_stride, count);
    load_step(0);
    load_step(1);
    pipeline.producer_commit<1>(0);

    const ThreadRows own;
    const float scale = params.scale * log2e;
    Accumulator<D> out[1];
    out[0].zero();
    Accumulator<N> scores;
    uint32_t probs[N / 16][4];
    float row_max[2] = {masked_score, masked_score}, row_sum[2] = {0.0f, 0.0f}, rescale[2];
    const auto softmax_step = [&](int step) {
        const int key_start = step * N;
        if (key_start + N - 1 > block_start + own.warpgroup_start)
            apply_causal_mask<CausalMask::future>(scores, key_start + 2 * own.t, block_start + own.row);
        online_softmax(scores, row_max, row_sum, rescale, scale);
    };
    pipeline.consumer_wait(0);
    wgmma_fence();
    wgmma_ab_trans(scores, smem.query, own.warpgroup_start, smem.key[0]);
    wgmma_commit();
    pipeline.producer_commit<0>(1);
    load_step(2);
    wgmma_wait<0>();
    fence_accumulator(scores);
    pipeline.consumer_release(0);
    softmax_step(0);
    to_a_fragments(probs, scores);
    for (int step = 1; step < steps; ++step) {
        const int stage = step % stages;
        pipeline.consumer_wait(step);
        fence_accumulator(out[0]);
        wgmma_fence();
        wgmma_ab_trans(scores, smem.query, own.warpgroup_start, smem.key[stage]);
        wgmma_commit();
        wgmma_ab(out[0], probs, smem.value[stage]);
        wgmma_commit();
        pipeline.producer_commit<0>(step + 1);
        wgmma_wait<1>();
        fence_accumulator(scores);
        softmax_step(step);
        load_step(step + 2);
        keep_above(step);
        wgmma_wait<0>();
        fence_operand(probs);
        fence_accumulator(out[0]);
        pipeline.consumer_release(step);
        scale_rows(out[0], rescale);
        to_a_fragments(probs, scores);
    }
    pipeline.consumer_wait(steps);
    fence_accumulator(out[0]);
    wgmma_fence();
    wgmma_ab(out[0], probs, smem.value[steps % stages]);
    wgmma_commit();
    cp_async_wait<0>();
    wgmma_wait<0>();
    fence_operand(probs);
    fence_accumulator(out[0]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float sum = divide_by_row_sum(out[0], half, row_sum[half]);
        const int row = own.row + half * 8;
        if (own.t == 0 && row < count)
            params.lse[static_cast<size_t>(head) * params.rows + block.row + row] = row_max[half] * params.scale + logf(sum);
    }
    __syncthreads();  // no product reads queries any more
    const size_t out_stride = static_cast<size_t>(params.heads) * D;
    store_rows(params.out + block.row * out_stride + head * D, out_stride, count, smem.query, threadIdx.x / 32 * 16, out, 1.0f);
}

// ---- backward: dQ ----

constexpr int dq_keys = 64;

template <int D>
struct DqSmem {
    Tile<D, block_rows> query, d_out;
    Tile<D, dq_keys> key[stages], value[stages];
    PipelineBarriers barriers;
};

// Also computes `delta`, which the dK/dV kernel reads.
template <int D>
__device__ void flash_attn_bwd_dq(const BwdParams& params) {
    extern __shared__ __align__(1024) unsigned char smem_raw[];
    DqSmem<D>& smem = *reinterpret_cast<DqSmem<D>*>(smem_raw);
    constexpr int N = dq_keys;
    TilePipeline pipeline(smem.barriers);
    pdl_wait();
    const SequenceBlock block = params.blocks[blockIdx.y];
    if (block.count == 0) return;
    const int head = blockIdx.x, kv_head = head / (params.heads / params.kv_heads), count = block.count;
    const size_t qkv_stride = static_cast<size_t>(params.heads + 2 * params.kv_heads) * D;
    const size_t out_stride = static_cast<size_t>(params.heads) * D;
    const bf16* keys = params.qkv + block.begin * qkv_stride + (params.heads + kv_head) * D;
    const bf16* values = keys + params.kv_heads * D;
    const bf16* d_out_rows = params.d_out + block.row * out_stride + head * D;
    const bf16* out_rows = params.out + block.row * out_stride + head * D;
    const int block_start = block.row - block.begin, visible_keys = block_start + count, steps = (visible_keys + N - 1) / N;

    const auto load_step = [&](int step) {
        if (step < steps) {
            pipeline.producer_acquire(step);
            const int key_start = step * N, to = step % stages;
            smem.key[to].load_async(keys + key_start * qkv_stride, qkv_stride, visible_keys - key_start);
            smem.value[to].load_async(values + key_start * qkv_stride, qkv_stride, visible_keys - key_start);
        }
        cp_async_commit();
    };
    smem.query.load_async(params.qkv + block.row * qkv_stride + head * D, qkv_stride, count);
    smem.d_out.load_async(d_out_rows, out_stride, count);
    load_step(0);
    load_step(1);

    const ThreadRows own;
    const float scale = params.scale * log2e;
    float lse2[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = own.row + half * 8;
        const float sum = row_delta<D>(d_out_rows + row * out_stride, out_rows + row * out_stride, row < count);
        const size_t offset = static_cast<size_t>(head) * params.rows + block.row + row;
        delta[half] = sum;
        lse2[half] = row < count ? params.lse[offset] * log2e : 0.0f;
        if (own.t == 0 && row < count) params.delta[offset] = sum;
    }
    pipeline.producer_commit<1>(0);
    Accumulator<D> d_query[1];
    d_query[0].zero();
    for (int step = 0; step < steps; ++step) {
        const int key_start = step * N, stage = step % stages;
        pipeline.consumer_wait(step);
        if (key_start > block_start + own.warpgroup_start + 63) {
            pipeline.producer_commit<0>(step + 1);
            load_step(step + 2);
            pipeline.consumer_release(step);
            continue;
        }
        Accumulator<N> probs, d_scores;
        wgmma_fence();
        wgmma_ab_trans(probs, smem.query, own.warpgroup_start, smem.key[stage]);
        wgmma_commit();
        wgmma_ab_trans(d_scores, smem.d_out, own.warpgroup_start, smem.value[stage]);
        wgmma_commit();
        pipeline.producer_commit<0>(step + 1);
        wgmma_wait<1>();
        fence_accumulator(probs);
        if (key_start + N - 1 > block_start + own.warpgroup_start)
            apply_causal_mask<CausalMask::future>(probs, key_start + 2 * own.t, block_start + own.row);
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) probs.frag[n][i] = exp2_approx(probs.frag[n][i] * scale - lse2[i / 2]);
        wgmma_wait<0>();
        fence_accumulator(d_scores);
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) d_scores.frag[n][i] = probs.frag[n][i] * (d_scores.frag[n][i] - delta[i / 2]);
        uint32_t a[N / 16][4];
        to_a_fragments(a, d_scores);
        wgmma_fence();
        wgmma_ab(d_query[0], a, smem.key[stage]);
        wgmma_commit();
        load_step(step + 2);
        wgmma_wait<0>();
        fence_operand(a);
        fence_accumulator(d_query[0]);
        pipeline.consumer_release(step);
    }
    cp_async_wait<0>();
    __syncthreads();  // no product reads queries any more
    store_rows(params.d_qkv + block.row * qkv_stride + head * D, qkv_stride, count, smem.query, threadIdx.x / 32 * 16, d_query,
               params.scale);
}

// ---- backward: dK and dV ----

// As many queries a tile as the accumulators leave registers for.
template <int D>
constexpr int dkv_queries = 8192 / D;

template <int D>
struct DkvSmem {
    Tile<D, block_rows> key, value;
    Tile<D, dkv_queries<D>> query[stages], d_out[stages];
    float lse[stages][dkv_queries<D>], delta[stages][dkv_queries<D>];
    PipelineBarriers barriers;
};

// Scores are transposed: rows of keys, columns of queries. Loops over all query heads that share the keys.
template <int D>
__device__ void flash_attn_bwd_dkv(const BwdParams& params) {
    extern __shared__ __align__(1024) unsigned char smem_raw[];
    DkvSmem<D>& smem = *reinterpret_cast<DkvSmem<D>*>(smem_raw);
    constexpr int N = dkv_queries<D>;
    TilePipeline pipeline(smem.barriers);
    pdl_wait();
    const SequenceBlock block = params.blocks[blockIdx.y];
    if (block.count == 0) return;
    const int kv_head = blockIdx.x, group = params.heads / params.kv_heads, count = block.count;
    const size_t qkv_stride = static_cast<size_t>(params.heads + 2 * params.kv_heads) * D;
    const size_t out_stride = static_cast<size_t>(params.heads) * D;
    const size_t key_offset = block.row * qkv_stride + (params.heads + kv_head) * D,
                 value_offset = key_offset + params.kv_heads * D;
    // Rows are counted from the block's first: no query before it sees any of its keys.
    const int rows_after = block.end - block.row, query_tiles = (rows_after + N - 1) / N, steps = group * query_tiles;

    // Queries beyond the sequence's end are zeros, and so are their gradients: they contribute nothing.
    const auto load_step = [&](int step) {
        if (step < steps) {
            pipeline.producer_acquire(step);
            const int head = kv_head * group + step / query_tiles, query_start = step % query_tiles * N, to = step % stages;
            const size_t row = block.row + query_start;
            smem.query[to].load_async(params.qkv + row * qkv_stride + head * D, qkv_stride, rows_after - query_start);
            smem.d_out[to].load_async(params.d_out + row * out_stride + head * D, out_stride, rows_after - query_start);
            if (const int i = threadIdx.x; i < N) {
                const size_t offset = static_cast<size_t>(head) * params.rows + row + i;
                cp_async_4(&smem.lse[to][i], params.lse + offset, query_start + i < rows_after);
                cp_async_4(&smem.delta[to][i], params.delta + offset, query_start + i < rows_after);
            }
        }
        cp_async_commit();
    };
    smem.key.load_async(params.qkv + key_offset, qkv_stride, count);
    smem.value.load_async(params.qkv + value_offset, qkv_stride, count);
    load_step(0);
    load_step(1);
    pipeline.producer_commit<1>(0);

    const ThreadRows own;
    const float scale = params.scale * log2e;
    Accumulator<D> d_key[1], d_value[1];
    d_key[0].zero();
    d_value[0].zero();
    for (int step = 0; step < steps; ++step) {
        const int query_start = step % query_tiles * N, stage = step % stages;
        pipeline.consumer_wait(step);
        if (query_start + N - 1 < own.warpgroup_start) {
            pipeline.producer_commit<0>(step + 1);
            load_step(step + 2);
            pipeline.consumer_release(step);
            continue;
        }
        Accumulator<N> probs, d_scores;
        wgmma_fence();
        wgmma_ab_trans(probs, smem.key, own.warpgroup_start, smem.query[stage]);
        wgmma_commit();
        wgmma_ab_trans(d_scores, smem.value, own.warpgroup_start, smem.d_out[stage]);
        wgmma_commit();
        pipeline.producer_commit<0>(step + 1);
        wgmma_wait<1>();
        fence_accumulator(probs);
        if (query_start < own.warpgroup_start + 63) apply_causal_mask<CausalMask::past>(probs, query_start + 2 * own.t, own.row);
#pragma unroll
        for (int n = 0; n < N / 8; ++n) {
            const float2 lse = *reinterpret_cast<const float2*>(&smem.lse[stage][8 * n + 2 * own.t]);
            const float even = lse.x * log2e, odd = lse.y * log2e;
#pragma unroll
            for (int i = 0; i < 4; ++i) probs.frag[n][i] = exp2_approx(probs.frag[n][i] * scale - (i % 2 ? odd : even));
        }
        uint32_t a_probs[N / 16][4];
        to_a_fragments(a_probs, probs);
        wgmma_fence();
        wgmma_ab(d_value[0], a_probs, smem.d_out[stage]);
        wgmma_commit();
        wgmma_wait<1>();
        fence_accumulator(d_scores);
#pragma unroll
        for (int n = 0; n < N / 8; ++n) {
            const float2 delta = *reinterpret_cast<const float2*>(&smem.delta[stage][8 * n + 2 * own.t]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                d_scores.frag[n][i] = probs.frag[n][i] * (d_scores.frag[n][i] - (i % 2 ? delta.y : delta.x));
        }
        uint32_t a_d_scores[N / 16][4];
        to_a_fragments(a_d_scores, d_scores);
        wgmma_fence();
        wgmma_ab(d_key[0], a_d_scores, smem.query[stage]);
        wgmma_commit();
        load_step(step + 2);
        wgmma_wait<0>();
        fence_operand(a_probs);
        fence_operand(a_d_scores);
        fence_accumulator(d_value[0]);
        fence_accumulator(d_key[0]);
        pipeline.consumer_release(step);
    }
    cp_async_wait<0>();
    __syncthreads();  // no product reads keys and values any more
    store_rows(params.d_qkv + key_offset, qkv_stride, count, smem.key, threadIdx.x / 32 * 16, d_key, params.scale);
    store_rows(params.d_qkv + value_offset, qkv_stride, count, smem.value, threadIdx.x / 32 * 16, d_value, 1.0f);
}

}  // namespace

#define FLASH_ATTN_VARLEN_SM90(D)                                                                                              \
    extern "C" __global__ __launch_bounds__(threads, 128 / D) void flash_attn_varlen_sm90_fwd_##D(const FwdParams params) {    \
        static_assert(sizeof(FwdSmem<D>) == 1024 + (256 + 12 * D) * D, "the host requests this many bytes");                   \
        flash_attn_fwd<D>(params);                                                                                             \
    }                                                                                                                          \
    extern "C" __global__ __launch_bounds__(threads, 128 / D) void flash_attn_varlen_sm90_bwd_dq_##D(const BwdParams params) { \
        static_assert(sizeof(DqSmem<D>) == 1024 + 1280 * D, "the host requests this many bytes");                              \
        flash_attn_bwd_dq<D>(params);                                                                                          \
    }                                                                                                                          \
    extern "C" __global__ __launch_bounds__(threads, 1) void flash_attn_varlen_sm90_bwd_dkv_##D(const BwdParams params) {      \
        static_assert(sizeof(DkvSmem<D>) <= 98304 + 512 * D + 4096, "the host requests this many bytes");                      \
        flash_attn_bwd_dkv<D>(params);                                                                                         \
    }
FLASH_ATTN_VARLEN_SM90(64)
FLASH_ATTN_VARLEN_SM90(128)
