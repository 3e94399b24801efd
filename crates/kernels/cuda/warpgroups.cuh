// Hopper's tensor cores: four warps multiply together, the right factor in shared memory, the left one there or in registers.
// Products are under way until they are waited for: sums must not be looked at, nor factors changed, before that.
#pragma once
#include "packed_attention.cuh"

#define FOUR(n) "+f"(sums.at[n][0]), "+f"(sums.at[n][1]), "+f"(sums.at[n][2]), "+f"(sums.at[n][3])
#define THIRTY_TWO FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)
#define SIXTY_FOUR THIRTY_TWO, FOUR(8), FOUR(9), FOUR(10), FOUR(11), FOUR(12), FOUR(13), FOUR(14), FOUR(15)
#define THIRTY_TWO_PLACES                                                                                          \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define SIXTY_FOUR_PLACES                                                                                             \
    THIRTY_TWO_PLACES                                                                                                 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, " \
    "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// sums[64 x N] = left[64 x 16] * right[N x 16]^T, added to what is there unless this is the first. Of four warps each has sixteen
// rows: with r = lane / 4 and t = lane % 4 a lane has row r at columns 2t and 2t + 1, then row r + 8, of every eight columns.
__device__ inline void multiply(Sums<64>& sums, uint64_t left, uint64_t right, bool first) {
    asm volatile(
        "{\n.reg .pred more;\nsetp.eq.b32 more, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" THIRTY_TWO_PLACES "}, %32, %33, more, 1, 1, 0, 0;\n}"
        : THIRTY_TWO
        : "l"(left), "l"(right), "r"(static_cast<int>(first)));
}
__device__ inline void multiply(Sums<128>& sums, uint64_t left, uint64_t right, bool first) {
    asm volatile(
        "{\n.reg .pred more;\nsetp.eq.b32 more, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SIXTY_FOUR_PLACES "}, %64, %65, more, 1, 1, 0, 0;\n}"
        : SIXTY_FOUR
        : "l"(left), "l"(right), "r"(static_cast<int>(first)));
}

// sums[64 x N] += left[64 x 16] * right[16 x N]. A lane has of `left` rows r, r + 8, r, r + 8 at columns 2t (the first two
// words) and 2t + 8.
__device__ inline void multiply(Sums<64>& sums, const uint32_t (&left)[4], uint64_t right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" THIRTY_TWO_PLACES
        "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : THIRTY_TWO
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}
__device__ inline void multiply(Sums<128>& sums, const uint32_t (&left)[4], uint64_t right) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" SIXTY_FOUR_PLACES
        "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : SIXTY_FOUR
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}
#undef FOUR
#undef THIRTY_TWO
#undef SIXTY_FOUR
#undef THIRTY_TWO_PLACES
#undef SIXTY_FOUR_PLACES

// Sums and factors in registers are as they should be.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// All products since the last call are one lot.
__device__ inline void end_lot() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most so many lots are under way.
template <int Lots>
__device__ inline void wait_for_lots() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Lots) : "memory");
}

// What was waited for: tells the compiler that it changed just now.
template <int C>
__device__ inline void arrived(Sums<C>& sums) {
#pragma unroll
    for (int n = 0; n < C / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums.at[n][i])::"memory");
}

// A factor that was read until now.
template <int N>
__device__ inline void used(uint32_t (&left)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(left[n][i])::"memory");
}

// What was copied here can now be seen by the tensor cores.
__device__ inline void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// What all lanes agree on, said so that the compiler knows.
__device__ inline int of_warp(int value) { return __shfl_sync(~0u, value, 0); }

__device__ inline uint64_t joined(uint32_t low, uint32_t high) {
    uint64_t both;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
    return both;
}

// The compiler moves waits up over arithmetic, which is then not done meanwhile, but not over a branch. This one is never taken.
__device__ inline void stay_above(int step) {
    if (step > 1 << 30) asm volatile("trap;");
}

// Passed by all once so many have arrived; then again, and so on. Even times and odd ones can be told apart.
using Gate = uint64_t;

__device__ inline void set_up(Gate& gate, int arrivals) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(&gate));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}

// What was written before is seen by those who pass.
__device__ inline void arrive(Gate& gate) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(&gate));
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

__device__ inline void await(Gate& gate, int odd) {
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(&gate));
    asm volatile(
        "{\n.reg .pred passed;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 passed, [%0], %1;\n@!passed bra again;\n}" ::"r"(at),
        "r"(odd)
        : "memory");
}
