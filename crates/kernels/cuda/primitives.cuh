// What all kernels build on: bfloat16 vectors, programmatic dependent launch, one tensor-core instruction and reductions.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

using bf16 = __nv_bfloat16;

// Eight neighbours, one 16-byte access. Words and not pairs: the compiler copies an array of pairs one by one.
struct alignas(16) Bf16x8 {
    uint4 words;
};

__device__ inline void to_float(const Bf16x8& from, float (&to)[8]) {
    const uint32_t words[4] = {from.words.x, from.words.y, from.words.z, from.words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[2 * i] = __uint_as_float(words[i] << 16);
        to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

__device__ inline uint32_t to_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ inline Bf16x8 to_bf16(const float (&from)[8]) {
    return {make_uint4(to_bf16(from[0], from[1]), to_bf16(from[2], from[3]), to_bf16(from[4], from[5]), to_bf16(from[6], from[7]))};
}

// Programmatic dependent launch (Hopper and later): a kernel may start before the one before it in the stream has ended. What
// does not depend on that one comes before this call, all else after it.
__device__ inline void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// acc[16 x 8] += a[16 x 16] * b[16 x 8] by a warp. With r = lane / 4 and t = lane % 4 a lane has of `a` rows r, r + 8, r, r + 8 at
// columns 2t (the first two words) and 2t + 8; of `b` rows 2t and 2t + 8 at column r; of `acc` row r, then row r + 8, at columns 2t
// and 2t + 1.
__device__ inline void mma_m16n8k16(float (&acc)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline float exp2_approx(float value) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}

__device__ inline float warp_sum(float value) {
#pragma unroll
    for (int step = 16; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

// The sum over a block, for every thread; `scratch` has one float a warp.
__device__ inline float block_sum(float value, float* scratch) {
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    for (int warp = 0; warp < static_cast<int>(blockDim.x + 31) / 32; ++warp) value += scratch[warp];
    return value;
}
