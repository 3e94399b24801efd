// Tiles for tensor cores: how they come into shared memory, and from there into registers.
#pragma once
#include "common.cuh"

// Starts to copy 16 bytes into shared memory; what is not there is zeros.
__device__ inline void fetch(void* to, const void* from, bool there) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// The same of a number.
__device__ inline void fetch_number(float* to, const float* from, bool there) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(there ? 4 : 0) : "memory");
}

// Everything fetched since the last call is one group.
__device__ inline void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most so many of this thread's groups are under way.
template <int Groups>
__device__ inline void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}

// Four matrices of 8x8: lane 8m + r says where row r of matrix m is; a lane gets of each matrix row lane / 4 at columns 2t and
// 2t + 1 with t = lane % 4.
__device__ inline void load4(uint32_t (&to)[4], const void* row) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

// The same of the transposed matrices.
__device__ inline void load4_transposed(uint32_t (&to)[4], const void* row) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

__device__ inline float power_of_2(float value) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}
