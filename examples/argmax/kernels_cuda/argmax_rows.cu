// Index of the largest element of each row; the first one where several are equal, and a NaN counts as largest.
//
// Value and index travel together as one 64-bit key whose order is the wanted one, so the whole search, inside the
// thread, the warp and the block, is a plain maximum.
#include <cuda_runtime.h>
#include <cstdint>

constexpr int threads = 256, warps = threads / 32;
using Key = unsigned long long;

__device__ __forceinline__ Key make_key(float v, uint32_t index) {
    v += 0.0f;  // -0 becomes +0: they are equal, so the first one counts
    const uint32_t bits = __float_as_uint(v);
    // Floats in the order of unsigned integers: negative ones complemented, the others above them, NaN on top.
    const uint32_t ordered = isnan(v) ? 0xffffffffu : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<Key>(ordered) << 32 | ~index;  // a smaller index makes a larger key
}

__device__ __forceinline__ Key larger(Key a, Key b) { return a > b ? a : b; }

template <bool vector>
__global__ void __launch_bounds__(threads) argmax_kernel(int64_t* out, const float* x, uint32_t cols) {
    __shared__ Key part[warps];
    const float* in = x + int64_t{blockIdx.x} * cols;

    Key best = 0;
    if (vector) {
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < cols / 4; i += threads) {
            const float4 v = reinterpret_cast<const float4*>(in)[i];
            best = larger(best, larger(larger(make_key(v.x, 4 * i), make_key(v.y, 4 * i + 1)),
                                       larger(make_key(v.z, 4 * i + 2), make_key(v.w, 4 * i + 3))));
        }
    } else {
        for (uint32_t i = threadIdx.x; i < cols; i += threads) best = larger(best, make_key(in[i], i));
    }

    for (int d = 16; d; d >>= 1) best = larger(best, __shfl_xor_sync(0xffffffffu, best, d));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < warps; ++w) best = larger(best, part[w]);
        out[blockIdx.x] = static_cast<int64_t>(~static_cast<uint32_t>(best));
    }
}

extern "C" int argmax_rows(int64_t* out, const float* x, int64_t rows, int64_t cols, void* stream) {
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (rows == 0) return 0;
    if (cols <= 0 || cols > 0xffffffffll) return cudaErrorInvalidValue;
    const unsigned grid = static_cast<unsigned>(rows);
    const bool vector = cols % 4 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
    if (vector) argmax_kernel<true><<<grid, threads, 0, s>>>(out, x, static_cast<uint32_t>(cols));
    else argmax_kernel<false><<<grid, threads, 0, s>>>(out, x, static_cast<uint32_t>(cols));
    return cudaGetLastError();
}
