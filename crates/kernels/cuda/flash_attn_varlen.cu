// FlashAttention for training, forward and backward: causal attention of packed sequences over themselves, for any device from
// compute capability 8.0 on.
//
// A row of `qkv` holds all query heads, key heads and value heads of one position. A thread block has consecutive rows of one
// sequence, a warp 16 or 32 of them: as many as let its accumulators fit into registers. The other operand comes in smaller tiles
// through shared memory, the next tile while the current one is multiplied. Scores live in registers and are recomputed in the
// backward pass. No sum depends on the order in which blocks run, so results are deterministic.
#include "primitives.cuh"
#include "flash_attn_varlen.cuh"
#include "tile_load.cuh"

namespace {

constexpr int warps = 4, threads = 32 * warps;

// N rows of D columns, D a multiple of 64. The order of a row's 16-byte chunks depends on the row (a swizzle), so that the same
// chunk of eight rows lies in different banks.
template <int D, int N>
struct SmemTile {
    static constexpr int row_chunks = D / 8;
    alignas(128) Bf16x8 chunks[N][row_chunks];
    __device__ Bf16x8* chunk(int row, int index) { return &chunks[row][index ^ (row & 7)]; }

    // Starts to copy rows, of which the first `count` are valid. All threads together copy `rows` of them at a time, a multiple of
    // eight: a thread's chunks stay in their column.
    __device__ void load_async(const bf16* from, size_t stride, int count) {
        constexpr int rows = threads / row_chunks;
        static_assert(rows % 8 == 0 && N % rows == 0, "every thread copies as many");
        const int r = threadIdx.x / row_chunks, c = threadIdx.x % row_chunks;
        const bf16* source = from + r * stride + c * 8;
        Bf16x8* const to = chunk(r, c);
#pragma unroll
        for (int i = 0; i < N; i += rows) {
            cp_async_16(to + i * row_chunks, source, r + i < count);
            source += rows * stride;
        }
    }

    // 16 rows and 16 columns as operand A.
    __device__ void a_fragment(uint32_t (&to)[4], int row, int column) {
        const int lane = threadIdx.x % 32;
        ldmatrix_x4(to, chunk(row + lane % 16, column / 8 + lane / 16));
    }

    // 16 rows and 16 columns, transposed, as two B operands: rows are columns of the product.
    __device__ void b_fragments_trans(uint32_t (&to)[4], int row, int column) {
        const int lane = threadIdx.x % 32;
        ldmatrix_x4(to, chunk(row + lane % 8 + lane / 16 * 8, column / 8 + lane / 8 % 2));
    }

    // 16 rows and 16 columns as two B operands.
    __device__ void b_fragments(uint32_t (&to)[4], int row, int column) {
        const int lane = threadIdx.x % 32;
        ldmatrix_x4_trans(to, chunk(row + lane % 16, column / 8 + lane / 16));
    }
};

// Columns `column` and the fifteen after it: += a * b.
template <int C>
__device__ inline void mma_16x16(Accumulator<C>& acc, int column, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    mma_m16n8k16(acc.frag[column / 8], a[0], a[1], a[2], a[3], b[0], b[1]);
    mma_m16n8k16(acc.frag[column / 8 + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
}

// Tiles of 16 rows that a warp has: an accumulator of 128 columns, or two of 64, fits into registers.
template <int D>
constexpr int m_tiles = 128 / D;
template <int D>
constexpr int block_rows = warps * 16 * m_tiles<D>;

// ---- forward ----

constexpr int fwd_keys = 64;

template <int D>
struct FwdSmem {
    SmemTile<D, block_rows<D>> query;
    SmemTile<D, fwd_keys> key[2], value[2];
};

template <int D>
__device__ void flash_attn_fwd(const FwdParams& params) {
    extern __shared__ __align__(128) unsigned char smem_raw[];
    FwdSmem<D>& smem = *reinterpret_cast<FwdSmem<D>*>(smem_raw);
    constexpr int M = m_tiles<D>, N = fwd_keys;
    pdl_wait();
    const SequenceBlock block = params.blocks[blockIdx.y];
    if (block.count == 0) return;
    const int head = blockIdx.x, kv_head = head / (params.heads / params.kv_heads), count = block.count;
    const size_t qkv_stride = static_cast<size_t>(params.heads + 2 * params.kv_heads) * D;
    const bf16* keys = params.qkv + block.begin * qkv_stride + (params.heads + kv_head) * D;
    const bf16* values = keys + params.kv_heads * D;
    const int block_start = block.row - block.begin, visible_keys = block_start + count, steps = (visible_keys + N - 1) / N;

    smem.query.load_async(params.qkv + block.row * qkv_stride + head * D, qkv_stride, count);
    smem.key[0].load_async(keys, qkv_stride, visible_keys);
    smem.value[0].load_async(values, qkv_stride, visible_keys);
    cp_async_commit();

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int warp_start = block_start + warp * 16 * M;  // counted from the sequence's first row
    const float scale = params.scale * log2e;
    uint32_t query[M][D / 16][4];
    Accumulator<D> out[M];
    float row_max[M][2], row_sum[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m) {
        out[m].zero();
        row_max[m][0] = row_max[m][1] = masked_score;
        row_sum[m][0] = row_sum[m][1] = 0.0f;
    }
    for (int step = 0; step < steps; ++step) {
        const int key_start = step * N, stage = step % 2;
        if (step + 1 < steps) {
            smem.key[1 - stage].load_async(keys + (key_start + N) * qkv_stride, qkv_stride, visible_keys - key_start - N);
            smem.value[1 - stage].load_async(values + (key_start + N) * qkv_stride, qkv_stride, visible_keys - key_start - N);
            cp_async_commit();
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        if (step == 0) {
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int k = 0; k < D; k += 16) smem.query.a_fragment(query[m][k / 16], (warp * M + m) * 16, k);
        }
        if (key_start <= warp_start + 16 * M - 1) {
            Accumulator<N> scores[M];
#pragma unroll
            for (int m = 0; m < M; ++m) scores[m].zero();
#pragma unroll
            for (int k = 0; k < D; k += 16)
#pragma unroll
                for (int n = 0; n < N; n += 16) {
                    uint32_t b[4];
                    smem.key[stage].b_fragments_trans(b, n, k);
#pragma unroll
                    for (int m = 0; m < M; ++m) mma_16x16(scores[m], n, query[m][k / 16], b);
                }
            if (key_start + N - 1 > warp_start) {
#pragma unroll
                for (int m = 0; m < M; ++m)
                    apply_causal_mask<CausalMask::future>(scores[m], key_start + 2 * t, warp_start + 16 * m + r);
            }
#pragma unroll
            for (int m = 0; m < M; ++m) {
                float rescale[2];
                online_softmax(scores[m], row_max[m], row_sum[m], rescale, scale);
                scale_rows(out[m], rescale);
            }
#pragma unroll
            for (int k = 0; k < N; k += 16) {
                uint32_t probs[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) scores[m].a_fragment(probs[m], k);
#pragma unroll
                for (int n = 0; n < D; n += 16) {
                    uint32_t b[4];
                    smem.value[stage].b_fragments(b, k, n);
#pragma unroll
                    for (int m = 0; m < M; ++m) mma_16x16(out[m], n, probs[m], b);
                }
            }
        }
        __syncthreads();  // all warps are done with this tile
    }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = divide_by_row_sum(out[m], half, row_sum[m][half]);
            const int row = (warp * M + m) * 16 + r + half * 8;
            if (t == 0 && row < count)
                params.lse[static_cast<size_t>(head) * params.rows + block.row + row] = row_max[m][half] * params.scale + logf(sum);
        }
    const size_t out_stride = static_cast<size_t>(params.heads) * D;
    store_rows(params.out + block.row * out_stride + head * D, out_stride, count, smem.query, warp * 16 * M, out, 1.0f);
}

// ---- backward: dQ ----

constexpr int dq_keys = 32;

template <int D>
struct DqSmem {
    SmemTile<D, block_rows<D>> query, d_out;
    SmemTile<D, dq_keys> key[2], value[2];
};

// Also computes `delta`, which the dK/dV kernel reads.
template <int D>
__device__ void flash_attn_bwd_dq(const BwdParams& params) {
    extern __shared__ __align__(128) unsigned char smem_raw[];
    DqSmem<D>& smem = *reinterpret_cast<DqSmem<D>*>(smem_raw);
    constexpr int M = m_tiles<D>, N = dq_keys;
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

    smem.query.load_async(params.qkv + block.row * qkv_stride + head * D, qkv_stride, count);
    smem.d_out.load_async(d_out_rows, out_stride, count);
    smem.key[0].load_async(keys, qkv_stride, visible_keys);
    smem.value[0].load_async(values, qkv_stride, visible_keys);
    cp_async_commit();

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int warp_start = block_start + warp * 16 * M;
    const float scale = params.scale * log2e;
    float lse2[M][2], delta[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = (warp * M + m) * 16 + r + half * 8;
            const float sum = row_delta<D>(d_out_rows + row * out_stride, out_rows + row * out_stride, row < count);
            const size_t offset = static_cast<size_t>(head) * params.rows + block.row + row;
            delta[m][half] = sum;
            lse2[m][half] = row < count ? params.lse[offset] * log2e : 0.0f;
            if (t == 0 && row < count) params.delta[offset] = sum;
        }
    uint32_t query[M][D / 16][4], d_out[M][D / 16][4];
    Accumulator<D> d_query[M];
#pragma unroll
    for (int m = 0; m < M; ++m) d_query[m].zero();
    for (int step = 0; step < steps; ++step) {
        const int key_start = step * N, stage = step % 2;
        if (step + 1 < steps) {
            smem.key[1 - stage].load_async(keys + (key_start + N) * qkv_stride, qkv_stride, visible_keys - key_start - N);
            smem.value[1 - stage].load_async(values + (key_start + N) * qkv_stride, qkv_stride, visible_keys - key_start - N);
            cp_async_commit();
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        if (step == 0) {
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int k = 0; k < D; k += 16) {
                    smem.query.a_fragment(query[m][k / 16], (warp * M + m) * 16, k);
                    smem.d_out.a_fragment(d_out[m][k / 16], (warp * M + m) * 16, k);
                }
        }
        if (key_start <= warp_start + 16 * M - 1) {
            Accumulator<N> probs[M], d_scores[M];
#pragma unroll
            for (int m = 0; m < M; ++m) {
                probs[m].zero();
                d_scores[m].zero();
            }
#pragma unroll
            for (int k = 0; k < D; k += 16)
#pragma unroll
                for (int n = 0; n < N; n += 16) {
                    uint32_t key[4], value[4];
                    smem.key[stage].b_fragments_trans(key, n, k);
                    smem.value[stage].b_fragments_trans(value, n, k);
#pragma unroll
                    for (int m = 0; m < M; ++m) {
                        mma_16x16(probs[m], n, query[m][k / 16], key);
                        mma_16x16(d_scores[m], n, d_out[m][k / 16], value);
                    }
                }
            const bool needs_mask = key_start + N - 1 > warp_start;
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int n = 0; n < N / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int key = key_start + 8 * n + 2 * t + i % 2, row = warp_start + 16 * m + r + i / 2 * 8;
                        const float prob = exp2_approx(probs[m].frag[n][i] * scale - lse2[m][i / 2]);
                        d_scores[m].frag[n][i] = needs_mask && key > row ? 0.0f : prob * (d_scores[m].frag[n][i] - delta[m][i / 2]);
                    }
#pragma unroll
            for (int k = 0; k < N; k += 16) {
                uint32_t a[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) d_scores[m].a_fragment(a[m], k);
#pragma unroll
                for (int n = 0; n < D; n += 16) {
                    uint32_t b[4];
                    smem.key[stage].b_fragments(b, k, n);
#pragma unroll
                    for (int m = 0; m < M; ++m) mma_16x16(d_query[m], n, a[m], b);
                }
            }
        }
        __syncthreads();  // all warps are done with this tile
    }
    store_rows(params.d_qkv + block.row * qkv_stride + head * D, qkv_stride, count, smem.query, warp * 16 * M, d_query,
               params.scale);
}

// ---- backward: dK and dV ----

constexpr int dkv_queries = 32;

template <int D>
struct DkvSmem {
    SmemTile<D, block_rows<D>> key, value;
    SmemTile<D, dkv_queries> query[2], d_out[2];
    float lse2[2][dkv_queries], delta[2][dkv_queries];
};

// A warp has rows of keys, so scores are transposed: rows of keys, columns of queries. Loops over all query heads that share the
// keys.
template <int D>
__device__ void flash_attn_bwd_dkv(const BwdParams& params) {
    extern __shared__ __align__(128) unsigned char smem_raw[];
    DkvSmem<D>& smem = *reinterpret_cast<DkvSmem<D>*>(smem_raw);
    constexpr int M = m_tiles<D>, N = dkv_queries;
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

    const auto load_step = [&](int step, int to) {
        const int head = kv_head * group + step / query_tiles, query_start = step % query_tiles * N;
        const size_t row = block.row + query_start;
        smem.query[to].load_async(params.qkv + row * qkv_stride + head * D, qkv_stride, rows_after - query_start);
        smem.d_out[to].load_async(params.d_out + row * out_stride + head * D, out_stride, rows_after - query_start);
        cp_async_commit();
        if (threadIdx.x < N) {
            const int i = threadIdx.x;
            const size_t offset = static_cast<size_t>(head) * params.rows + row + i;
            const bool valid = query_start + i < rows_after;
            // A query beyond the sequence's end gets probability zero everywhere.
            smem.lse2[to][i] = valid ? params.lse[offset] * log2e : __int_as_float(0x7f800000);
            smem.delta[to][i] = valid ? params.delta[offset] : 0.0f;
        }
    };
    smem.key.load_async(params.qkv + key_offset, qkv_stride, count);
    smem.value.load_async(params.qkv + value_offset, qkv_stride, count);
    load_step(0, 0);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int warp_start = warp * 16 * M;
    const float scale = params.scale * log2e;
    Accumulator<D> d_key[M], d_value[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
        d_key[m].zero();
        d_value[m].zero();
    }
    for (int step = 0; step < steps; ++step) {
        const int query_start = step % query_tiles * N, stage = step % 2;
        if (step + 1 < steps) {
            load_step(step + 1, 1 - stage);
            cp_async_wait<1>();
        } else {
            cp_async_wait<0>();
        }
        __syncthreads();
        if (query_start + N - 1 >= warp_start) {
            Accumulator<N> probs[M], d_scores[M];
#pragma unroll
            for (int m = 0; m < M; ++m) {
                probs[m].zero();
                d_scores[m].zero();
            }
#pragma unroll
            for (int k = 0; k < D; k += 16) {
                uint32_t a[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) smem.key.a_fragment(a[m], warp_start + 16 * m, k);
#pragma unroll
                for (int n = 0; n < N; n += 16) {
                    uint32_t b[4];
                    smem.query[stage].b_fragments_trans(b, n, k);
#pragma unroll
                    for (int m = 0; m < M; ++m) mma_16x16(probs[m], n, a[m], b);
                }
            }
            const bool needs_mask = query_start < warp_start + 16 * M - 1;
#pragma unroll
            for (int n = 0; n < N / 8; ++n) {
                const float2 lse2 = *reinterpret_cast<const float2*>(&smem.lse2[stage][8 * n + 2 * t]);
#pragma unroll
                for (int m = 0; m < M; ++m)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int query = query_start + 8 * n + 2 * t + i % 2, key = warp_start + 16 * m + r + i / 2 * 8;
                        const float prob = exp2_approx(probs[m].frag[n][i] * scale - (i % 2 ? lse2.y : lse2.x));
                        probs[m].frag[n][i] = needs_mask && key > query ? 0.0f : prob;
                    }
            }
#pragma unroll
            for (int k = 0; k < N; k += 16) {
                uint32_t a[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) probs[m].a_fragment(a[m], k);
#pragma unroll
                for (int n = 0; n < D; n += 16) {
                    uint32_t b[4];
                    smem.d_out[stage].b_fragments(b, k, n);
#pragma unroll
                    for (int m = 0; m < M; ++m) mma_16x16(d_value[m], n, a[m], b);
                }
            }
#pragma unroll
            for (int k = 0; k < D; k += 16) {
                uint32_t a[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) smem.value.a_fragment(a[m], warp_start + 16 * m, k);
#pragma unroll
                for (int n = 0; n < N; n += 16) {
                    uint32_t b[4];
                    smem.d_out[stage].b_fragments_trans(b, n, k);
#pragma unroll
                    for (int m = 0; m < M; ++m) mma_16x16(d_scores[m], n, a[m], b);
                }
            }
#pragma unroll
            for (int n = 0; n < N / 8; ++n) {
                const float2 delta = *reinterpret_cast<const float2*>(&smem.delta[stage][8 * n + 2 * t]);
#pragma unroll
                for (int m = 0; m < M; ++m)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        d_scores[m].frag[n][i] = probs[m].frag[n][i] * (d_scores[m].frag[n][i] - (i % 2 ? delta.y : delta.x));
            }
#pragma unroll
            for (int k = 0; k < N; k += 16) {
                uint32_t a[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) d_scores[m].a_fragment(a[m], k);
#pragma unroll
                for (int n = 0; n < D; n += 16) {
                    uint32_t b[4];
                    smem.query[stage].b_fragments(b, k, n);
#pragma unroll
                    for (int m = 0; m < M; ++m) mma_16x16(d_key[m], n, a[m], b);
                }
            }
        }
        __syncthreads();  // all warps are done with these queries
    }
    store_rows(params.d_qkv + key_offset, qkv_stride, count, smem.key, warp_start, d_key, params.scale);
    store_rows(params.d_qkv + value_offset, qkv_stride, count, smem.value, warp_start, d_value, 1.0f);
}

}  // namespace

// Two blocks a multiprocessor, which bounds the registers of each.
#define FLASH_ATTN_VARLEN(D)                                                                                         \
    extern "C" __global__ __launch_bounds__(threads, 2) void flash_attn_varlen_fwd_##D(const FwdParams params) {     \
        static_assert(sizeof(FwdSmem<D>) == 16384 + 512 * D, "the host requests this many bytes");                   \
        flash_attn_fwd<D>(params);                                                                                   \
    }                                                                                                                \
    extern "C" __global__ __launch_bounds__(threads, 2) void flash_attn_varlen_bwd_dq_##D(const BwdParams params) {  \
        static_assert(sizeof(DqSmem<D>) == 32768 + 256 * D, "the host requests this many bytes");                    \
        flash_attn_bwd_dq<D>(params);                                                                                \
    }                                                                                                                \
    extern "C" __global__ __launch_bounds__(threads, 2) void flash_attn_varlen_bwd_dkv_##D(const BwdParams params) { \
        static_assert(sizeof(DkvSmem<D>) == 33280 + 256 * D, "the host requests this many bytes");                   \
        flash_attn_bwd_dkv<D>(params);                                                                               \
    }
FLASH_ATTN_VARLEN(64)
FLASH_ATTN_VARLEN(128)
