// RMS norm of training, forward with the residual addition and backward. A warp has a row.
//
// The residual stream and its gradient are float32, inputs of matrix products are bfloat16. Normed rows are not stored: the
// backward kernel recomputes them where their gradient was, for the weight gradient of the product that read them.
#include "primitives.cuh"
#include "float4.cuh"

namespace {
constexpr int warps = 8, threads = 32 * warps;
// Vectors of four that a lane keeps of a row: rows of up to 1024 columns are read once, the rest of wider ones twice.
constexpr int in_registers = 8;
}  // namespace

struct RmsNormFwdParams {
    bf16* out;
    float* added;  // may be null
    const float* residual;
    const bf16* delta;  // may be null
    const float* weight;
    int rows, width;
    float epsilon;
};

// added = residual + delta; out = added / rms(added) * weight. Grid: rows / 8.
extern "C" __global__ __launch_bounds__(threads, 4) void rms_norm_residual_fwd(const RmsNormFwdParams params) {
    pdl_wait();
    const int row = blockIdx.x * warps + threadIdx.x / 32, lane = threadIdx.x % 32, width = params.width;
    if (row >= params.rows) return;
    const size_t start = static_cast<size_t>(row) * width;
    float squares = 0.0f;
    const auto load = [&](int i) {
        const float4 x = vec4(params.residual + start + i);
        return params.delta ? x + to_float(vec4(params.delta + start + i)) : x;
    };
    const auto load_and_add = [&](int i) {
        const float4 x = load(i);
        if (params.added) vec4(params.added + start + i) = x;
        squares += sum(x * x);
        return x;
    };
    float4 mine[in_registers];
#pragma unroll
    for (int k = 0; k < in_registers; ++k)
        if (const int i = 4 * lane + 128 * k; i < width) mine[k] = load_and_add(i);
    for (int i = 4 * lane + 128 * in_registers; i < width; i += 128) load_and_add(i);
    const float inverse_rms = rsqrtf(warp_sum(squares) / width + params.epsilon);
    const auto store = [&](int i, const float4& x) {
        vec4(params.out + start + i) = to_bf16(x * inverse_rms * vec4(params.weight + i));
    };
#pragma unroll
    for (int k = 0; k < in_registers; ++k)
        if (const int i = 4 * lane + 128 * k; i < width) store(i, mine[k]);
    for (int i = 4 * lane + 128 * in_registers; i < width; i += 128) store(i, load(i));
}

struct RmsNormBwdParams {
    bf16* normed;            // gradient of the normed rows before, the normed rows after
    float* d_residual;       // accumulated
    bf16* d_residual_bf16;   // the same in bfloat16
    float* weight_partials;  // partial sums of the weight's gradient: [block][width]
    const float* residual;
    const float* weight;
    int rows, width;
    float epsilon;
    int overwrite;  // d_residual holds nothing yet
};

// Grid-strided over rows. A warp accumulates the weight's gradient in `width` floats of shared memory of its own.
extern "C" __global__ __launch_bounds__(threads, 2) void rms_norm_residual_bwd(const RmsNormBwdParams params) {
    extern __shared__ __align__(16) unsigned char rms_norm_smem[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = params.width;
    float* d_weight = reinterpret_cast<float*>(rms_norm_smem) + warp * width;
    for (int i = 4 * lane; i < width; i += 128) vec4(d_weight + i) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const auto d_above = [&](size_t index) {
        return params.overwrite ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : vec4(params.d_residual + index);
    };
    pdl_wait();
    for (int row = blockIdx.x * warps + warp; row < params.rows; row += gridDim.x * warps) {
        const size_t start = static_cast<size_t>(row) * width;
        float squares = 0.0f, dot = 0.0f;
        const auto reduce = [&](int i, const float4& x, const Bf16x4& d_normed) {
            squares += sum(x * x);
            dot += sum(x * to_float(d_normed) * vec4(params.weight + i));
        };
        // All loads of a row are issued together.
        float4 mine[in_registers], above[in_registers];
        Bf16x4 d_normed[in_registers];
#pragma unroll
        for (int k = 0; k < in_registers; ++k)
            if (const int i = 4 * lane + 128 * k; i < width) {
                mine[k] = vec4(params.residual + start + i);
                d_normed[k] = vec4(params.normed + start + i);
                above[k] = d_above(start + i);
            }
#pragma unroll
        for (int k = 0; k < in_registers; ++k)
            if (const int i = 4 * lane + 128 * k; i < width) reduce(i, mine[k], d_normed[k]);
        for (int i = 4 * lane + 128 * in_registers; i < width; i += 128)
            reduce(i, vec4(params.residual + start + i), vec4(params.normed + start + i));
        squares = warp_sum(squares);
        dot = warp_sum(dot);
        const float inverse_rms = rsqrtf(squares / width + params.epsilon);
        const float through_rms = -dot * inverse_rms * inverse_rms * inverse_rms / width;
        const auto store = [&](int i, const float4& x, const Bf16x4& d_normed_bf16, const float4& above) {
            const float4 weight = vec4(params.weight + i), d_normed = to_float(d_normed_bf16), unit = x * inverse_rms;
            vec4(d_weight + i) = vec4(d_weight + i) + d_normed * unit;
            vec4(params.normed + start + i) = to_bf16(unit * weight);
            const float4 total = d_normed * weight * inverse_rms + x * through_rms + above;
            vec4(params.d_residual + start + i) = total;
            vec4(params.d_residual_bf16 + start + i) = to_bf16(total);
        };
#pragma unroll
        for (int k = 0; k < in_registers; ++k)
            if (const int i = 4 * lane + 128 * k; i < width) store(i, mine[k], d_normed[k], above[k]);
        for (int i = 4 * lane + 128 * in_registers; i < width; i += 128)
            store(i, vec4(params.residual + start + i), vec4(params.normed + start + i), d_above(start + i));
    }
    __syncthreads();
    d_weight = reinterpret_cast<float*>(rms_norm_smem);
    for (int i = 4 * threadIdx.x; i < width; i += 4 * threads) {
        float4 total = vec4(d_weight + i);
        for (int other = 1; other < warps; ++other) total = total + vec4(d_weight + other * width + i);
        vec4(params.weight_partials + static_cast<size_t>(blockIdx.x) * width + i) = total;
    }
}
