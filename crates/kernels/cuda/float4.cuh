// Vectors of four, for kernels in which a lane reads four neighbours at a time.
#pragma once
#include "primitives.cuh"

struct alignas(8) Bf16x4 {
    uint2 words;
};

__device__ inline float4 to_float(const Bf16x4& from) {
    return make_float4(__uint_as_float(from.words.x << 16), __uint_as_float(from.words.x & 0xffff0000u),
                       __uint_as_float(from.words.y << 16), __uint_as_float(from.words.y & 0xffff0000u));
}

__device__ inline Bf16x4 to_bf16(const float4& from) { return {make_uint2(to_bf16(from.x, from.y), to_bf16(from.z, from.w))}; }

__device__ inline float4 operator+(const float4& a, const float4& b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
__device__ inline float4 operator*(const float4& a, const float4& b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
__device__ inline float4 operator*(const float4& a, float by) { return make_float4(a.x * by, a.y * by, a.z * by, a.w * by); }
__device__ inline float sum(const float4& of) { return (of.x + of.y) + (of.z + of.w); }

// Four neighbours, as a reference.
__device__ inline const float4& vec4(const float* at) { return *reinterpret_cast<const float4*>(at); }
__device__ inline float4& vec4(float* at) { return *reinterpret_cast<float4*>(at); }
__device__ inline const Bf16x4& vec4(const bf16* at) { return *reinterpret_cast<const Bf16x4*>(at); }
__device__ inline Bf16x4& vec4(bf16* at) { return *reinterpret_cast<Bf16x4*>(at); }
