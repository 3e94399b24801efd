// Backward of the embedding: gradients of rows are added to those of their tokens, without atomics and in a fixed order.
#include "primitives.cuh"
#include "float4.cuh"

namespace {
constexpr int warps = 8, threads = 32 * warps;
}

// Where one token occurs in a batch: at rows `order[first]`, `order[first + 1]` and so on.
struct TokenOccurrences {
    uint32_t token, first, count;
};

struct EmbeddingBwdParams {
    float* d_table;  // accumulated
    const float* d_rows;
    const uint32_t* order;
    const TokenOccurrences* occurrences;
    int width;
};

// Grid: distinct tokens x width / 128.
extern "C" __global__ __launch_bounds__(threads) void embedding_bwd(const EmbeddingBwdParams params) {
    __shared__ float4 scratch[warps][32];
    pdl_wait();
    const TokenOccurrences occurrences = params.occurrences[blockIdx.x];
    if (occurrences.count == 0) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.y * 128 + 4 * lane;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (column < params.width)
        for (uint32_t i = warp; i < occurrences.count; i += warps) {
            const size_t row = params.order[occurrences.first + i];
            total = total + vec4(params.d_rows + row * params.width + column);
        }
    scratch[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && column < params.width) {
        for (int other = 1; other < warps; ++other) total = total + scratch[other][lane];
        float4& to = vec4(params.d_table + static_cast<size_t>(occurrences.token) * params.width + column);
        to = to + total;
    }
}
