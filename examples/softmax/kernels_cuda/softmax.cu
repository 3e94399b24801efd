// Row softmax: one block a row, the row held in registers between its single read and its single write.
#include <cuda_runtime.h>
#include <cstdint>

constexpr int threads = 256, warps = threads / 32;

__device__ __forceinline__ float warp_max(float v) {
    for (int d = 16; d; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}
__device__ __forceinline__ float warp_sum(float v) {
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}
// Every thread gets the result: each warp leaves its part in shared memory and all of them combine the parts.
__device__ __forceinline__ float block_max(float v) {
    __shared__ float part[warps];
    v = warp_max(v);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_max(part[threadIdx.x % warps]);
}
__device__ __forceinline__ float block_sum(float v) {
    __shared__ float part[warps];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[threadIdx.x % warps];
    for (int d = warps / 2; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    return v;
}

// N float4 a thread: rows of up to 4 * threads * N elements, a multiple of 4.
template <int N>
__global__ void __launch_bounds__(threads) softmax_registers(float* out, const float* x, int cols4) {
    const float4* in = reinterpret_cast<const float4*>(x) + int64_t{blockIdx.x} * cols4;
    float4* to = reinterpret_cast<float4*>(out) + int64_t{blockIdx.x} * cols4;
    float4 v[N];
    float top = -INFINITY;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const int i = threadIdx.x + k * threads;
        v[k] = i < cols4 ? in[i] : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
        top = fmaxf(top, fmaxf(fmaxf(v[k].x, v[k].y), fmaxf(v[k].z, v[k].w)));
    }
    top = block_max(top);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        v[k] = make_float4(expf(v[k].x - top), expf(v[k].y - top), expf(v[k].z - top), expf(v[k].w - top));
        sum += (v[k].x + v[k].y) + (v[k].z + v[k].w);
    }
    const float inverse = 1.0f / block_sum(sum);
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const int i = threadIdx.x + k * threads;
        if (i < cols4) to[i] = make_float4(v[k].x * inverse, v[k].y * inverse, v[k].z * inverse, v[k].w * inverse);
    }
}

// Any row length: an online softmax (maximum and rescaled sum in one read), then a second read to write the result.
__global__ void __launch_bounds__(threads) softmax_online(float* out, const float* x, int64_t cols) {
    const float* in = x + blockIdx.x * cols;
    float* to = out + blockIdx.x * cols;
    float top = -INFINITY, sum = 0.0f;
    for (int64_t i = threadIdx.x; i < cols; i += threads) {
        const float v = in[i];
        if (v > top) {
            sum *= expf(top - v);
            top = v;
        }
        sum += v == -INFINITY ? 0.0f : expf(v - top);
    }
    const float row_top = block_max(top);
    const float inverse = 1.0f / block_sum(top == -INFINITY ? sum : sum * expf(top - row_top));
    for (int64_t i = threadIdx.x; i < cols; i += threads) to[i] = expf(in[i] - row_top) * inverse;
}

extern "C" int softmax(float* out, const float* x, int64_t rows, int64_t cols, void* stream) {
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (rows == 0 || cols == 0) return 0;
    const unsigned grid = static_cast<unsigned>(rows);
    const bool vector = cols % 4 == 0 && (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(out)) % 16 == 0;
    const int64_t need = (cols / 4 + threads - 1) / threads;  // float4 a thread
    const int cols4 = static_cast<int>(cols / 4);
    if (vector && need <= 1) softmax_registers<1><<<grid, threads, 0, s>>>(out, x, cols4);
    else if (vector && need <= 2) softmax_registers<2><<<grid, threads, 0, s>>>(out, x, cols4);
    else if (vector && need <= 4) softmax_registers<4><<<grid, threads, 0, s>>>(out, x, cols4);
    else if (vector && need <= 8) softmax_registers<8><<<grid, threads, 0, s>>>(out, x, cols4);
    else softmax_online<<<grid, threads, 0, s>>>(out, x, cols);
    return cudaGetLastError();
}
