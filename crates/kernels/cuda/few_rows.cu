// Products of few rows with a weight matrix: out[rows x outputs] = x[rows x inputs] * weight[outputs x inputs]^T.
//
// Bound by reading the weights, which stream through shared memory once, several stages ahead, the first of them before the
// kernel before has ended. Outputs are the rows of the tensor cores' tiles and rows their columns; Hopper's tensor cores read
// both from shared memory, four warps together. Where outputs are too few to give every multiprocessor some, the
// blocks of a cluster share the inputs and bring their sums together in each other's shared memory, each for a slice of the
// outputs and in the same order every time.
//
// What follows a product is done where its sums are: SwiGLU; or the addition to the residual stream and half of the norm after
// it. That norm's weights are applied before the next product, what divides a whole row is applied after: the squares come in
// parts, one a slice.
#include <cooperative_groups.h>

#include "common.cuh"

struct Product {
    void* out;
    const bf16* x;
    const bf16* weight;
    // Of the rows of x, in `parts` parts: [part][row]; may be left out.
    const float* squares;
    // Where sums are added: the stream, the weights of the norm that follows, and the squares of what is now in the stream.
    float* residual;
    const float* next_norm;
    float* next_squares;
    int rows, inputs, outputs, parts;
    float epsilon;
};

namespace {

namespace cg = cooperative_groups;

enum class Then { narrow, wide, gate, add };

constexpr int threads = 256, depth = 64;  // inputs a stage has
constexpr int most_sharing = 8;

__device__ uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

// 16 bytes, or zeros.
__device__ void copy_ahead(uint32_t to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ void end_of_stage() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int Under>
__device__ void wait_until_under_way() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Under) : "memory");
}

// Tells the tensor cores where rows of 128 bytes lie: in groups of eight, 1024 bytes each, 16-byte pieces exchanged.
__device__ uint64_t described(uint32_t at) { return (at & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62; }

// sums[64 x N] += left[64 x 16] * right[N x 16]^T by four warps, each sixteen rows of `left`: with r = lane / 4 and t = lane % 4
// a lane has row r at columns 2t and 2t + 1, then row r + 8, of every eight columns.
#define FOUR(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
__device__ void multiply(float (&sums)[4], uint64_t left, uint64_t right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
        : FOUR(0)
        : "l"(left), "l"(right));
}
__device__ void multiply(float (&sums)[8], uint64_t left, uint64_t right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, 0, 0;"
        : FOUR(0), FOUR(4)
        : "l"(left), "l"(right));
}
__device__ void multiply(float (&sums)[16], uint64_t left, uint64_t right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
        : FOUR(0), FOUR(4), FOUR(8), FOUR(12)
        : "l"(left), "l"(right));
}
__device__ void multiply(float (&sums)[32], uint64_t left, uint64_t right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
        : FOUR(0), FOUR(4), FOUR(8), FOUR(12), FOUR(16), FOUR(20), FOUR(24), FOUR(28)
        : "l"(left), "l"(right));
}
#undef FOUR

__device__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ void end_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// What was copied here can now be seen by the tensor cores.
__device__ void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// N: rows at most. M: outputs a block has.
template <int N, int M, int stages, Then then>
__device__ void product(const Product& asked) {
    // Each four warps have 64 outputs; where a block has no more, half of the inputs.
    constexpr int over_k = 128 / M, steps = depth / 16 / over_k;
    constexpr int weight_bytes = M * depth * 2, stage_bytes = weight_bytes + N * depth * 2;
    constexpr int stride = M + 4;
    extern __shared__ __align__(1024) unsigned char room[];
    __shared__ float squares[threads];
    __shared__ float scales[N];
    static_assert(over_k * N * stride * 4 <= stages * stage_bytes, "sums take the place of the stages");

    const cg::cluster_group cluster = cg::this_cluster();
    const int sharing = cluster.num_blocks(), rank = cluster.block_rank();
    const int first_output = blockIdx.x / sharing * M;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int at_m = over_k == 1 ? warp / 4 : 0, at_k = over_k == 1 ? 0 : warp / 4;
    const int chunks = (asked.inputs + depth - 1) / depth;
    const int begin = chunks * rank / sharing, end = chunks * (rank + 1) / sharing;
    const uint32_t stage_start = shared_address(room);

    // Eight lanes read 128 bytes of a row; pieces of 16 bytes change places within them, so that banks do not conflict.
    const int piece = threadIdx.x % 8;
    const uint32_t place = threadIdx.x / 8 * 128 + ((piece ^ threadIdx.x / 8 % 8) << 4);
    auto copy_weights = [&](int chunk) {
        const int input = chunk * depth + piece * 8;
        const uint32_t to = stage_start + (chunk - begin) % stages * stage_bytes + place;
#pragma unroll
        for (int i = 0; i < M / 32; ++i) {
            const int output = min(first_output + static_cast<int>(threadIdx.x) / 8 + 32 * i, asked.outputs - 1);
            const bf16* from = asked.weight + static_cast<size_t>(output) * asked.inputs + min(input, asked.inputs - 8);
            copy_ahead(to + i * 32 * 128, from, input < asked.inputs);
        }
    };
    auto copy_rows = [&](int chunk) {
        const int input = chunk * depth + piece * 8;
        const uint32_t to = stage_start + (chunk - begin) % stages * stage_bytes + weight_bytes + place;
#pragma unroll
        for (int i = 0; i < (N + 31) / 32; ++i) {
            const int row = static_cast<int>(threadIdx.x) / 8 + 32 * i;
            if (N < 32 && row >= N) break;
            copy_ahead(to + i * 32 * 128,
                       asked.x + static_cast<size_t>(min(row, asked.rows - 1)) * asked.inputs + min(input, asked.inputs - 8),
                       input < asked.inputs && row < asked.rows);
        }
    };
#pragma unroll
    for (int i = 0; i < stages - 1; ++i)
        if (begin + i < end) copy_weights(begin + i);
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < stages - 1; ++i) {
        if (begin + i < end) copy_rows(begin + i);
        end_of_stage();
    }
    if (asked.squares) {
        float sum = 0.0f;
        const int row = min(static_cast<int>(threadIdx.x) % N, asked.rows - 1);
        // Many at once: each takes long to come.
#pragma unroll 24
        for (int part = threadIdx.x / N; part < asked.parts; part += threads / N) sum += asked.squares[part * asked.rows + row];
        squares[threadIdx.x] = sum;
    }

    float sums[N / 2] = {};
    for (int chunk = begin; chunk < end; ++chunk) {
        wait_until_under_way<stages - 2>();
        show_copies();
        __syncthreads();
        if (chunk + stages - 1 < end) {
            copy_weights(chunk + stages - 1);
            copy_rows(chunk + stages - 1);
        }
        end_of_stage();
        const uint32_t stage = stage_start + (chunk - begin) % stages * stage_bytes;
        const uint64_t left = described(stage + at_m * 64 * 128), right = described(stage + weight_bytes);
        begin_products();
#pragma unroll
        for (int s = 0; s < steps; ++s) multiply(sums, left + (at_k * steps + s) * 2, right + (at_k * steps + s) * 2);
        end_products();
    }
    // Not before: blocks of the next kernel that come earlier do not spread as evenly, which costs more than they gain.
    let_next_start();
    wait_until_under_way<0>();
    __syncthreads();

    float* all = reinterpret_cast<float*>(room);  // [over_k][row][output]
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
        const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int output = at_m * 64 + warp % 4 * 16 + lane / 4 + i / 2 % 2 * 8;
        all[(at_k * N + row) * stride + output] = sums[i];
    }
    if (asked.squares && threadIdx.x < N) {
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < threads / N; ++part) sum += squares[part * N + threadIdx.x];
        scales[threadIdx.x] = rsqrtf(sum / asked.inputs + asked.epsilon);
    }
    __syncthreads();
    const int slice = M / sharing;
    // What the sums are added to is asked for before the cluster meets: both take their time.
    float4 stream_first, norm_first;
    if constexpr (then == Then::add) {
        const int row = min(static_cast<int>(threadIdx.x) / (slice / 4), asked.rows - 1);
        const int output = min(first_output + rank * slice + static_cast<int>(threadIdx.x) % (slice / 4) * 4, asked.outputs - 4);
        stream_first = *reinterpret_cast<const float4*>(asked.residual + static_cast<size_t>(row) * asked.outputs + output);
        norm_first = *reinterpret_cast<const float4*>(asked.next_norm + output);
    }
    auto add_to = [](float4& to, const float4& more) {
        to = make_float4(to.x + more.x, to.y + more.y, to.z + more.z, to.w + more.w);
    };
    auto own_sum = [&](int row, int output) {
        float4 sum = *reinterpret_cast<const float4*>(all + row * stride + output);
#pragma unroll
        for (int k = 1; k < over_k; ++k) add_to(sum, *reinterpret_cast<const float4*>(all + (k * N + row) * stride + output));
        return sum;
    };
    if (sharing > 1) {
        if constexpr (over_k > 1)
            for (int i = threadIdx.x; i < N * M / 4; i += threads) {
                const int row = i / (M / 4), output = i % (M / 4) * 4;
                const float4 sum = own_sum(row, output);
                *reinterpret_cast<float4*>(all + row * stride + output) = sum;
            }
        cluster.sync();
    }
    // Four outputs of a row, of all who share them.
    auto whole_sum = [&](int row, int output) {
        float4 sum;
        if (sharing == 1) {
            sum = own_sum(row, output);
        } else {
            float4 theirs[most_sharing];
#pragma unroll
            for (int other = 0; other < most_sharing; ++other)
                if (other < sharing) {
                    const float* from = cluster.map_shared_rank(all, other) + row * stride + output;
                    theirs[other] = *reinterpret_cast<const float4*>(from);
                }
            sum = theirs[0];
#pragma unroll
            for (int other = 1; other < most_sharing; ++other)
                if (other < sharing) add_to(sum, theirs[other]);
        }
        if (asked.squares) {
            const float scale = scales[row];
            sum = make_float4(sum.x * scale, sum.y * scale, sum.z * scale, sum.w * scale);
        }
        return sum;
    };
    if constexpr (then == Then::gate) {
        // Eight gates, then their eight factors, and so on.
        const int quads = slice / 8;
        for (int i = threadIdx.x; i < asked.rows * quads; i += threads) {
            const int row = i / quads, quad = i % quads;
            const int output = rank * slice + quad / 2 * 16 + quad % 2 * 4;
            if (first_output + output >= asked.outputs) continue;
            const float4 gate = whole_sum(row, output), up = whole_sum(row, output + 8);
            auto gated = [](float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; };
            const int to = (first_output + rank * slice) / 2 + quad * 4;
            *reinterpret_cast<uint2*>(static_cast<bf16*>(asked.out) + static_cast<size_t>(row) * (asked.outputs / 2) + to) =
                make_uint2(narrow(gated(gate.x, up.x), gated(gate.y, up.y)), narrow(gated(gate.z, up.z), gated(gate.w, up.w)));
        }
    } else {
        const int quads = slice / 4;
        // All lanes come along: they add squares.
        for (int i = threadIdx.x; i < N * quads; i += threads) {
            const int row = i / quads, inside = rank * slice + i % quads * 4, output = first_output + inside;
            const bool there = row < asked.rows && output < asked.outputs;
            const size_t to = static_cast<size_t>(row) * asked.outputs + output;
            float4 sum = there ? whole_sum(row, inside) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if constexpr (then == Then::wide) {
                if (there) *reinterpret_cast<float4*>(static_cast<float*>(asked.out) + to) = sum;
            } else {
                if constexpr (then == Then::add) {
                    float more = 0.0f;
                    float4 by = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (there) {
                        const bool first = i == static_cast<int>(threadIdx.x);
                        add_to(sum, first ? stream_first : *reinterpret_cast<const float4*>(asked.residual + to));
                        *reinterpret_cast<float4*>(asked.residual + to) = sum;
                        by = first ? norm_first : *reinterpret_cast<const float4*>(asked.next_norm + output);
                        more = sum.x * sum.x + sum.y * sum.y + sum.z * sum.z + sum.w * sum.w;
                    }
                    for (int step = quads / 2; step; step >>= 1) more += __shfl_xor_sync(~0u, more, step);
                    if (i % quads == 0 && row < asked.rows) asked.next_squares[blockIdx.x * asked.rows + row] = more;
                    sum = make_float4(sum.x * by.x, sum.y * by.y, sum.z * by.z, sum.w * by.w);
                }
                if (there)
                    *reinterpret_cast<uint2*>(static_cast<bf16*>(asked.out) + to) =
                        make_uint2(narrow(sum.x, sum.y), narrow(sum.z, sum.w));
            }
        }
    }
    if (sharing > 1) cluster.sync();  // nobody leaves while others read
}

}  // namespace

// 128 outputs a block, four stages.
#define PRODUCT(THEN, N)                                                                                  \
    extern "C" __global__ __launch_bounds__(threads, 3) void few_rows_##THEN##_##N(const Product asked) { \
        product<N, 128, 4, Then::THEN>(asked);                                                            \
    }
#define PRODUCTS(THEN) PRODUCT(THEN, 8) PRODUCT(THEN, 16) PRODUCT(THEN, 32) PRODUCT(THEN, 64)
PRODUCTS(narrow)
PRODUCTS(wide)
PRODUCTS(gate)
PRODUCTS(add)
