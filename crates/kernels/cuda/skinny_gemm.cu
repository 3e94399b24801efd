// Skinny GEMM for decoding on Hopper: out[rows x outputs] = x[rows x inputs] * weight[outputs x inputs]^T with at most 64 rows.
//
// The kernel is bound by reading the weights. They stream through shared memory once, several stages ahead, the first of them
// before the previous kernel has ended. Outputs are the rows of the wgmma tiles and rows of x their columns. Where there are too
// few outputs for all multiprocessors, the blocks of a cluster split the inputs (split-K) and reduce through distributed shared
// memory, each block a slice of the outputs and always in the same order.
//
// Epilogues run where the accumulators are: SwiGLU, or the residual addition with half of the RMS norm after it. The norm's weights
// are applied before the next product, the division by the row's root mean square after it: the sums of squares come in parts, one
// a slice.
#include <cooperative_groups.h>

#include "primitives.cuh"

struct GemmParams {
    void* out;
    const bf16* x;
    const bf16* weight;
    // Sums of squares of the rows of x in `square_parts` parts, [part][row]; null where x is not normed.
    const float* row_squares;
    // Of the residual epilogue: the stream that is added to, the next norm's weights, and the new rows' sums of squares.
    float* residual;
    const float* next_norm;
    float* next_row_squares;
    int rows, inputs, outputs, square_parts;
    float epsilon;
};

namespace {

namespace cg = cooperative_groups;

enum class Epilogue { bf16, f32, swiglu, residual_norm };

constexpr int threads = 256, k_tile = 64;  // k_tile: inputs of a stage
constexpr int max_split_k = 8;

__device__ uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

// 16 bytes, or zeros where `valid` is false.
__device__ void cp_async_16(uint32_t to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

__device__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int Groups>
__device__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}

// Describes a matrix in shared memory to wgmma: 128-byte rows in groups of eight, 1024 bytes each, swizzled by 128 bytes.
__device__ uint64_t smem_descriptor(uint32_t at) { return (at & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62; }

// acc[64 x N] += a[64 x 16] * b[N x 16]^T by a warpgroup, each warp sixteen rows of `a`: with r = lane / 4 and t = lane % 4 a lane
// has row r at columns 2t and 2t + 1, then row r + 8, of every eight columns.
#define ACC_4(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
__device__ void wgmma(float (&acc)[4], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, 1, 1, 1, 0, 0;"
                 : ACC_4(0)
                 : "l"(a), "l"(b));
}
__device__ void wgmma(float (&acc)[8], uint64_t a, uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, 1, 1, 1, 0, 0;"
                 : ACC_4(0), ACC_4(4)
                 : "l"(a), "l"(b));
}
__device__ void wgmma(float (&acc)[16], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, %16, %17, 1, 1, 1, 0, 0;"
        : ACC_4(0), ACC_4(4), ACC_4(8), ACC_4(12)
        : "l"(a), "l"(b));
}
__device__ void wgmma(float (&acc)[32], uint64_t a, uint64_t b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
        : ACC_4(0), ACC_4(4), ACC_4(8), ACC_4(12), ACC_4(16), ACC_4(20), ACC_4(24), ACC_4(28)
        : "l"(a), "l"(b));
}
#undef ACC_4

__device__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ void wgmma_commit_and_wait() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Makes this thread's copies into shared memory visible to the tensor cores.
__device__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// N: most rows. M: outputs of a block.
template <int N, int M, int stages, Epilogue epilogue>
__device__ void skinny_gemm(const GemmParams& params) {
    // Each warpgroup has 64 outputs; where a block has no more than that, each has half of the inputs.
    constexpr int k_groups = 128 / M, steps = k_tile / 16 / k_groups;
    constexpr int weight_bytes = M * k_tile * 2, stage_bytes = weight_bytes + N * k_tile * 2;
    constexpr int acc_stride = M + 4;
    extern __shared__ __align__(1024) unsigned char smem_raw[];
    __shared__ float row_squares[threads];
    __shared__ float inverse_rms[N];
    static_assert(k_groups * N * acc_stride * 4 <= stages * stage_bytes, "accumulators reuse the memory of the stages");

    const cg::cluster_group cluster = cg::this_cluster();
    const int split_k = cluster.num_blocks(), rank = cluster.block_rank();
    const int first_output = blockIdx.x / split_k * M;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m_group = k_groups == 1 ? warp / 4 : 0, k_group = k_groups == 1 ? 0 : warp / 4;
    const int k_tiles = (params.inputs + k_tile - 1) / k_tile;
    const int begin = k_tiles * rank / split_k, end = k_tiles * (rank + 1) / split_k;
    const uint32_t stage_start = shared_address(smem_raw);

    // Eight lanes read 128 bytes of a row; the swizzle of their 16-byte chunks avoids bank conflicts.
    const int row_chunk = threadIdx.x % 8;
    const uint32_t chunk_offset = threadIdx.x / 8 * 128 + ((row_chunk ^ threadIdx.x / 8 % 8) << 4);
    auto load_weights = [&](int k_index) {
        const int input = k_index * k_tile + row_chunk * 8;
        const uint32_t to = stage_start + (k_index - begin) % stages * stage_bytes + chunk_offset;
#pragma unroll
        for (int i = 0; i < M / 32; ++i) {
            const int output = min(first_output + static_cast<int>(threadIdx.x) / 8 + 32 * i, params.outputs - 1);
            const bf16* from = params.weight + static_cast<size_t>(output) * params.inputs + min(input, params.inputs - 8);
            cp_async_16(to + i * 32 * 128, from, input < params.inputs);
        }
    };
    auto load_rows = [&](int k_index) {
        const int input = k_index * k_tile + row_chunk * 8;
        const uint32_t to = stage_start + (k_index - begin) % stages * stage_bytes + weight_bytes + chunk_offset;
#pragma unroll
        for (int i = 0; i < (N + 31) / 32; ++i) {
            const int row = static_cast<int>(threadIdx.x) / 8 + 32 * i;
            if (N < 32 && row >= N) break;
            cp_async_16(to + i * 32 * 128,
                        params.x + static_cast<size_t>(min(row, params.rows - 1)) * params.inputs + min(input, params.inputs - 8),
                        input < params.inputs && row < params.rows);
        }
    };
#pragma unroll
    for (int i = 0; i < stages - 1; ++i)
        if (begin + i < end) load_weights(begin + i);
    pdl_wait();
#pragma unroll
    for (int i = 0; i < stages - 1; ++i) {
        if (begin + i < end) load_rows(begin + i);
        cp_async_commit();
    }
    if (params.row_squares) {
        float sum = 0.0f;
        const int row = min(static_cast<int>(threadIdx.x) % N, params.rows - 1);
        // Unrolled far, to have many loads in flight.
#pragma unroll 24
        for (int part = threadIdx.x / N; part < params.square_parts; part += threads / N)
            sum += params.row_squares[part * params.rows + row];
        row_squares[threadIdx.x] = sum;
    }

    float acc[N / 2] = {};
    for (int k_index = begin; k_index < end; ++k_index) {
        cp_async_wait<stages - 2>();
        fence_proxy_async();
        __syncthreads();
        if (k_index + stages - 1 < end) {
            load_weights(k_index + stages - 1);
            load_rows(k_index + stages - 1);
        }
        cp_async_commit();
        const uint32_t stage = stage_start + (k_index - begin) % stages * stage_bytes;
        const uint64_t a = smem_descriptor(stage + m_group * 64 * 128), b = smem_descriptor(stage + weight_bytes);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < steps; ++s) wgmma(acc, a + (k_group * steps + s) * 2, b + (k_group * steps + s) * 2);
        wgmma_commit_and_wait();
    }
    // Not earlier: blocks of the next kernel that start sooner spread less evenly over the device, which costs more than it gains.
    pdl_launch_dependents();
    cp_async_wait<0>();
    __syncthreads();

    float* smem_acc = reinterpret_cast<float*>(smem_raw);  // [k_group][row][output]
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
        const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
        const int output = m_group * 64 + warp % 4 * 16 + lane / 4 + i / 2 % 2 * 8;
        smem_acc[(k_group * N + row) * acc_stride + output] = acc[i];
    }
    if (params.row_squares && threadIdx.x < N) {
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < threads / N; ++part) sum += row_squares[part * N + threadIdx.x];
        inverse_rms[threadIdx.x] = rsqrtf(sum / params.inputs + params.epsilon);
    }
    __syncthreads();
    const int slice = M / split_k;
    // The residual is loaded before the cluster synchronises, so that both latencies overlap.
    float4 residual_first, next_norm_first;
    if constexpr (epilogue == Epilogue::residual_norm) {
        const int row = min(static_cast<int>(threadIdx.x) / (slice / 4), params.rows - 1);
        const int output = min(first_output + rank * slice + static_cast<int>(threadIdx.x) % (slice / 4) * 4, params.outputs - 4);
        residual_first = *reinterpret_cast<const float4*>(params.residual + static_cast<size_t>(row) * params.outputs + output);
        next_norm_first = *reinterpret_cast<const float4*>(params.next_norm + output);
    }
    auto add_float4 = [](float4& to, const float4& more) {
        to = make_float4(to.x + more.x, to.y + more.y, to.z + more.z, to.w + more.w);
    };
    auto block_sum_of = [&](int row, int output) {
        float4 sum = *reinterpret_cast<const float4*>(smem_acc + row * acc_stride + output);
#pragma unroll
        for (int k = 1; k < k_groups; ++k)
            add_float4(sum, *reinterpret_cast<const float4*>(smem_acc + (k * N + row) * acc_stride + output));
        return sum;
    };
    if (split_k > 1) {
        if constexpr (k_groups > 1)
            for (int i = threadIdx.x; i < N * M / 4; i += threads) {
                const int row = i / (M / 4), output = i % (M / 4) * 4;
                const float4 sum = block_sum_of(row, output);
                *reinterpret_cast<float4*>(smem_acc + row * acc_stride + output) = sum;
            }
        cluster.sync();
    }
    // Four outputs of a row, reduced over the cluster.
    auto cluster_sum = [&](int row, int output) {
        float4 sum;
        if (split_k == 1) {
            sum = block_sum_of(row, output);
        } else {
            float4 parts[max_split_k];
#pragma unroll
            for (int other = 0; other < max_split_k; ++other)
                if (other < split_k) {
                    const float* from = cluster.map_shared_rank(smem_acc, other) + row * acc_stride + output;
                    parts[other] = *reinterpret_cast<const float4*>(from);
                }
            sum = parts[0];
#pragma unroll
            for (int other = 1; other < max_split_k; ++other)
                if (other < split_k) add_float4(sum, parts[other]);
        }
        if (params.row_squares) {
            const float by = inverse_rms[row];
            sum = make_float4(sum.x * by, sum.y * by, sum.z * by, sum.w * by);
        }
        return sum;
    };
    if constexpr (epilogue == Epilogue::swiglu) {
        // Columns alternate: eight of the gate projection, eight of the up projection.
        const int quads = slice / 8;
        for (int i = threadIdx.x; i < params.rows * quads; i += threads) {
            const int row = i / quads, quad = i % quads;
            const int output = rank * slice + quad / 2 * 16 + quad % 2 * 4;
            if (first_output + output >= params.outputs) continue;
            const float4 gate = cluster_sum(row, output), up = cluster_sum(row, output + 8);
            auto swiglu = [](float gate, float up) { return gate / (1.0f + __expf(-gate)) * up; };
            const int to = (first_output + rank * slice) / 2 + quad * 4;
            *reinterpret_cast<uint2*>(static_cast<bf16*>(params.out) + static_cast<size_t>(row) * (params.outputs / 2) + to) =
                make_uint2(to_bf16(swiglu(gate.x, up.x), swiglu(gate.y, up.y)),
                           to_bf16(swiglu(gate.z, up.z), swiglu(gate.w, up.w)));
        }
    } else {
        const int quads = slice / 4;
        // All lanes take part, since they reduce squares together.
        for (int i = threadIdx.x; i < N * quads; i += threads) {
            const int row = i / quads, inside = rank * slice + i % quads * 4, output = first_output + inside;
            const bool valid = row < params.rows && output < params.outputs;
            const size_t to = static_cast<size_t>(row) * params.outputs + output;
            float4 sum = valid ? cluster_sum(row, inside) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if constexpr (epilogue == Epilogue::f32) {
                if (valid) *reinterpret_cast<float4*>(static_cast<float*>(params.out) + to) = sum;
            } else {
                if constexpr (epilogue == Epilogue::residual_norm) {
                    float squares = 0.0f;
                    float4 by = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (valid) {
                        const bool first = i == static_cast<int>(threadIdx.x);
                        add_float4(sum, first ? residual_first : *reinterpret_cast<const float4*>(params.residual + to));
                        *reinterpret_cast<float4*>(params.residual + to) = sum;
                        by = first ? next_norm_first : *reinterpret_cast<const float4*>(params.next_norm + output);
                        squares = sum.x * sum.x + sum.y * sum.y + sum.z * sum.z + sum.w * sum.w;
                    }
                    for (int step = quads / 2; step; step >>= 1) squares += __shfl_xor_sync(~0u, squares, step);
                    if (i % quads == 0 && row < params.rows) params.next_row_squares[blockIdx.x * params.rows + row] = squares;
                    sum = make_float4(sum.x * by.x, sum.y * by.y, sum.z * by.z, sum.w * by.w);
                }
                if (valid)
                    *reinterpret_cast<uint2*>(static_cast<bf16*>(params.out) + to) =
                        make_uint2(to_bf16(sum.x, sum.y), to_bf16(sum.z, sum.w));
            }
        }
    }
    if (split_k > 1) cluster.sync();  // no block exits while others read its shared memory
}

}  // namespace

// 128 outputs a block, four stages.
#define SKINNY_GEMM(EPILOGUE, N)                                                                                     \
    extern "C" __global__ __launch_bounds__(threads, 3) void skinny_gemm_##EPILOGUE##_##N(const GemmParams params) { \
        skinny_gemm<N, 128, 4, Epilogue::EPILOGUE>(params);                                                          \
    }
#define SKINNY_GEMMS(EPILOGUE) \
    SKINNY_GEMM(EPILOGUE, 8) SKINNY_GEMM(EPILOGUE, 16) SKINNY_GEMM(EPILOGUE, 32) SKINNY_GEMM(EPILOGUE, 64)
SKINNY_GEMMS(bf16)
SKINNY_GEMMS(f32)
SKINNY_GEMMS(swiglu)
SKINNY_GEMMS(residual_norm)
