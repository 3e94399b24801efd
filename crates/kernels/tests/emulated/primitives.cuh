// A thread block on the CPU: every thread is a fiber, and collective operations happen when all participants have arrived.
//
// Replaces cuda/primitives.cuh. Asynchronous operations complete as late as they may, and until then their destination holds
// garbage, so that a kernel which does not wait for them computes wrong results.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)

struct uint4 {
    uint32_t x, y, z, w;
};
struct float2 {
    float x, y;
};
struct dim3 {
    unsigned x, y, z;
};
struct bf16 {
    uint16_t bits;
};
struct alignas(16) Bf16x8 {
    uint4 words;
};

inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline float __int_as_float(int bits) { return __uint_as_float(bits); }
inline float to_float(uint32_t bits) { return __uint_as_float(bits << 16); }

inline void to_float(const Bf16x8& from, float (&to)[8]) {
    const uint32_t words[4] = {from.words.x, from.words.y, from.words.z, from.words.w};
    for (int i = 0; i < 8; ++i) to[i] = to_float(words[i / 2] >> i % 2 * 16 & 0xffff);
}

// Rounds to nearest even.
inline uint32_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return value == value ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fc0;
}
inline uint32_t to_bf16(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }

inline float exp2_approx(float value) { return exp2f(value); }
inline void pdl_wait() {}
inline void pdl_launch_dependents() {}

// ---- threads ----

struct Barrier {
    int size, arrived, phase;
};

// An asynchronous copy into shared memory.
struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    bool valid;
};

// A warpgroup's product.
struct WgmmaProduct {
    float* acc;
    int columns;
    uint64_t a, b;
    const uint32_t* a_registers;
    bool first;
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
    std::deque<std::vector<Copy>> copy_groups;
    std::vector<Copy> pending_copies;
    std::deque<std::vector<WgmmaProduct>> wgmma_groups;
    std::vector<WgmmaProduct> pending_products;
    // What it offers to the other lanes of its warp.
    float lane_value;
    const uint32_t* lane_words;
    const void* lane_address;
};

inline std::vector<Fiber> fibers;
inline unsigned current;
inline ucontext_t scheduler;
inline std::function<void()> kernel;
inline Barrier block_barrier, warpgroup_barriers[8], warp_barriers[32];
// The warpgroup that is scheduled more often than the other, so that it runs ahead wherever it may.
inline unsigned fast_warpgroup;

inline Fiber& self() { return fibers[current]; }

inline void arrive_and_wait(Barrier& barrier) {
    const int phase = barrier.phase;
    if (++barrier.arrived == barrier.size) {
        barrier.arrived = 0;
        ++barrier.phase;
        return;
    }
    while (barrier.phase == phase) swapcontext(&self().context, &scheduler);
}

inline void run_fiber() {
    kernel();
    self().done = true;
    swapcontext(&self().context, &scheduler);
}

// Runs one block; false where something was still in flight when it ended.
inline bool run_block(unsigned threads, std::function<void()> what) {
    kernel = std::move(what);
    fibers = std::vector<Fiber>(threads);
    block_barrier = {static_cast<int>(threads), 0, 0};
    for (Barrier& barrier : warpgroup_barriers) barrier = {128, 0, 0};
    for (Barrier& barrier : warp_barriers) barrier = {32, 0, 0};
    for (Fiber& fiber : fibers) {
        fiber.stack.resize(128 << 10);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, run_fiber, 0);
    }
    for (bool running = true; running;) {
        running = false;
        for (int round = 0; round < 32; ++round)
            for (current = 0; current < threads; ++current)
                if (!self().done && (round == 0 || current / 128 == fast_warpgroup)) {
                    running = true;
                    swapcontext(&scheduler, &self().context);
                }
    }
    for (const Fiber& fiber : fibers)
        if (!fiber.copy_groups.empty() || !fiber.pending_copies.empty() || !fiber.wgmma_groups.empty() ||
            !fiber.pending_products.empty())
            return false;
    return true;
}

struct ThreadIdx {
    struct {
        operator unsigned() const { return current; }
    } x;
};
inline const ThreadIdx threadIdx;
inline dim3 blockIdx;

inline Barrier& warp_barrier() { return warp_barriers[current / 32]; }
inline Fiber& lane_fiber(int lane) { return fibers[current / 32 * 32 + lane]; }
inline void __syncthreads() { arrive_and_wait(block_barrier); }
inline void __syncwarp() { arrive_and_wait(warp_barrier()); }

inline float __shfl_xor_sync(unsigned, float value, int other) {
    self().lane_value = value;
    __syncwarp();
    const float theirs = fibers[current ^ other].lane_value;
    __syncwarp();
    return theirs;
}

// A block's dynamic shared memory, under the name that the kernels give it.
namespace {
alignas(1024) unsigned char smem_raw[256 << 10];
}
inline uint32_t __cvta_generic_to_shared(const void* at) {
    return static_cast<uint32_t>(static_cast<const unsigned char*>(at) - smem_raw);
}

// acc[16 x 8] += a[16 x 16] * b[16 x 8] by a warp, laid out as in cuda/primitives.cuh.
inline void mma_m16n8k16(float (&acc)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    const uint32_t words[6] = {a0, a1, a2, a3, b0, b1};
    self().lane_words = words;
    __syncwarp();
    const int r = current % 32 / 4, t = current % 4;
    const auto number = [](int lane, int word, int k) {
        return to_float(lane_fiber(lane).lane_words[word] >> k % 2 * 16 & 0xffff);
    };
    for (int i = 0; i < 4; ++i) {
        const int column = 2 * t + i % 2;
        double sum = acc[i];
        for (int k = 0; k < 16; ++k)
            sum +=
                static_cast<double>(number(4 * r + k % 8 / 2, k / 8 * 2 + i / 2, k)) * number(4 * column + k % 8 / 2, 4 + k / 8, k);
        acc[i] = static_cast<float>(sum);
    }
    __syncwarp();
}
