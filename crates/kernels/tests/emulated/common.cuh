// A GPU's block on a processor: every thread is a fiber, and what threads do together they do when all have come.
//
// In the place of cuda/common.cuh. What a device does later is done as late as it may be, and what must not be looked at until
// then is spoilt, so that a kernel which does not wait for it is found out.
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
struct alignas(16) Eight {
    uint4 words;
};

inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline float __int_as_float(int bits) { return __uint_as_float(bits); }
inline float widen(uint32_t bits) { return __uint_as_float(bits << 16); }

inline void widen(const Eight& from, float (&to)[8]) {
    const uint32_t words[4] = {from.words.x, from.words.y, from.words.z, from.words.w};
    for (int i = 0; i < 8; ++i) to[i] = widen(words[i / 2] >> i % 2 * 16 & 0xffff);
}

// To the nearest, of two equally near to the even one.
inline uint32_t narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return value == value ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fc0;
}
inline uint32_t narrow(float low, float high) { return narrow(low) | narrow(high) << 16; }

inline float power_of_2(float value) { return exp2f(value); }
inline void wait_for_previous() {}
inline void let_next_start() {}

// ---- threads ----

struct Barrier {
    int size, here, times;
};

// Bytes on their way into shared memory.
struct Copy {
    void* to;
    const void* from;
    size_t bytes;
    bool there;
};

// A product of four warps.
struct Product {
    float* sums;
    int columns;
    uint64_t left, right;
    const uint32_t* left_registers;
    bool first;
};

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    bool done;
    std::deque<std::vector<Copy>> groups;
    std::vector<Copy> copies;
    std::deque<std::vector<Product>> lots;
    std::vector<Product> products;
    // What it shows to its warp.
    float shown;
    const uint32_t* shown_words;
    const void* shown_place;
};

inline std::vector<Fiber> fibers;
inline unsigned current;
inline ucontext_t scheduler;
inline std::function<void()> kernel;
inline Barrier of_block, of_groups[8], of_warps[32];
// Four warps that come more often to their turn than others, so that they are ahead of them wherever they may be.
inline unsigned hasty;

inline Fiber& self() { return fibers[current]; }

inline void meet(Barrier& barrier) {
    const int times = barrier.times;
    if (++barrier.here == barrier.size) {
        barrier.here = 0;
        ++barrier.times;
        return;
    }
    while (barrier.times == times) swapcontext(&self().context, &scheduler);
}

inline void run_fiber() {
    kernel();
    self().done = true;
    swapcontext(&self().context, &scheduler);
}

// Runs one block; false where something was still on its way when it ended.
inline bool run_block(unsigned threads, std::function<void()> what) {
    kernel = std::move(what);
    fibers = std::vector<Fiber>(threads);
    of_block = {static_cast<int>(threads), 0, 0};
    for (Barrier& barrier : of_groups) barrier = {128, 0, 0};
    for (Barrier& barrier : of_warps) barrier = {32, 0, 0};
    for (Fiber& fiber : fibers) {
        fiber.stack.resize(128 << 10);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, run_fiber, 0);
    }
    for (bool some = true; some;) {
        some = false;
        for (int turn = 0; turn < 32; ++turn)
            for (current = 0; current < threads; ++current)
                if (!self().done && (turn == 0 || current / 128 == hasty)) {
                    some = true;
                    swapcontext(&scheduler, &self().context);
                }
    }
    for (const Fiber& fiber : fibers)
        if (!fiber.groups.empty() || !fiber.copies.empty() || !fiber.lots.empty() || !fiber.products.empty()) return false;
    return true;
}

struct ThreadIdx {
    struct {
        operator unsigned() const { return current; }
    } x;
};
inline const ThreadIdx threadIdx;
inline dim3 blockIdx;

inline Barrier& of_warp() { return of_warps[current / 32]; }
inline Fiber& of_lane(int lane) { return fibers[current / 32 * 32 + lane]; }
inline void __syncthreads() { meet(of_block); }
inline void __syncwarp() { meet(of_warp()); }

inline float __shfl_xor_sync(unsigned, float value, int other) {
    self().shown = value;
    __syncwarp();
    const float theirs = fibers[current ^ other].shown;
    __syncwarp();
    return theirs;
}

// A block's shared memory; kernels call it so.
namespace {
alignas(1024) unsigned char room[256 << 10];
}
inline uint32_t __cvta_generic_to_shared(const void* at) {
    return static_cast<uint32_t>(static_cast<const unsigned char*>(at) - room);
}

// sums[16 x 8] += left[16 x 16] * right[16 x 8] by a warp, laid out as in cuda/common.cuh.
inline void multiply(float (&sums)[4], uint32_t left0, uint32_t left1, uint32_t left2, uint32_t left3, uint32_t right0,
                     uint32_t right1) {
    const uint32_t words[6] = {left0, left1, left2, left3, right0, right1};
    self().shown_words = words;
    __syncwarp();
    const int r = current % 32 / 4, t = current % 4;
    const auto number = [](int lane, int word, int k) { return widen(of_lane(lane).shown_words[word] >> k % 2 * 16 & 0xffff); };
    for (int i = 0; i < 4; ++i) {
        const int column = 2 * t + i % 2;
        double sum = sums[i];
        for (int k = 0; k < 16; ++k)
            sum += static_cast<double>(number(4 * r + k % 8 / 2, k / 8 * 2 + i / 2, k)) *
                   number(4 * column + k % 8 / 2, 4 + k / 8, k);
        sums[i] = static_cast<float>(sum);
    }
    __syncwarp();
}
