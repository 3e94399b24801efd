// Rows by index: those of a batch that enter the loss are gathered before the head, and their gradients scattered after it.
#include "primitives.cuh"

namespace {
constexpr int warps = 8, threads = 32 * warps;
}

struct ZeroFillParams {
    Bf16x8* at;
    size_t vectors;
};

// A kernel and not the driver's memset: programmatic dependent launch needs a kernel as predecessor.
extern "C" __global__ __launch_bounds__(threads) void zero_fill(const ZeroFillParams params) {
    pdl_wait();
    const size_t i = static_cast<size_t>(blockIdx.x) * threads + threadIdx.x;
    if (i < params.vectors) params.at[i] = {};
}

struct RowIndexParams {
    bf16* out;
    const bf16* from;
    const uint32_t* indices;  // an index beyond `rows` is padding
    int rows, count, width;
};

// out[i] = from[indices[i]], zeros for padding. Grid: count / 8.
extern "C" __global__ __launch_bounds__(threads) void gather_rows(const RowIndexParams params) {
    pdl_wait();
    const int i = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= params.count) return;
    const uint32_t row = params.indices[i];
    const bool valid = row < static_cast<uint32_t>(params.rows);
    for (int c = 8 * lane; c < params.width; c += 256) {
        Bf16x8 values = {};
        if (valid) values = *reinterpret_cast<const Bf16x8*>(params.from + static_cast<size_t>(row) * params.width + c);
        *reinterpret_cast<Bf16x8*>(params.out + static_cast<size_t>(i) * params.width + c) = values;
    }
}

// out[indices[i]] = from[i]; no index occurs twice. Grid: count / 8.
extern "C" __global__ __launch_bounds__(threads) void scatter_rows(const RowIndexParams params) {
    pdl_wait();
    const int i = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (i >= params.count) return;
    const uint32_t row = params.indices[i];
    if (row >= static_cast<uint32_t>(params.rows)) return;
    for (int c = 8 * lane; c < params.width; c += 256)
        *reinterpret_cast<Bf16x8*>(params.out + static_cast<size_t>(row) * params.width + c) =
            *reinterpret_cast<const Bf16x8*>(params.from + static_cast<size_t>(i) * params.width + c);
}
