// scale[r] = max |x[r, :]|, scaled[r, :] = x[r, :] / scale[r]: one block a row, the row held in registers between its
// single read and its single write.
#include <cuda_runtime.h>
#include <cstdint>

constexpr int threads = 256, warps = threads / 32;

// Every thread gets the maximum over the block.
__device__ __forceinline__ float block_max(float v) {
    __shared__ float part[warps];
    for (int d = 16; d; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = part[threadIdx.x % warps];
    for (int d = warps / 2; d; d >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

// N float4 a thread: rows of up to 4 * threads * N elements, a multiple of 4.
template <int N>
__global__ void __launch_bounds__(threads) row_scale_registers(float* scaled, float* scale, const float* x, int cols4) {
    const float4* in = reinterpret_cast<const float4*>(x) + int64_t{blockIdx.x} * cols4;
    float4* to = reinterpret_cast<float4*>(scaled) + int64_t{blockIdx.x} * cols4;
    float4 v[N];
    float top = 0.0f;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const int i = threadIdx.x + k * threads;
        v[k] = i < cols4 ? in[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        top = fmaxf(top, fmaxf(fmaxf(fabsf(v[k].x), fabsf(v[k].y)), fmaxf(fabsf(v[k].z), fabsf(v[k].w))));
    }
    top = block_max(top);
    if (threadIdx.x == 0) scale[blockIdx.x] = top;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const int i = threadIdx.x + k * threads;
        if (i < cols4) to[i] = make_float4(v[k].x / top, v[k].y / top, v[k].z / top, v[k].w / top);
    }
}

// Any row length; the second read comes from the cache.
__global__ void __launch_bounds__(threads) row_scale_any(float* scaled, float* scale, const float* x, int64_t cols) {
    const float* in = x + blockIdx.x * cols;
    float* to = scaled + blockIdx.x * cols;
    float top = 0.0f;
    for (int64_t i = threadIdx.x; i < cols; i += threads) top = fmaxf(top, fabsf(in[i]));
    top = block_max(top);
    if (threadIdx.x == 0) scale[blockIdx.x] = top;
    for (int64_t i = threadIdx.x; i < cols; i += threads) to[i] = in[i] / top;
}

extern "C" int row_scale(float* scaled, float* scale, const float* x, int64_t rows, int64_t cols, void* stream) {
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (rows == 0 || cols == 0) return 0;
    const unsigned grid = static_cast<unsigned>(rows);
    const bool vector = cols % 4 == 0 && (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(scaled)) % 16 == 0;
    const int64_t need = (cols / 4 + threads - 1) / threads;  // float4 a thread
    const int cols4 = static_cast<int>(cols / 4);
    if (vector && need <= 1) row_scale_registers<1><<<grid, threads, 0, s>>>(scaled, scale, x, cols4);
    else if (vector && need <= 2) row_scale_registers<2><<<grid, threads, 0, s>>>(scaled, scale, x, cols4);
    else if (vector && need <= 4) row_scale_registers<4><<<grid, threads, 0, s>>>(scaled, scale, x, cols4);
    else if (vector && need <= 8) row_scale_registers<8><<<grid, threads, 0, s>>>(scaled, scale, x, cols4);
    else row_scale_any<<<grid, threads, 0, s>>>(scaled, scale, x, cols);
    return cudaGetLastError();
}
