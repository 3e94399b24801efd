// What several kernels need.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

using bf16 = __nv_bfloat16;

// Eight neighbours, one 16-byte access. Words and not pairs: the compiler copies an array of pairs one by one.
struct alignas(16) Eight {
    uint4 words;
};

__device__ inline void widen(const Eight& from, float (&to)[8]) {
    const uint32_t words[4] = {from.words.x, from.words.y, from.words.z, from.words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

__device__ inline uint32_t narrow(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ inline Eight narrow(const float (&from)[8]) {
    return {make_uint4(narrow(from[0], from[1]), narrow(from[2], from[3]), narrow(from[4], from[5]), narrow(from[6], from[7]))};
}

// A kernel of a decode step may start before the one before it has ended (Hopper and later): what does not depend on that one
// comes before this, all else after it.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// sums[16 x 8] += left[16 x 16] * right[16 x 8] by a warp. With r = lane / 4 and t = lane % 4 a lane has of `left` rows r, r + 8,
// r, r + 8 at columns 2t (the first two words) and 2t + 8; of `right` rows 2t and 2t + 8 at column r; of `sums` row r, then row
// r + 8, at columns 2t and 2t + 1.
__device__ inline void multiply(float (&sums)[4], uint32_t left0, uint32_t left1, uint32_t left2, uint32_t left3,
                                uint32_t right0, uint32_t right1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(left0), "r"(left1), "r"(left2), "r"(left3), "r"(right0), "r"(right1));
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
