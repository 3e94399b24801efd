// Hopper's warpgroup instructions: wgmma and mbarrier.
//
// A warpgroup of four warps multiplies together. Operand B lies in shared memory, operand A there or in registers. Products are
// asynchronous: until they are waited for, the accumulator must not be read and no operand may be changed.
#pragma once
#include "flash_attn_varlen.cuh"

#define ACC_4(n) "+f"(acc.frag[n][0]), "+f"(acc.frag[n][1]), "+f"(acc.frag[n][2]), "+f"(acc.frag[n][3])
#define ACC_32 ACC_4(0), ACC_4(1), ACC_4(2), ACC_4(3), ACC_4(4), ACC_4(5), ACC_4(6), ACC_4(7)
#define ACC_64 ACC_32, ACC_4(8), ACC_4(9), ACC_4(10), ACC_4(11), ACC_4(12), ACC_4(13), ACC_4(14), ACC_4(15)
#define OPERANDS_32                                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define OPERANDS_64                                                                                                    \
    OPERANDS_32                                                                                                        \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
    "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// acc[64 x N] = a[64 x 16] * b[N x 16]^T, accumulated unless this is the first. Each of the four warps has sixteen rows: with r =
// lane / 4 and t = lane % 4 a lane has row r at columns 2t and 2t + 1, then row r + 8, of every eight columns.
__device__ inline void wgmma(Accumulator<64>& acc, uint64_t a, uint64_t b, bool first) {
    asm volatile(
        "{\n.reg .pred accumulate;\nsetp.eq.b32 accumulate, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" OPERANDS_32 "}, %32, %33, accumulate, 1, 1, 0, 0;\n}"
        : ACC_32
        : "l"(a), "l"(b), "r"(static_cast<int>(first)));
}
__device__ inline void wgmma(Accumulator<128>& acc, uint64_t a, uint64_t b, bool first) {
    asm volatile(
        "{\n.reg .pred accumulate;\nsetp.eq.b32 accumulate, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" OPERANDS_64 "}, %64, %65, accumulate, 1, 1, 0, 0;\n}"
        : ACC_64
        : "l"(a), "l"(b), "r"(static_cast<int>(first)));
}

// acc[64 x N] += a[64 x 16] * b[16 x N]. A lane has of `a` rows r, r + 8, r, r + 8 at columns 2t (the first two
// words) and 2t + 8.
__device__ inline void wgmma(Accumulator<64>& acc, const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" OPERANDS_32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
                 : ACC_32
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ inline void wgmma(Accumulator<128>& acc, const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" OPERANDS_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
                 : ACC_64
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef ACC_4
#undef ACC_32
#undef ACC_64
#undef OPERANDS_32
#undef OPERANDS_64

// Before a product: accumulator and operands in registers have their final values.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// All products since the last call are one group.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most so many groups are in flight.
template <int Groups>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Groups) : "memory");
}

// After a wait: tells the compiler that the accumulator changed just now.
template <int C>
__device__ inline void fence_accumulator(Accumulator<C>& acc) {
#pragma unroll
    for (int n = 0; n < C / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(acc.frag[n][i])::"memory");
}

// After a wait: tells the compiler that operand A was read until now.
template <int N>
__device__ inline void fence_operand(uint32_t (&a)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(a[n][i])::"memory");
}

// Makes this thread's copies into shared memory visible to the tensor cores.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A value that is the same in all lanes, in a form that lets the compiler know.
__device__ inline int warp_uniform(int value) { return __shfl_sync(~0u, value, 0); }

__device__ inline uint64_t pack_u64(uint32_t low, uint32_t high) {
    uint64_t both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
    return both;
}

// Keeps the arithmetic before this above the waits after it. The compiler hoists waits over arithmetic, which then no longer
// overlaps with the product, but not over a branch. This branch is never taken.
__device__ inline void keep_above(int step) {
    if (step > 1 << 30) asm volatile("trap;");
}

// A phase completes when the given number of threads have arrived, and the next one begins. Parity tells neighbouring phases apart.
using Mbarrier = uint64_t;

__device__ inline void mbarrier_init(Mbarrier& barrier, int arrivals) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

// Writes before the arrival are visible to whoever waits for the phase.
__device__ inline void mbarrier_arrive(Mbarrier& barrier) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

__device__ inline void mbarrier_wait(Mbarrier& barrier, int parity) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(&barrier));
    asm volatile(
        "{\n.reg .pred passed;\nspin:\nmbarrier.try_wait.parity.shared::cta.b64 passed, [%0], %1;\n@!passed bra spin;\n}" ::"r"(at),
        "r"(parity)
        : "memory");
}
