// Causal attention of packed sequences over themselves, forward and back, for training.
//
// A row of `qkv` is all query heads, key heads and value heads of one position; sequences lie one after the other. A block has a
// tile of neighbouring rows of one sequence, a warp 16 or 32 of them: as many as make its sums fit into registers. Everything
// else comes past in smaller tiles through shared memory, the next one while this one is worked on. Scores live in registers and
// are made again on the way back. No sum depends on the order in which blocks run.
#include "common.cuh"
#include "packed_attention.cuh"
#include "tensor.cuh"

namespace {

constexpr int warps = 4, threads = 32 * warps;

// Rows of D numbers, a multiple of 64. Which 16 bytes are where depends on the row, so that eight rows lie in different banks.
template <int D, int N>
struct Rows {
    static constexpr int eights = D / 8;
    alignas(128) Eight at[N][eights];
    __device__ Eight* place(int row, int eight) { return &at[row][eight ^ (row & 7)]; }

    // Starts to copy rows, of which the first `count` are there. All threads together copy `rows` of them at a time, a multiple
    // of eight: a thread's pieces stay in their column.
    __device__ void fetch_from(const bf16* from, size_t width, int count) {
        constexpr int rows = threads / eights;
        static_assert(rows % 8 == 0 && N % rows == 0, "every thread copies as many");
        const int r = threadIdx.x / eights, c = threadIdx.x % eights;
        const bf16* piece = from + r * width + c * 8;
        Eight* const to = place(r, c);
#pragma unroll
        for (int i = 0; i < N; i += rows) {
            fetch(to + i * eights, piece, r + i < count);
            piece += rows * width;
        }
    }

    // 16 rows and 16 columns as left factor.
    __device__ void left(uint32_t (&to)[4], int row, int column) {
        const int lane = threadIdx.x % 32;
        load4(to, place(row + lane % 16, column / 8 + lane / 16));
    }

    // 16 rows and 16 columns, transposed, as two right factors: rows are columns of the product.
    __device__ void right_transposed(uint32_t (&to)[4], int row, int column) {
        const int lane = threadIdx.x % 32;
        load4(to, place(row + lane % 8 + lane / 16 * 8, column / 8 + lane / 8 % 2));
    }

    // 16 rows and 16 columns as two right factors.
    __device__ void right(uint32_t (&to)[4], int row, int column) {
        const int lane = threadIdx.x % 32;
        load4_transposed(to, place(row + lane % 16, column / 8 + lane / 16));
    }
};

// Columns `column` and the fifteen after: += left * right.
template <int C>
__device__ inline void add(Sums<C>& sums, int column, const uint32_t (&left)[4], const uint32_t (&right)[4]) {
    multiply(sums.at[column / 8], left[0], left[1], left[2], left[3], right[0], right[1]);
    multiply(sums.at[column / 8 + 1], left[0], left[1], left[2], left[3], right[2], right[3]);
}

// Pieces of 16 rows that a warp has: sums of 128 columns, or twice 64, fit.
template <int D>
constexpr int pieces = 128 / D;
template <int D>
constexpr int tile = warps * 16 * pieces<D>;

// ---- forward ----

constexpr int forward_keys = 64;

template <int D>
struct ForwardShared {
    Rows<D, tile<D>> query;
    Rows<D, forward_keys> key[2], value[2];
};

template <int D>
__device__ void forward(const Forward& asked) {
    extern __shared__ __align__(128) unsigned char room[];
    ForwardShared<D>& s = *reinterpret_cast<ForwardShared<D>*>(room);
    constexpr int M = pieces<D>, N = forward_keys;
    wait_for_previous();
    const Stretch at = asked.stretches[blockIdx.y];
    if (at.count == 0) return;
    const int head = blockIdx.x, kv_head = head / (asked.heads / asked.kv_heads), count = at.count;
    const size_t width = static_cast<size_t>(asked.heads + 2 * asked.kv_heads) * D;
    const bf16* keys = asked.qkv + at.begin * width + (asked.heads + kv_head) * D;
    const bf16* values = keys + asked.kv_heads * D;
    const int before = at.row - at.begin, seen = before + count, steps = (seen + N - 1) / N;

    s.query.fetch_from(asked.qkv + at.row * width + head * D, width, count);
    s.key[0].fetch_from(keys, width, seen);
    s.value[0].fetch_from(values, width, seen);
    end_group();

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int first = before + warp * 16 * M;  // the warp's first row, counted from the sequence's
    const float scale = asked.scale * log2e;
    uint32_t query[M][D / 16][4];
    Sums<D> out[M];
    float top[M][2], total[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m) {
        out[m].clear();
        top[m][0] = top[m][1] = nothing;
        total[m][0] = total[m][1] = 0.0f;
    }
    for (int step = 0; step < steps; ++step) {
        const int from = step * N, now = step % 2;
        if (step + 1 < steps) {
            s.key[1 - now].fetch_from(keys + (from + N) * width, width, seen - from - N);
            s.value[1 - now].fetch_from(values + (from + N) * width, width, seen - from - N);
            end_group();
            wait_for_groups<1>();
        } else {
            wait_for_groups<0>();
        }
        __syncthreads();
        if (step == 0) {
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int k = 0; k < D; k += 16) s.query.left(query[m][k / 16], (warp * M + m) * 16, k);
        }
        if (from <= first + 16 * M - 1) {
            Sums<N> score[M];
#pragma unroll
            for (int m = 0; m < M; ++m) score[m].clear();
#pragma unroll
            for (int k = 0; k < D; k += 16)
#pragma unroll
                for (int n = 0; n < N; n += 16) {
                    uint32_t right[4];
                    s.key[now].right_transposed(right, n, k);
#pragma unroll
                    for (int m = 0; m < M; ++m) add(score[m], n, query[m][k / 16], right);
                }
            if (from + N - 1 > first) {
#pragma unroll
                for (int m = 0; m < M; ++m) hide<Hidden::later>(score[m], from + 2 * t, first + 16 * m + r);
            }
#pragma unroll
            for (int m = 0; m < M; ++m) {
                float shrink[2];
                take_shares(score[m], top[m], total[m], shrink, scale);
                scale_rows(out[m], shrink);
            }
#pragma unroll
            for (int k = 0; k < N; k += 16) {
                uint32_t share[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) score[m].left(share[m], k);
#pragma unroll
                for (int n = 0; n < D; n += 16) {
                    uint32_t right[4];
                    s.value[now].right(right, k, n);
#pragma unroll
                    for (int m = 0; m < M; ++m) add(out[m], n, share[m], right);
                }
            }
        }
        __syncthreads();  // everybody is done with this tile
    }
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float sum = divide_by_total(out[m], half, total[m][half]);
            const int row = (warp * M + m) * 16 + r + half * 8;
            if (t == 0 && row < count)
                asked.log_totals[static_cast<size_t>(head) * asked.rows + at.row + row] =
                    top[m][half] * asked.scale + logf(sum);
        }
    const size_t wide = static_cast<size_t>(asked.heads) * D;
    write(asked.out + at.row * wide + head * D, wide, count, s.query, warp * 16 * M, out, 1.0f);
}

// ---- back to queries ----

constexpr int query_keys = 32;

template <int D>
struct QueryShared {
    Rows<D, tile<D>> query, slope;
    Rows<D, query_keys> key[2], value[2];
};

// Also finds how far each row's outputs agree with their slopes, which the way back to keys needs too.
template <int D>
__device__ void back_to_queries(const Backward& asked) {
    extern __shared__ __align__(128) unsigned char room[];
    QueryShared<D>& s = *reinterpret_cast<QueryShared<D>*>(room);
    constexpr int M = pieces<D>, N = query_keys;
    wait_for_previous();
    const Stretch at = asked.stretches[blockIdx.y];
    if (at.count == 0) return;
    const int head = blockIdx.x, kv_head = head / (asked.heads / asked.kv_heads), count = at.count;
    const size_t width = static_cast<size_t>(asked.heads + 2 * asked.kv_heads) * D;
    const size_t wide = static_cast<size_t>(asked.heads) * D;
    const bf16* keys = asked.qkv + at.begin * width + (asked.heads + kv_head) * D;
    const bf16* values = keys + asked.kv_heads * D;
    const bf16* out_slopes = asked.out_slopes + at.row * wide + head * D;
    const bf16* outs = asked.out + at.row * wide + head * D;
    const int before = at.row - at.begin, seen = before + count, steps = (seen + N - 1) / N;

    s.query.fetch_from(asked.qkv + at.row * width + head * D, width, count);
    s.slope.fetch_from(out_slopes, wide, count);
    s.key[0].fetch_from(keys, width, seen);
    s.value[0].fetch_from(values, width, seen);
    end_group();

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int first = before + warp * 16 * M;
    const float scale = asked.scale * log2e;
    float shift[M][2], agreement[M][2];
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = (warp * M + m) * 16 + r + half * 8;
            const float sum = agreement_of<D>(out_slopes + row * wide, outs + row * wide, row < count);
            const size_t place = static_cast<size_t>(head) * asked.rows + at.row + row;
            agreement[m][half] = sum;
            shift[m][half] = row < count ? asked.log_totals[place] * log2e : 0.0f;
            if (t == 0 && row < count) asked.agreements[place] = sum;
        }
    uint32_t query[M][D / 16][4], slope[M][D / 16][4];
    Sums<D> sums[M];
#pragma unroll
    for (int m = 0; m < M; ++m) sums[m].clear();
    for (int step = 0; step < steps; ++step) {
        const int from = step * N, now = step % 2;
        if (step + 1 < steps) {
            s.key[1 - now].fetch_from(keys + (from + N) * width, width, seen - from - N);
            s.value[1 - now].fetch_from(values + (from + N) * width, width, seen - from - N);
            end_group();
            wait_for_groups<1>();
        } else {
            wait_for_groups<0>();
        }
        __syncthreads();
        if (step == 0) {
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int k = 0; k < D; k += 16) {
                    s.query.left(query[m][k / 16], (warp * M + m) * 16, k);
                    s.slope.left(slope[m][k / 16], (warp * M + m) * 16, k);
                }
        }
        if (from <= first + 16 * M - 1) {
            Sums<N> share[M], change[M];
#pragma unroll
            for (int m = 0; m < M; ++m) {
                share[m].clear();
                change[m].clear();
            }
#pragma unroll
            for (int k = 0; k < D; k += 16)
#pragma unroll
                for (int n = 0; n < N; n += 16) {
                    uint32_t key[4], value[4];
                    s.key[now].right_transposed(key, n, k);
                    s.value[now].right_transposed(value, n, k);
#pragma unroll
                    for (int m = 0; m < M; ++m) {
                        add(share[m], n, query[m][k / 16], key);
                        add(change[m], n, slope[m][k / 16], value);
                    }
                }
            const bool masks = from + N - 1 > first;
#pragma unroll
            for (int m = 0; m < M; ++m)
#pragma unroll
                for (int n = 0; n < N / 8; ++n)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int key = from + 8 * n + 2 * t + i % 2, row = first + 16 * m + r + i / 2 * 8;
                        const float one = power_of_2(share[m].at[n][i] * scale - shift[m][i / 2]);
                        change[m].at[n][i] = masks && key > row ? 0.0f : one * (change[m].at[n][i] - agreement[m][i / 2]);
                    }
#pragma unroll
            for (int k = 0; k < N; k += 16) {
                uint32_t left[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) change[m].left(left[m], k);
#pragma unroll
                for (int n = 0; n < D; n += 16) {
                    uint32_t right[4];
                    s.key[now].right(right, k, n);
#pragma unroll
                    for (int m = 0; m < M; ++m) add(sums[m], n, left[m], right);
                }
            }
        }
        __syncthreads();  // everybody is done with this tile
    }
    write(asked.slopes + at.row * width + head * D, width, count, s.query, warp * 16 * M, sums, asked.scale);
}

// ---- back to keys and values ----

constexpr int key_queries = 32;

template <int D>
struct KeyShared {
    Rows<D, tile<D>> key, value;
    Rows<D, key_queries> query[2], slope[2];
    float shift[2][key_queries], agreement[2][key_queries];
};

// A warp has keys: scores are transposed, rows of keys and columns of queries. All query heads that share the keys come past.
template <int D>
__device__ void back_to_keys(const Backward& asked) {
    extern __shared__ __align__(128) unsigned char room[];
    KeyShared<D>& s = *reinterpret_cast<KeyShared<D>*>(room);
    constexpr int M = pieces<D>, N = key_queries;
    wait_for_previous();
    const Stretch at = asked.stretches[blockIdx.y];
    if (at.count == 0) return;
    const int kv_head = blockIdx.x, group = asked.heads / asked.kv_heads, count = at.count;
    const size_t width = static_cast<size_t>(asked.heads + 2 * asked.kv_heads) * D;
    const size_t wide = static_cast<size_t>(asked.heads) * D;
    const size_t key_place = at.row * width + (asked.heads + kv_head) * D, value_place = key_place + asked.kv_heads * D;
    // Rows are counted from the tile's first: no query before it sees any of its keys.
    const int after = at.end - at.row, rounds = (after + N - 1) / N, steps = group * rounds;

    const auto fetch_step = [&](int step, int to) {
        const int head = kv_head * group + step / rounds, from = step % rounds * N;
        const size_t row = at.row + from;
        s.query[to].fetch_from(asked.qkv + row * width + head * D, width, after - from);
        s.slope[to].fetch_from(asked.out_slopes + row * wide + head * D, wide, after - from);
        end_group();
        if (threadIdx.x < N) {
            const int i = threadIdx.x;
            const size_t place = static_cast<size_t>(head) * asked.rows + row + i;
            const bool there = from + i < after;
            // A query that is not there gives nothing to anybody.
            s.shift[to][i] = there ? asked.log_totals[place] * log2e : __int_as_float(0x7f800000);
            s.agreement[to][i] = there ? asked.agreements[place] : 0.0f;
        }
    };
    s.key.fetch_from(asked.qkv + key_place, width, count);
    s.value.fetch_from(asked.qkv + value_place, width, count);
    fetch_step(0, 0);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, t = lane % 4;
    const int first = warp * 16 * M;
    const float scale = asked.scale * log2e;
    Sums<D> key_sums[M], value_sums[M];
#pragma unroll
    for (int m = 0; m < M; ++m) {
        key_sums[m].clear();
        value_sums[m].clear();
    }
    for (int step = 0; step < steps; ++step) {
        const int from = step % rounds * N, now = step % 2;
        if (step + 1 < steps) {
            fetch_step(step + 1, 1 - now);
            wait_for_groups<1>();
        } else {
            wait_for_groups<0>();
        }
        __syncthreads();
        if (from + N - 1 >= first) {
            Sums<N> share[M], change[M];
#pragma unroll
            for (int m = 0; m < M; ++m) {
                share[m].clear();
                change[m].clear();
            }
#pragma unroll
            for (int k = 0; k < D; k += 16) {
                uint32_t left[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) s.key.left(left[m], first + 16 * m, k);
#pragma unroll
                for (int n = 0; n < N; n += 16) {
                    uint32_t right[4];
                    s.query[now].right_transposed(right, n, k);
#pragma unroll
                    for (int m = 0; m < M; ++m) add(share[m], n, left[m], right);
                }
            }
            const bool masks = from < first + 16 * M - 1;
#pragma unroll
            for (int n = 0; n < N / 8; ++n) {
                const float2 shift = *reinterpret_cast<const float2*>(&s.shift[now][8 * n + 2 * t]);
#pragma unroll
                for (int m = 0; m < M; ++m)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int query = from + 8 * n + 2 * t + i % 2, key = first + 16 * m + r + i / 2 * 8;
                        const float one = power_of_2(share[m].at[n][i] * scale - (i % 2 ? shift.y : shift.x));
                        share[m].at[n][i] = masks && key > query ? 0.0f : one;
                    }
            }
#pragma unroll
            for (int k = 0; k < N; k += 16) {
                uint32_t left[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) share[m].left(left[m], k);
#pragma unroll
                for (int n = 0; n < D; n += 16) {
                    uint32_t right[4];
                    s.slope[now].right(right, k, n);
#pragma unroll
                    for (int m = 0; m < M; ++m) add(value_sums[m], n, left[m], right);
                }
            }
#pragma unroll
            for (int k = 0; k < D; k += 16) {
                uint32_t left[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) s.value.left(left[m], first + 16 * m, k);
#pragma unroll
                for (int n = 0; n < N; n += 16) {
                    uint32_t right[4];
                    s.slope[now].right_transposed(right, n, k);
#pragma unroll
                    for (int m = 0; m < M; ++m) add(change[m], n, left[m], right);
                }
            }
#pragma unroll
            for (int n = 0; n < N / 8; ++n) {
                const float2 agreement = *reinterpret_cast<const float2*>(&s.agreement[now][8 * n + 2 * t]);
#pragma unroll
                for (int m = 0; m < M; ++m)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        change[m].at[n][i] = share[m].at[n][i] * (change[m].at[n][i] - (i % 2 ? agreement.y : agreement.x));
            }
#pragma unroll
            for (int k = 0; k < N; k += 16) {
                uint32_t left[M][4];
#pragma unroll
                for (int m = 0; m < M; ++m) change[m].left(left[m], k);
#pragma unroll
                for (int n = 0; n < D; n += 16) {
                    uint32_t right[4];
                    s.query[now].right(right, k, n);
#pragma unroll
                    for (int m = 0; m < M; ++m) add(key_sums[m], n, left[m], right);
                }
            }
        }
        __syncthreads();  // everybody is done with these queries
    }
    write(asked.slopes + key_place, width, count, s.key, first, key_sums, asked.scale);
    write(asked.slopes + value_place, width, count, s.value, first, value_sums, 1.0f);
}

}  // namespace

// Blocks that a multiprocessor should have at once, which bounds the registers of each.
#define PACKED_ATTENTION(D)                                                                                               \
    extern "C" __global__ __launch_bounds__(threads, 2) void packed_forward_##D(const Forward asked) {                    \
        static_assert(sizeof(ForwardShared<D>) == 16384 + 512 * D, "the host asks for this much");                        \
        forward<D>(asked);                                                                                                \
    }                                                                                                                     \
    extern "C" __global__ __launch_bounds__(threads, 2) void packed_back_to_queries_##D(const Backward asked) {           \
        static_assert(sizeof(QueryShared<D>) == 32768 + 256 * D, "the host asks for this much");                          \
        back_to_queries<D>(asked);                                                                                        \
    }                                                                                                                     \
    extern "C" __global__ __launch_bounds__(threads, 2) void packed_back_to_keys_##D(const Backward asked) {              \
        static_assert(sizeof(KeyShared<D>) == 33280 + 256 * D, "the host asks for this much");                            \
        back_to_keys<D>(asked);                                                                                           \
    }
PACKED_ATTENTION(64)
PACKED_ATTENTION(128)
