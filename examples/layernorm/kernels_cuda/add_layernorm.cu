// out = layer_norm(x + residual) * weight + bias: one block a row, the sum held in registers, so that memory sees
// two reads and one write. Mean and variance are two reductions over registers: nothing cancels.
#include <cuda_runtime.h>
#include <cstdint>

constexpr int threads = 256, warps = threads / 32;

// Every thread gets the sum over the block. `part` must be another array in each call of a kernel.
__device__ __forceinline__ float block_sum(float v, float* part) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[threadIdx.x % warps];
    for (int d = warps / 2; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

__device__ __forceinline__ float normalise(float v, float mean, float scale, float weight, float bias) {
    return fmaf((v - mean) * scale, weight, bias);
}

// N float4 a thread: up to 4 * threads * N features, a multiple of 4.
template <int N>
__global__ void __launch_bounds__(threads)
add_layernorm_registers(float* out, const float* x, const float* residual, const float* weight, const float* bias,
                        int features4, float eps) {
    __shared__ float part[2][warps];
    const int64_t row = int64_t{blockIdx.x} * features4;
    const float4* a = reinterpret_cast<const float4*>(x) + row;
    const float4* b = reinterpret_cast<const float4*>(residual) + row;
    float4* to = reinterpret_cast<float4*>(out) + row;
    const float inverse_count = 0.25f / features4;

    float4 v[N];
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const int i = threadIdx.x + k * threads;
        if (i < features4) {
            const float4 p = a[i], q = b[i];
            v[k] = make_float4(p.x + q.x, p.y + q.y, p.z + q.z, p.w + q.w);
            sum += (v[k].x + v[k].y) + (v[k].z + v[k].w);
        }
    }
    const float mean = block_sum(sum, part[0]) * inverse_count;

    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k)
        if (static_cast<int>(threadIdx.x) + k * threads < features4) {
            const float p = v[k].x - mean, q = v[k].y - mean, r = v[k].z - mean, t = v[k].w - mean;
            squares += (p * p + q * q) + (r * r + t * t);
        }
    const float scale = 1.0f / sqrtf(block_sum(squares, part[1]) * inverse_count + eps);

#pragma unroll
    for (int k = 0; k < N; ++k) {
        const int i = threadIdx.x + k * threads;
        if (i < features4) {
            const float4 w = reinterpret_cast<const float4*>(weight)[i], c = reinterpret_cast<const float4*>(bias)[i];
            to[i] = make_float4(normalise(v[k].x, mean, scale, w.x, c.x), normalise(v[k].y, mean, scale, w.y, c.y),
                                normalise(v[k].z, mean, scale, w.z, c.z), normalise(v[k].w, mean, scale, w.w, c.w));
        }
    }
}

// Any number of features: the inputs are read again, from the cache, instead of being kept.
__global__ void __launch_bounds__(threads)
add_layernorm_any(float* out, const float* x, const float* residual, const float* weight, const float* bias,
                  int64_t features, float eps) {
    __shared__ float part[2][warps];
    const float* a = x + blockIdx.x * features;
    const float* b = residual + blockIdx.x * features;
    float* to = out + blockIdx.x * features;
    float sum = 0.0f, squares = 0.0f;
    for (int64_t i = threadIdx.x; i < features; i += threads) sum += a[i] + b[i];
    const float mean = block_sum(sum, part[0]) / features;
    for (int64_t i = threadIdx.x; i < features; i += threads) {
        const float d = a[i] + b[i] - mean;
        squares += d * d;
    }
    const float scale = 1.0f / sqrtf(block_sum(squares, part[1]) / features + eps);
    for (int64_t i = threadIdx.x; i < features; i += threads)
        to[i] = normalise(a[i] + b[i], mean, scale, weight[i], bias[i]);
}

static bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

extern "C" int add_layernorm(float* out, const float* x, const float* residual, const float* weight, const float* bias,
                             int64_t rows, int64_t features, double eps, void* stream) {
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (rows == 0 || features == 0) return 0;
    const unsigned grid = static_cast<unsigned>(rows);
    const float e = static_cast<float>(eps);
    const bool vector = features % 4 == 0 && aligned(out) && aligned(x) && aligned(residual) && aligned(weight) &&
                        aligned(bias);
    const int64_t need = (features / 4 + threads - 1) / threads;  // float4 a thread
    const int f4 = static_cast<int>(features / 4);
    if (vector && need <= 1) add_layernorm_registers<1><<<grid, threads, 0, s>>>(out, x, residual, weight, bias, f4, e);
    else if (vector && need <= 2) add_layernorm_registers<2><<<grid, threads, 0, s>>>(out, x, residual, weight, bias, f4, e);
    else if (vector && need <= 4) add_layernorm_registers<4><<<grid, threads, 0, s>>>(out, x, residual, weight, bias, f4, e);
    else if (vector && need <= 8) add_layernorm_registers<8><<<grid, threads, 0, s>>>(out, x, residual, weight, bias, f4, e);
    else add_layernorm_any<<<grid, threads, 0, s>>>(out, x, residual, weight, bias, features, e);
    return cudaGetLastError();
}
