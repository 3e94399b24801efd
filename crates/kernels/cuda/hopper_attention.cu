// The same as packed_attention.cu for Hopper alone, whose tensor cores read from shared memory.
//
// A block has 128 neighbouring rows of one sequence, each four warps 64 of them. Everything else comes past in tiles, the next two
// while this one is worked on. Four warps may be a tile ahead of the other four: where they wait for products or take shares, those
// have the tensor cores.
#include "common.cuh"
#include "packed_attention.cuh"
#include "tensor.cuh"
#include "warpgroups.cuh"

namespace {

constexpr int rows_of_block = 128, threads = 256, places = 3;

// Rows of 128 bytes lie in groups of eight, 1024 bytes each, 16-byte pieces exchanged; what is wider than that goes on `further`
// pieces on. `at` counts pieces too.
__device__ uint64_t described(uint32_t at, uint32_t further) { return joined(at | further << 16, 64 | 1u << 30); }

// N rows of D numbers, as tensor cores read them: columns in halves of 64.
template <int D, int N>
struct Tile {
    alignas(1024) Eight at[D / 64][N][8];

    __device__ Eight* place(int row, int eight) { return &at[eight / 8][row][eight % 8 ^ (row & 7)]; }

    // Starts to copy rows, of which the first `count` are there. All threads together copy `rows` of them at a time, a multiple
    // of eight: a thread's pieces stay in their column.
    __device__ void fetch_from(const bf16* from, size_t width, int count) {
        constexpr int pieces = D / 8, rows = threads / pieces;
        static_assert(rows % 8 == 0 && N % rows == 0, "every thread copies as many");
        const int r = threadIdx.x / pieces, c = threadIdx.x % pieces;
        const bf16* piece = from + r * width + c * 8;
        Eight* const to = place(r, c);
#pragma unroll
        for (int i = 0; i < N; i += rows) {
            fetch(to + 8 * i, piece, r + i < count);
            piece += rows * width;
        }
    }

    // In pieces of 16 bytes.
    __device__ uint32_t address() const { return (static_cast<uint32_t>(__cvta_generic_to_shared(this)) & 0x3ffff) >> 4; }

    // Rows from `row` on, of which sixteen columns are multiplied.
    __device__ uint64_t by_columns(int row, int column) const {
        return described(address() + row * 8 + (column / 64 * N * 8 + column % 64 / 8), 1);
    }

    // Sixteen rows from `row` on, which are multiplied; all columns.
    __device__ uint64_t by_rows(int row) const { return described(address() + row * 8, N * 8); }
};

// Where a thread's rows are: it has `row` and the eighth after it, counted from the block's first, and every fourth two columns.
struct Part {
    int first, row, t;  // `first`: of its four warps
    __device__ Part()
        : first(of_warp(threadIdx.x / 128 * 64)), row(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4), t(threadIdx.x % 4) {}
};

// sums = left * right^T, of rows that both have in shared memory.
template <int D, int N, int M>
__device__ inline void multiply_rows(Sums<N>& sums, const Tile<D, M>& left, int row, const Tile<D, N>& right) {
#pragma unroll
    for (int k = 0; k < D; k += 16) multiply(sums, left.by_columns(row, k), right.by_columns(0, k), k == 0);
}

// sums += left * right.
template <int D, int N>
__device__ inline void add_product(Sums<D>& sums, const uint32_t (&left)[N / 16][4], const Tile<D, N>& right) {
#pragma unroll
    for (int k = 0; k < N; k += 16) multiply(sums, left[k / 16], right.by_rows(k));
}

// What comes past lies in a few places in turn. A step's tiles are fetched by all; a warp says when its part of them is there, and
// when it needs them no more.
struct Gates {
    Gate there[places], free[places];
};

struct Turns {
    Gates& gates;

    __device__ Turns(Gates& gates) : gates(gates) {
        if (threadIdx.x == 0)
            for (int i = 0; i < places; ++i) {
                set_up(gates.there[i], threads / 32);
                set_up(gates.free[i], threads / 32);
            }
        __syncthreads();
    }

    // Before tiles of a step are fetched: everybody is done with those that lie there.
    __device__ void await_place(int step) {
        if (step >= places) await(gates.free[step % places], step / places - 1 & 1);
    }

    // What was fetched for a step is there; what was fetched after it, in so many groups, need not be.
    template <int Later>
    __device__ void hand_over(int step) {
        wait_for_groups<Later>();
        show_copies();
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(gates.there[step % places]);
    }

    __device__ void await_tiles(int step) { await(gates.there[step % places], step / places & 1); }

    // All products with a step's tiles were waited for.
    __device__ void leave(int step) {
        __syncwarp();
        if (threadIdx.x % 32 == 0) arrive(gates.free[step % places]);
    }
};

template <int N>
__device__ inline void as_left(uint32_t (&to)[N / 16][4], const Sums<N>& from) {
#pragma unroll
    for (int k = 0; k < N; k += 16) from.left(to[k / 16], k);
}

// ---- forward ----

// Keys that come past at once: where two blocks fit into a multiprocessor, half as many.
template <int D>
constexpr int forward_keys = D;

template <int D>
struct ForwardShared {
    Tile<D, rows_of_block> query;
    Tile<D, forward_keys<D>> key[places], value[places];
    Gates gates;
};

template <int D>
__device__ void forward(const Forward& asked) {
    extern __shared__ __align__(1024) unsigned char room[];
    ForwardShared<D>& s = *reinterpret_cast<ForwardShared<D>*>(room);
    constexpr int N = forward_keys<D>;
    Turns turns(s.gates);
    wait_for_previous();
    const Stretch at = asked.stretches[blockIdx.y];
    if (at.count == 0) return;
    const int head = blockIdx.x, kv_head = head / (asked.heads / asked.kv_heads), count = at.count;
    const size_t width = static_cast<size_t>(asked.heads + 2 * asked.kv_heads) * D;
    const bf16* keys = asked.qkv + at.begin * width + (asked.heads + kv_head) * D;
    const bf16* values = keys + asked.kv_heads * D;
    const int before = at.row - at.begin, seen = before + count, steps = (seen + N - 1) / N;

    // Values are multiplied a step after their keys, while scores of that step become shares.
    const auto fetch_step = [&](int step) {
        if (step <= steps) {
            turns.await_place(step);
            const int from = step * N, to = step % places;
            if (step < steps) s.key[to].fetch_from(keys + from * width, width, seen - from);
            if (step > 0) s.value[to].fetch_from(values + (from - N) * width, width, seen - from + N);
        }
        end_group();
    };
    s.query.fetch_from(asked.qkv + at.row * width + head * D, width, count);
    fetch_step(0);
    fetch_step(1);
    turns.hand_over<1>(0);

    const Part part;
    const float scale = asked.scale * log2e;
    Sums<D> out[1];
    out[0].clear();
    Sums<N> score;
    uint32_t share[N / 16][4];
    float top[2] = {nothing, nothing}, total[2] = {0.0f, 0.0f}, shrink[2];
    const auto take_shares_of = [&](int step) {
        const int from = step * N;
        if (from + N - 1 > before + part.first) hide<Hidden::later>(score, from + 2 * part.t, before + part.row);
        take_shares(score, top, total, shrink, scale);
    };
    turns.await_tiles(0);
    begin_products();
    multiply_rows(score, s.query, part.first, s.key[0]);
    end_lot();
    turns.hand_over<0>(1);
    fetch_step(2);
    wait_for_lots<0>();
    arrived(score);
    turns.leave(0);
    take_shares_of(0);
    as_left(share, score);
    for (int step = 1; step < steps; ++step) {
        const int now = step % places;
        turns.await_tiles(step);
        arrived(out[0]);
        begin_products();
        multiply_rows(score, s.query, part.first, s.key[now]);
        end_lot();
        add_product(out[0], share, s.value[now]);
        end_lot();
        turns.hand_over<0>(step + 1);
        wait_for_lots<1>();
        arrived(score);
        take_shares_of(step);
        fetch_step(step + 2);
        stay_above(step);
        wait_for_lots<0>();
        used(share);
        arrived(out[0]);
        turns.leave(step);
        scale_rows(out[0], shrink);
        as_left(share, score);
    }
    turns.await_tiles(steps);
    arrived(out[0]);
    begin_products();
    add_product(out[0], share, s.value[steps % places]);
    end_lot();
    wait_for_groups<0>();
    wait_for_lots<0>();
    used(share);
    arrived(out[0]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const float sum = divide_by_total(out[0], half, total[half]);
        const int row = part.row + half * 8;
        if (part.t == 0 && row < count)
            asked.log_totals[static_cast<size_t>(head) * asked.rows + at.row + row] = top[half] * asked.scale + logf(sum);
    }
    __syncthreads();  // nobody multiplies queries any more
    const size_t wide = static_cast<size_t>(asked.heads) * D;
    write(asked.out + at.row * wide + head * D, wide, count, s.query, threadIdx.x / 32 * 16, out, 1.0f);
}

// ---- back to queries ----

constexpr int keys_past = 64;

template <int D>
struct QueryShared {
    Tile<D, rows_of_block> query, slope;
    Tile<D, keys_past> key[places], value[places];
    Gates gates;
};

// Also finds how far each row's outputs agree with their slopes, which the way back to keys needs too.
template <int D>
__device__ void back_to_queries(const Backward& asked) {
    extern __shared__ __align__(1024) unsigned char room[];
    QueryShared<D>& s = *reinterpret_cast<QueryShared<D>*>(room);
    constexpr int N = keys_past;
    Turns turns(s.gates);
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

    const auto fetch_step = [&](int step) {
        if (step < steps) {
            turns.await_place(step);
            const int from = step * N, to = step % places;
            s.key[to].fetch_from(keys + from * width, width, seen - from);
            s.value[to].fetch_from(values + from * width, width, seen - from);
        }
        end_group();
    };
    s.query.fetch_from(asked.qkv + at.row * width + head * D, width, count);
    s.slope.fetch_from(out_slopes, wide, count);
    fetch_step(0);
    fetch_step(1);

    const Part part;
    const float scale = asked.scale * log2e;
    float shift[2], agreement[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int row = part.row + half * 8;
        const float sum = agreement_of<D>(out_slopes + row * wide, outs + row * wide, row < count);
        const size_t place = static_cast<size_t>(head) * asked.rows + at.row + row;
        agreement[half] = sum;
        shift[half] = row < count ? asked.log_totals[place] * log2e : 0.0f;
        if (part.t == 0 && row < count) asked.agreements[place] = sum;
    }
    turns.hand_over<1>(0);
    Sums<D> sums[1];
    sums[0].clear();
    for (int step = 0; step < steps; ++step) {
        const int from = step * N, now = step % places;
        turns.await_tiles(step);
        if (from > before + part.first + 63) {
            turns.hand_over<0>(step + 1);
            fetch_step(step + 2);
            turns.leave(step);
            continue;
        }
        Sums<N> share, change;
        begin_products();
        multiply_rows(share, s.query, part.first, s.key[now]);
        end_lot();
        multiply_rows(change, s.slope, part.first, s.value[now]);
        end_lot();
        turns.hand_over<0>(step + 1);
        wait_for_lots<1>();
        arrived(share);
        if (from + N - 1 > before + part.first) hide<Hidden::later>(share, from + 2 * part.t, before + part.row);
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) share.at[n][i] = power_of_2(share.at[n][i] * scale - shift[i / 2]);
        wait_for_lots<0>();
        arrived(change);
#pragma unroll
        for (int n = 0; n < N / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) change.at[n][i] = share.at[n][i] * (change.at[n][i] - agreement[i / 2]);
        uint32_t left[N / 16][4];
        as_left(left, change);
        begin_products();
        add_product(sums[0], left, s.key[now]);
        end_lot();
        fetch_step(step + 2);
        wait_for_lots<0>();
        used(left);
        arrived(sums[0]);
        turns.leave(step);
    }
    wait_for_groups<0>();
    __syncthreads();  // nobody multiplies queries any more
    write(asked.slopes + at.row * width + head * D, width, count, s.query, threadIdx.x / 32 * 16, sums, asked.scale);
}

// ---- back to keys and values ----

// As many as sums leave registers for.
template <int D>
constexpr int queries_past = 8192 / D;

template <int D>
struct KeyShared {
    Tile<D, rows_of_block> key, value;
    Tile<D, queries_past<D>> query[places], slope[places];
    float log_total[places][queries_past<D>], agreement[places][queries_past<D>];
    Gates gates;
};

// Scores are transposed, rows of keys and columns of queries. All query heads that share the keys come past.
template <int D>
__device__ void back_to_keys(const Backward& asked) {
    extern __shared__ __align__(1024) unsigned char room[];
    KeyShared<D>& s = *reinterpret_cast<KeyShared<D>*>(room);
    constexpr int N = queries_past<D>;
    Turns turns(s.gates);
    wait_for_previous();
    const Stretch at = asked.stretches[blockIdx.y];
    if (at.count == 0) return;
    const int kv_head = blockIdx.x, group = asked.heads / asked.kv_heads, count = at.count;
    const size_t width = static_cast<size_t>(asked.heads + 2 * asked.kv_heads) * D;
    const size_t wide = static_cast<size_t>(asked.heads) * D;
    const size_t key_place = at.row * width + (asked.heads + kv_head) * D, value_place = key_place + asked.kv_heads * D;
    // Rows are counted from the tile's first: no query before it sees any of its keys.
    const int after = at.end - at.row, rounds = (after + N - 1) / N, steps = group * rounds;

    // A query that is not there is zeros, and so are its slopes: it gives nothing to anybody.
    const auto fetch_step = [&](int step) {
        if (step < steps) {
            turns.await_place(step);
            const int head = kv_head * group + step / rounds, from = step % rounds * N, to = step % places;
            const size_t row = at.row + from;
            s.query[to].fetch_from(asked.qkv + row * width + head * D, width, after - from);
            s.slope[to].fetch_from(asked.out_slopes + row * wide + head * D, wide, after - from);
            if (const int i = threadIdx.x; i < N) {
                const size_t place = static_cast<size_t>(head) * asked.rows + row + i;
                fetch_number(&s.log_total[to][i], asked.log_totals + place, from + i < after);
                fetch_number(&s.agreement[to][i], asked.agreements + place, from + i < after);
            }
        }
        end_group();
    };
    s.key.fetch_from(asked.qkv + key_place, width, count);
    s.value.fetch_from(asked.qkv + value_place, width, count);
    fetch_step(0);
    fetch_step(1);
    turns.hand_over<1>(0);

    const Part part;
    const float scale = asked.scale * log2e;
    Sums<D> key_sums[1], value_sums[1];
    key_sums[0].clear();
    value_sums[0].clear();
    for (int step = 0; step < steps; ++step) {
        const int from = step % rounds * N, now = step % places;
        turns.await_tiles(step);
        if (from + N - 1 < part.first) {
            turns.hand_over<0>(step + 1);
            fetch_step(step + 2);
            turns.leave(step);
            continue;
        }
        Sums<N> share, change;
        begin_products();
        multiply_rows(share, s.key, part.first, s.query[now]);
        end_lot();
        multiply_rows(change, s.value, part.first, s.slope[now]);
        end_lot();
        turns.hand_over<0>(step + 1);
        wait_for_lots<1>();
        arrived(share);
        if (from < part.first + 63) hide<Hidden::earlier>(share, from + 2 * part.t, part.row);
#pragma unroll
        for (int n = 0; n < N / 8; ++n) {
            const float2 log_total = *reinterpret_cast<const float2*>(&s.log_total[now][8 * n + 2 * part.t]);
            const float even = log_total.x * log2e, odd = log_total.y * log2e;
#pragma unroll
            for (int i = 0; i < 4; ++i) share.at[n][i] = power_of_2(share.at[n][i] * scale - (i % 2 ? odd : even));
        }
        uint32_t left[N / 16][4];
        as_left(left, share);
        begin_products();
        add_product(value_sums[0], left, s.slope[now]);
        end_lot();
        wait_for_lots<1>();
        arrived(change);
#pragma unroll
        for (int n = 0; n < N / 8; ++n) {
            const float2 agreement = *reinterpret_cast<const float2*>(&s.agreement[now][8 * n + 2 * part.t]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                change.at[n][i] = share.at[n][i] * (change.at[n][i] - (i % 2 ? agreement.y : agreement.x));
        }
        uint32_t next[N / 16][4];
        as_left(next, change);
        begin_products();
        add_product(key_sums[0], next, s.query[now]);
        end_lot();
        fetch_step(step + 2);
        wait_for_lots<0>();
        used(left);
        used(next);
        arrived(value_sums[0]);
        arrived(key_sums[0]);
        turns.leave(step);
    }
    wait_for_groups<0>();
    __syncthreads();  // nobody multiplies keys and values any more
    write(asked.slopes + key_place, width, count, s.key, threadIdx.x / 32 * 16, key_sums, asked.scale);
    write(asked.slopes + value_place, width, count, s.value, threadIdx.x / 32 * 16, value_sums, 1.0f);
}

}  // namespace

#define HOPPER_ATTENTION(D)                                                                                               \
    extern "C" __global__ __launch_bounds__(threads, 128 / D) void hopper_forward_##D(const Forward asked) {                    \
        static_assert(sizeof(ForwardShared<D>) == 1024 + (256 + 12 * D) * D, "the host asks for this much");                               \
        forward<D>(asked);                                                                                                \
    }                                                                                                                     \
    extern "C" __global__ __launch_bounds__(threads, 128 / D) void hopper_back_to_queries_##D(const Backward asked) {           \
        static_assert(sizeof(QueryShared<D>) == 1024 + 1280 * D, "the host asks for this much");                          \
        back_to_queries<D>(asked);                                                                                        \
    }                                                                                                                     \
    extern "C" __global__ __launch_bounds__(threads, 1) void hopper_back_to_keys_##D(const Backward asked) {              \
        static_assert(sizeof(KeyShared<D>) <= 98304 + 512 * D + 4096, "the host asks for this much");                     \
        back_to_keys<D>(asked);                                                                                           \
    }
HOPPER_ATTENTION(64)
HOPPER_ATTENTION(128)
