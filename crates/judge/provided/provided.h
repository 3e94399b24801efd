// What the provided calls share: errors, scratch memory, and numbers as sums of two TF32 ones.
#pragma once

#include "warpsmith.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>

#define TRY(call)                                                     \
    do {                                                              \
        if (const int status = static_cast<int>(call)) return status; \
    } while (0)

namespace {

constexpr int MOST_DEVICES = 64;

// Memory for one call, given back in the order of the stream. The pool keeps it for the next.
class Scratch {
   public:
    explicit Scratch(cudaStream_t stream) : stream_(stream) {}
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() {
        if (at_) cudaFreeAsync(at_, stream_);
    }

    int take(size_t bytes) {
        if (bytes == 0) return 0;
        int device;
        TRY(cudaGetDevice(&device));
        if (device >= MOST_DEVICES) return cudaErrorInvalidDevice;
        static cudaMemPool_t pools[MOST_DEVICES];
        if (!pools[device]) {
            cudaMemPoolProps properties{};
            properties.allocType = cudaMemAllocationTypePinned;
            properties.location.type = cudaMemLocationTypeDevice;
            properties.location.id = device;
            cudaMemPool_t made;
            TRY(cudaMemPoolCreate(&made, &properties));
            uint64_t keep = UINT64_MAX;
            TRY(cudaMemPoolSetAttribute(made, cudaMemPoolAttrReleaseThreshold, &keep));
            pools[device] = made;
        }
        return cudaMallocFromPoolAsync(&at_, bytes, pools[device], stream_);
    }

    void* at() const { return at_; }
    float* floats(size_t from = 0) const { return static_cast<float*>(at_) + from; }

   private:
    cudaStream_t stream_;
    void* at_ = nullptr;
};

// So that what follows in the same memory is aligned.
constexpr size_t rounded_up(size_t count, size_t to = 64) { return (count + to - 1) / to * to; }

// Whether vectors of four numbers can be read from all of these.
bool aligned(std::initializer_list<const void*> pointers) {
    return std::all_of(pointers.begin(), pointers.end(), [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; });
}

unsigned blocks(int64_t count, int64_t threads, int64_t most) {
    return unsigned(std::min(std::max<int64_t>((count + threads - 1) / threads, 1), most));
}

constexpr int64_t MOST_GRID_YZ = 65535;

// A number as the sum of two that tensor cores take as they are. They round what they add towards zero: sums longer than a chunk
// go through float32 in between.
struct Parts {
    float high, low;
};

__device__ __forceinline__ float to_tf32(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u); }

__device__ __forceinline__ Parts split(float x) {
    // Infinities and what would round to one.
    if (!(fabsf(x) < 3.4e38f)) return {x, 0.0f};
    const float high = to_tf32(x);
    return {high, to_tf32(x - high)};
}

template <int VECTOR>
struct Vector {
    float at[VECTOR];
};

template <int VECTOR>
__device__ __forceinline__ Vector<VECTOR> load(const float* from) {
    Vector<VECTOR> v;
    if constexpr (VECTOR == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        v.at[0] = four.x, v.at[1] = four.y, v.at[2] = four.z, v.at[3] = four.w;
    } else {
        v.at[0] = *from;
    }
    return v;
}

template <int VECTOR>
__device__ __forceinline__ void store(float* to, const Vector<VECTOR>& v) {
    if constexpr (VECTOR == 4) {
        *reinterpret_cast<float4*>(to) = make_float4(v.at[0], v.at[1], v.at[2], v.at[3]);
    } else {
        *to = v.at[0];
    }
}

__device__ __forceinline__ float activated(float value, bool relu) { return relu && value < 0.0f ? 0.0f : value; }

}  // namespace
