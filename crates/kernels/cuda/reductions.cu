// Sums over rows, in two deterministic steps: each block writes a partial sum, then the partial sums are added up in order.
#include "primitives.cuh"

namespace {
constexpr int warps = 8, threads = 32 * warps;
}

struct ColumnSumParams {
    float* partials;  // [block][width]
    const bf16* x;
    int rows, width;
};

// Partial sums of columns, each over every so many rows. Grid: width / 64 x partials.
extern "C" __global__ __launch_bounds__(threads) void column_sum_partials(const ColumnSumParams params) {
    __shared__ float2 scratch[warps][32];
    pdl_wait();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * 64 + 2 * lane;
    float2 total = make_float2(0.0f, 0.0f);
    if (column < params.width)
        for (int row = blockIdx.y * warps + warp; row < params.rows; row += gridDim.y * warps) {
            const bf16* at = params.x + static_cast<size_t>(row) * params.width + column;
            const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
            total = make_float2(total.x + pair.x, total.y + pair.y);
        }
    scratch[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && column < params.width) {
        for (int other = 1; other < warps; ++other)
            total = make_float2(total.x + scratch[other][lane].x, total.y + scratch[other][lane].y);
        *reinterpret_cast<float2*>(params.partials + static_cast<size_t>(blockIdx.y) * params.width + column) = total;
    }
}

struct SumPartialsParams {
    float* sums;            // [set][width]
    const float* partials;  // [set][partial][width]
    int count, width;
    int overwrite;  // sums hold nothing yet
};

// Grid: width / 32 x sets.
extern "C" __global__ __launch_bounds__(threads) void sum_partials(const SumPartialsParams params) {
    __shared__ float scratch[warps][32];
    pdl_wait();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = blockIdx.x * 32 + lane;
    const float* partials = params.partials + static_cast<size_t>(blockIdx.y) * params.count * params.width;
    float total = 0.0f;
    if (column < params.width)
        for (int i = warp; i < params.count; i += warps) total += partials[static_cast<size_t>(i) * params.width + column];
    scratch[warp][lane] = total;
    __syncthreads();
    if (warp == 0 && column < params.width) {
        for (int other = 1; other < warps; ++other) total += scratch[other][lane];
        float& to = params.sums[static_cast<size_t>(blockIdx.y) * params.width + column];
        to = params.overwrite ? total : to + total;
    }
}
