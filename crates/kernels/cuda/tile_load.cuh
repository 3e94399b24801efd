// How tiles for tensor cores come from global into shared memory (cp.async), and from there into registers (ldmatrix).
#pragma once
#include "primitives.cuh"

// Starts to copy 16 bytes into shared memory; zeros are written where `valid` is false.
__device__ inline void cp_async_16(void* to, const void* from, bool valid) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

// The same for one float.
__device__ inline void cp_async_4(float* to, const float* from, bool valid) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(valid ? 4 : 0) : "memory");
}

// Everything copied since the last call is one group.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most so many of this thread's groups are in flight.
template <int Groups>
__device__ inline void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
}

// Four 8x8 matrices: lane 8m + r says where row r of matrix m is; a lane gets of each matrix row lane / 4 at columns 2t and
// 2t + 1 with t = lane % 4.
__device__ inline void ldmatrix_x4(uint32_t (&to)[4], const void* row) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}

// The same of the transposed matrices.
__device__ inline void ldmatrix_x4_trans(uint32_t (&to)[4], const void* row) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}
