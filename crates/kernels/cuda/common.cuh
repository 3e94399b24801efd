// What several kernels need.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

using bf16 = __nv_bfloat16;

// Eight neighbours, one 16-byte access.
struct alignas(16) Eight {
    __nv_bfloat162 pair[4];
};

__device__ inline void widen(const Eight& from, float (&to)[8]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 two = __bfloat1622float2(from.pair[i]);
        to[2 * i] = two.x;
        to[2 * i + 1] = two.y;
    }
}

__device__ inline Eight narrow(const float (&from)[8]) {
    Eight to;
#pragma unroll
    for (int i = 0; i < 4; ++i) to.pair[i] = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
    return to;
}

__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

// The sum over a block, for every thread; `room` is one float a warp.
__device__ inline float block_sum(float value, float* room) {
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    for (int warp = 0; warp < static_cast<int>(blockDim.x + 31) / 32; ++warp) value += room[warp];
    return value;
}
