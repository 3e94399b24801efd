// CUDA's kernels on a processor, thread by thread, for whoever changes the teacher and has no GPU: what is computed is what a GPU
// computes, how fast is not. Threads of a block are fibers that take turns at barriers; blocks come one after another.
// `check_solutions.py` puts `emulated::launch` in the place of `<<<...>>>`. What it cannot show: reads beside a buffer, and
// that a barrier is missing where threads happen to come in the right order (they take turns in both orders).
#pragma once

#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

// As nvcc does; after the library's headers, which it would change.
#define __CUDACC__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)

using cudaStream_t = void*;
inline int cudaGetLastError() { return 0; }

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
// The upper half of a float. Stores round to the nearest, to even between two.
struct __nv_bfloat16 {
    uint16_t bits;
    operator float() const { return __builtin_bit_cast(float, uint32_t(bits) << 16); }
    __nv_bfloat16& operator=(float value) {
        const uint32_t whole = __builtin_bit_cast(uint32_t, value);
        bits = value == value ? uint16_t((whole + 0x7fff + (whole >> 16 & 1)) >> 16) : uint16_t(0x7fc0);
        return *this;
    }
};
using __half = _Float16;
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace emulated {

enum State { ready, at_block, at_warp, done };

struct Thread {
    ucontext_t context;
    std::vector<char> stack;
    dim3 place;
    State state = ready;
};

inline dim3 block_index, block_size, grid_size;
inline std::vector<Thread> threads;
inline ucontext_t scheduler;
inline size_t current = 0;
inline const std::function<void()>* body = nullptr;
// What the lanes of each warp exchange, and the turn before it.
inline std::vector<uint64_t> exchanged[2];
inline std::vector<unsigned> turns;

inline void wait(State state) {
    Thread& own = threads[current];
    own.state = state;
    swapcontext(&own.context, &scheduler);
}

inline void begin() {
    (*body)();
    wait(done);
}

// Lets go those whose warp or block has come to the same barrier; threads that have ended are not waited for.
inline bool released() {
    bool any = false;
    const size_t count = threads.size();
    for (size_t first = 0; first < count; first += 32) {
        const size_t last = first + 32 < count ? first + 32 : count;
        bool all = true;
        for (size_t i = first; i < last; ++i) all &= threads[i].state == at_warp || threads[i].state == done;
        for (size_t i = first; all && i < last; ++i)
            if (threads[i].state == at_warp) threads[i].state = ready, any = true;
    }
    bool all = true;
    for (const Thread& one : threads) all &= one.state == at_block || one.state == done;
    for (Thread& one : threads)
        if (all && one.state == at_block) one.state = ready, any = true;
    return any;
}

inline void run_block() {
    const size_t count = size_t(block_size.x) * block_size.y * block_size.z;
    threads.resize(count);
    turns.assign(count, 0);
    for (auto& values : exchanged) values.assign(count, 0);
    for (size_t i = 0; i < count; ++i) {
        Thread& one = threads[i];
        one.place = dim3(i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y);
        one.state = ready;
        one.stack.resize(32 << 10);
        getcontext(&one.context);
        one.context.uc_stack.ss_sp = one.stack.data();
        one.context.uc_stack.ss_size = one.stack.size();
        one.context.uc_link = nullptr;
        makecontext(&one.context, begin, 0);
    }
    for (bool backwards = false;; backwards = !backwards) {
        for (size_t i = 0; i < count; ++i) {
            current = backwards ? count - 1 - i : i;
            if (threads[current].state == ready) swapcontext(&scheduler, &threads[current].context);
        }
        bool over = true;
        for (const Thread& one : threads) over &= one.state == done;
        if (over) return;
        if (!released()) {
            std::fprintf(stderr, "threads wait at different barriers\n");
            std::abort();
        }
    }
}

inline int launch(dim3 grid, dim3 block, const std::function<void()>& kernel) {
    grid_size = grid, block_size = block, body = &kernel;
    for (unsigned z = 0; z < grid.z; ++z)
        for (unsigned y = 0; y < grid.y; ++y)
            for (unsigned x = 0; x < grid.x; ++x) {
                block_index = dim3(x, y, z);
                run_block();
            }
    return 0;
}

template <typename T>
T shuffled(T value, size_t from_lane) {
    static_assert(sizeof(T) <= 8, "too wide to be exchanged");
    const unsigned turn = turns[current]++ % 2;
    std::memcpy(&exchanged[turn][current], &value, sizeof(T));
    wait(at_warp);
    const size_t from = current / 32 * 32 + from_lane;
    if (from >= threads.size()) return value;
    T found;
    std::memcpy(&found, &exchanged[turn][from], sizeof(T));
    return found;
}

}  // namespace emulated

#define threadIdx (emulated::threads[emulated::current].place)
#define blockIdx (emulated::block_index)
#define blockDim (emulated::block_size)
#define gridDim (emulated::grid_size)

inline void __syncthreads() { emulated::wait(emulated::at_block); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
    return emulated::shuffled(value, emulated::current % 32 ^ mask);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned by, int width = 32) {
    const size_t lane = emulated::current % 32;
    return emulated::shuffled(value, lane % width >= by ? lane - by : lane);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned by, int width = 32) {
    const size_t lane = emulated::current % 32;
    return emulated::shuffled(value, lane % width + by < size_t(width) ? lane + by : lane);
}
template <typename T>
T __shfl_sync(unsigned, T value, int from, int width = 32) {
    const size_t lane = emulated::current % 32;
    return emulated::shuffled(value, lane / width * width + from % width);
}

inline float __fdiv_rn(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __float_as_int(float x) {
    int bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float __int_as_float(int bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}
using std::max;
using std::min;
