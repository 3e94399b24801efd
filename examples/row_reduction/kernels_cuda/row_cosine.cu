// Cosine similarity of matching rows: the three sums in one read of both inputs, one block a row.
#include <cuda_runtime.h>
#include <cstdint>

constexpr int threads = 256, warps = threads / 32;

struct Sums {
    float dot, xx, yy;
};

__device__ __forceinline__ void add(Sums& s, float a, float b) {
    s.dot = fmaf(a, b, s.dot);
    s.xx = fmaf(a, a, s.xx);
    s.yy = fmaf(b, b, s.yy);
}

template <bool vector>
__global__ void __launch_bounds__(threads)
row_cosine_kernel(float* out, const float* x, const float* y, int64_t cols, float eps) {
    __shared__ Sums part[warps];
    const float* a = x + blockIdx.x * cols;
    const float* b = y + blockIdx.x * cols;

    Sums s{0.0f, 0.0f, 0.0f};
    if (vector) {
#pragma unroll 4
        for (int64_t i = threadIdx.x; i < cols / 4; i += threads) {
            const float4 p = reinterpret_cast<const float4*>(a)[i], q = reinterpret_cast<const float4*>(b)[i];
            add(s, p.x, q.x);
            add(s, p.y, q.y);
            add(s, p.z, q.z);
            add(s, p.w, q.w);
        }
    } else {
        for (int64_t i = threadIdx.x; i < cols; i += threads) add(s, a[i], b[i]);
    }

    // A tree over the lanes, then over the warps: short chains of additions, hence small rounding errors.
    for (int d = 16; d; d >>= 1) {
        s.dot += __shfl_xor_sync(0xffffffffu, s.dot, d);
        s.xx += __shfl_xor_sync(0xffffffffu, s.xx, d);
        s.yy += __shfl_xor_sync(0xffffffffu, s.yy, d);
    }
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x < warps) {
        s = part[threadIdx.x];
        for (int d = warps / 2; d; d >>= 1) {
            s.dot += __shfl_xor_sync((1u << warps) - 1, s.dot, d);
            s.xx += __shfl_xor_sync((1u << warps) - 1, s.xx, d);
            s.yy += __shfl_xor_sync((1u << warps) - 1, s.yy, d);
        }
        if (threadIdx.x == 0) out[blockIdx.x] = s.dot / (fmaxf(sqrtf(s.xx), eps) * fmaxf(sqrtf(s.yy), eps));
    }
}

extern "C" int row_cosine(float* out, const float* x, const float* y, int64_t rows, int64_t cols, double eps,
                          void* stream) {
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (rows == 0) return 0;
    const bool vector = cols % 4 == 0 && (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y)) % 16 == 0;
    const unsigned grid = static_cast<unsigned>(rows);
    if (vector) row_cosine_kernel<true><<<grid, threads, 0, s>>>(out, x, y, cols, static_cast<float>(eps));
    else row_cosine_kernel<false><<<grid, threads, 0, s>>>(out, x, y, cols, static_cast<float>(eps));
    return cudaGetLastError();
}
