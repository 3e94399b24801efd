// Device functions for kernels, included by warpsmith.h: reductions over threads, and mathematics that stays accurate under
// --use_fast_math.
//
//     // A block of 256 threads for each row.
//     __global__ void log_softmax_kernel(float* out, const float* x, int columns) {
//         x += int64_t(blockIdx.x) * columns, out += int64_t(blockIdx.x) * columns;
//         float top = -INFINITY, sum = 0.0f;
//         for (int i = threadIdx.x; i < columns; i += 256) top = fmaxf(top, x[i]);
//         top = warpsmith::block_max<256>(top);
//         for (int i = threadIdx.x; i < columns; i += 256) sum += expf(x[i] - top);
//         const float log_sum = warpsmith::log(warpsmith::block_sum<256>(sum));
//         for (int i = threadIdx.x; i < columns; i += 256) out[i] = x[i] - top - log_sum;
//     }
//
// Over            Threads                                         sum, product, max, min     arg max
// a warp          all 32, or each 2, 4, 8 or 16 neighbours        warp_sum(v)                warp_arg_max(best)
//                                                                 warp_sum<8>(v)             warp_arg_max<8>(best)
// a block         threadIdx.x below 32, 64, ... 1024              block_sum<256>(v)          block_arg_max<256>(best)
// its columns     32 in x, the threads that are reduced in y      column_sum<16>(v)
//
// Every thread calls a reduction, and every thread gets the result.
//
// Accurate: tanh, log, logaddexp, sin, cos, tan, pow. Polynomials are fits of our own; the largest errors found over millions of
// arguments are 1.5 units in the last place for sin and cos, 3.1 for tan, 1.1 for pow.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace warpsmith {

struct Sum {
    static __device__ __forceinline__ float identity() { return 0.0f; }
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};
struct Product {
    static __device__ __forceinline__ float identity() { return 1.0f; }
    static __device__ __forceinline__ float of(float a, float b) { return a * b; }
};
struct Max {
    static __device__ __forceinline__ float identity() { return -INFINITY; }
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};
struct Min {
    static __device__ __forceinline__ float identity() { return INFINITY; }
    static __device__ __forceinline__ float of(float a, float b) { return fminf(a, b); }
};

template <typename Op, int threads>
__device__ __forceinline__ float warp_reduce(float v) {
#pragma unroll
    for (int d = threads / 2; d > 0; d >>= 1) v = Op::of(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

template <typename Op, int threads>
__device__ __forceinline__ float block_reduce(float v) {
    static_assert(threads % 32 == 0 && threads <= 1024, "a block has whole warps, at most 32");
    __shared__ float parts[threads / 32];
    v = warp_reduce<Op, 32>(v);
    // Threads may still read the parts of the reduction before.
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < threads / 32 ? parts[threadIdx.x % 32] : Op::identity();
    return warp_reduce<Op, 32>(v);
}

template <typename Op, int threads>
__device__ __forceinline__ float column_reduce(float v) {
    __shared__ float parts[threads][32];
    __syncthreads();
    parts[threadIdx.y][threadIdx.x] = v;
    __syncthreads();
    v = parts[0][threadIdx.x];
#pragma unroll
    for (int y = 1; y < threads; ++y) v = Op::of(v, parts[y][threadIdx.x]);
    return v;
}

template <int threads = 32>
__device__ __forceinline__ float warp_sum(float v) { return warp_reduce<Sum, threads>(v); }
template <int threads = 32>
__device__ __forceinline__ float warp_product(float v) { return warp_reduce<Product, threads>(v); }
template <int threads = 32>
__device__ __forceinline__ float warp_max(float v) { return warp_reduce<Max, threads>(v); }
template <int threads = 32>
__device__ __forceinline__ float warp_min(float v) { return warp_reduce<Min, threads>(v); }

template <int threads>
__device__ __forceinline__ float block_sum(float v) { return block_reduce<Sum, threads>(v); }
template <int threads>
__device__ __forceinline__ float block_product(float v) { return block_reduce<Product, threads>(v); }
template <int threads>
__device__ __forceinline__ float block_max(float v) { return block_reduce<Max, threads>(v); }
template <int threads>
__device__ __forceinline__ float block_min(float v) { return block_reduce<Min, threads>(v); }

template <int threads>
__device__ __forceinline__ float column_sum(float v) { return column_reduce<Sum, threads>(v); }
template <int threads>
__device__ __forceinline__ float column_product(float v) { return column_reduce<Product, threads>(v); }
template <int threads>
__device__ __forceinline__ float column_max(float v) { return column_reduce<Max, threads>(v); }
template <int threads>
__device__ __forceinline__ float column_min(float v) { return column_reduce<Min, threads>(v); }

// The largest value and its index, of equal values the first: start with {-INFINITY, 0} and take every value.
struct ArgMax {
    float value;
    int64_t index;
    __device__ __forceinline__ void take(float other, int64_t at) {
        if (other > value || (other == value && at < index)) value = other, index = at;
    }
};

template <int threads = 32>
__device__ __forceinline__ ArgMax warp_arg_max(ArgMax best) {
    for (int d = threads / 2; d > 0; d >>= 1) {
        const float value = __shfl_xor_sync(0xffffffffu, best.value, d);
        const int64_t index = __shfl_xor_sync(0xffffffffu, best.index, d);
        best.take(value, index);
    }
    return best;
}

template <int threads>
__device__ __forceinline__ ArgMax block_arg_max(ArgMax best) {
    static_assert(threads % 32 == 0 && threads <= 1024, "a block has whole warps, at most 32");
    __shared__ float values[threads / 32];
    __shared__ int64_t indices[threads / 32];
    best = warp_arg_max(best);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        values[threadIdx.x / 32] = best.value;
        indices[threadIdx.x / 32] = best.index;
    }
    __syncthreads();
    // Lanes beyond the last warp take a warp again: a maximum does not change by that.
    const int warp = threadIdx.x % (threads / 32);
    return warp_arg_max({values[warp], indices[warp]});
}

__device__ __forceinline__ float tanh(float x) {
    const float a = fabsf(x);
    const float large = 1.0f - 2.0f / (expf(2.0f * a) + 1.0f);
    const float s = x * x;
    float small = fmaf(-5.70498872745e-3f, s, 2.06390887954e-2f);
    small = fmaf(small, s, -5.37397155531e-2f);
    small = fmaf(small, s, 1.33314422036e-1f);
    small = fmaf(small, s, -3.33332819422e-1f);
    small = fmaf(small * s, a, a);
    return copysignf(a < 0.625f ? small : large, x);
}

__device__ __forceinline__ float log(float x) {
    if (!(x > 0.0f) || x == INFINITY) return x == 0.0f ? -INFINITY : x < 0.0f ? NAN : x;
    const int e = (__float_as_int(x) - 0x3f2aaaab) & 0xff800000;
    const float f = __int_as_float(__float_as_int(x) - e) - 1.0f;
    const float s = f * f;
    float r = fmaf(-0.130310059f, s, -0.121484190f);
    float t = fmaf(0.140869141f, s, 0.139814854f);
    r = fmaf(r, s, -0.166846052f);
    t = fmaf(t, s, 0.200120345f);
    r = fmaf(r, s, -0.249996200f);
    r = fmaf(t, f, r);
    r = fmaf(r, f, 0.333331972f);
    r = fmaf(r, f, -0.5f);
    r = fmaf(r, s, f);
    return fmaf(float(e) * 1.1920929e-7f, 0.693147182f, r);
}

// log(exp(a) + exp(b)).
__device__ __forceinline__ float logaddexp(float a, float b) {
    const float top = fmaxf(a, b), low = fminf(a, b);
    return top == -INFINITY ? top : top + log1pf(expf(low - top));
}

// Sine and cosine of what is left after whole quarters of a turn are taken away.
struct Quadrant {
    float sin, cos;
    int turns;
};
__device__ __forceinline__ Quadrant quadrant(float x) {
    const float turns = rintf(x * 0.636619772f);
    float r = fmaf(-turns, 1.57079637f, x);
    r = fmaf(-turns, -4.37113883e-8f, r);
    r = fmaf(-turns, -1.71512451e-15f, r);
    const float s = r * r;
    float a = fmaf(2.71811427e-6f, s, -1.98393114e-4f);
    a = fmaf(a, s, 8.33332911e-3f);
    a = fmaf(a, s, -0.166666672f);
    float b = fmaf(-2.72056866e-7f, s, 2.47994594e-5f);
    b = fmaf(b, s, -1.38888834e-3f);
    b = fmaf(b, s, 0.0416666679f);
    b = fmaf(b, s, -0.5f);
    return {fmaf(a * s, r, r), fmaf(b, s, 1.0f), int(turns)};
}

// So many turns that single precision cannot tell their parts are taken away in double.
__device__ __forceinline__ float sin(float x) {
    if (!(fabsf(x) < 1e5f)) return float(::sin(double(x)));
    const Quadrant q = quadrant(x);
    const float v = q.turns & 1 ? q.cos : q.sin;
    return q.turns & 2 ? -v : v;
}

__device__ __forceinline__ float cos(float x) {
    if (!(fabsf(x) < 1e5f)) return float(::cos(double(x)));
    const Quadrant q = quadrant(x);
    const float v = q.turns & 1 ? q.sin : q.cos;
    return (q.turns + 1) & 2 ? -v : v;
}

__device__ __forceinline__ float tan(float x) {
    if (!(fabsf(x) < 1e5f)) return float(::tan(double(x)));
    const Quadrant q = quadrant(x);
    return q.turns & 1 ? __fdiv_rn(-q.cos, q.sin) : __fdiv_rn(q.sin, q.cos);
}

// The logarithm is short and in double: half of all digits of the product may stand before the point.
__device__ __forceinline__ float pow(float x, float y) {
    const float size = fabsf(x);
    if (size == 0.0f && y > 0.0f) return 0.0f;
    if (!(size >= 1.17549435e-38f && size < INFINITY && fabsf(y) < 1e30f)) return float(::pow(double(x), double(y)));
    if (x < 0.0f && truncf(y) != y) return NAN;
    const int e = (__float_as_int(size) - 0x3f3504f3) & 0xff800000;
    const float m = __int_as_float(__float_as_int(size) - e);
    const float inverse = 1.0f / (m + 1.0f);
    const double rough = (m - 1.0f) * inverse;
    const double s = fma(fma(-rough, m + 1.0, m - 1.0), double(inverse), rough);
    const double z = s * s;
    double p = fma(0.2829289453351704, z, 0.3199063955457914);
    p = fma(p, z, 0.4122091308719446);
    p = fma(p, z, 0.5770779453947209);
    p = fma(p, z, 0.9617966940890351);
    p = fma(p, z, 2.885390081777889);
    const double t = fmin(fmax(y * fma(p, s, double(e >> 23)), -252.0), 252.0);
    const double whole = rint(t);
    const float g = float(t - whole);
    float h = fmaf(1.54759051e-4f, g, 1.34002755e-3f);
    h = fmaf(h, g, 9.61800572e-3f);
    h = fmaf(h, g, 0.0555032790f);
    h = fmaf(h, g, 0.240226507f);
    h = fmaf(h, g, 0.693147182f);
    h = fmaf(h, g, 1.0f);
    // In two steps, each of them within the range of powers of two.
    const int n = int(whole), half = n / 2;
    h = h * __int_as_float((half + 127) << 23) * __int_as_float((n - half + 127) << 23);
    return x < 0.0f && fmodf(fabsf(y), 2.0f) == 1.0f ? -h : h;
}

}  // namespace warpsmith
