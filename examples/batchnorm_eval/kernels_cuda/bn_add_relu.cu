// out = relu((x - mean) / sqrt(var + eps) * weight + bias + residual), with mean and var per channel (inference).
//
// One block a plane (an image's channel): its factors are computed once from the parameters as they are now, then the
// plane is two reads and one write. batch_norm, add and relu apart make four reads and three writes.
#include <cuda_runtime.h>
#include <cstdint>

constexpr int threads = 256;

__device__ __forceinline__ float apply(float x, float residual, float mean, float scale, float bias) {
    const float v = fmaf(x - mean, scale, bias) + residual;
    return v < 0.0f ? 0.0f : v;  // in this order NaN stays NaN, as in torch.relu
}

template <bool vector>
__global__ void __launch_bounds__(threads)
bn_add_relu_kernel(float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ residual,
                   const float* __restrict__ weight, const float* __restrict__ bias, const float* __restrict__ mean,
                   const float* __restrict__ var, uint32_t channels, int plane, float eps) {
    const uint32_t c = blockIdx.x % channels;
    const float centre = mean[c], offset = bias[c], scale = weight[c] / sqrtf(var[c] + eps);
    const int64_t at = int64_t{blockIdx.x} * plane;
    if (vector) {
        const float4* a = reinterpret_cast<const float4*>(x + at);
        const float4* b = reinterpret_cast<const float4*>(residual + at);
        float4* to = reinterpret_cast<float4*>(out + at);
#pragma unroll 4
        for (int i = threadIdx.x; i < plane / 4; i += threads) {
            const float4 p = a[i], q = b[i];
            to[i] = make_float4(apply(p.x, q.x, centre, scale, offset), apply(p.y, q.y, centre, scale, offset),
                                apply(p.z, q.z, centre, scale, offset), apply(p.w, q.w, centre, scale, offset));
        }
    } else {
        for (int i = threadIdx.x; i < plane; i += threads)
            out[at + i] = apply(x[at + i], residual[at + i], centre, scale, offset);
    }
}

extern "C" int bn_add_relu(float* out, const float* x, const float* residual, const float* weight, const float* bias,
                           const float* mean, const float* var, int64_t batch, int64_t channels, int64_t plane,
                           double eps, void* stream) {
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (batch * channels * plane == 0) return 0;
    const unsigned grid = static_cast<unsigned>(batch * channels);
    const uint32_t nc = static_cast<uint32_t>(channels);
    const int np = static_cast<int>(plane);
    const float e = static_cast<float>(eps);
    const bool vector = plane % 4 == 0 && (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(residual) |
                                           reinterpret_cast<uintptr_t>(out)) % 16 == 0;
    if (vector) bn_add_relu_kernel<true><<<grid, threads, 0, s>>>(out, x, residual, weight, bias, mean, var, nc, np, e);
    else bn_add_relu_kernel<false><<<grid, threads, 0, s>>>(out, x, residual, weight, bias, mean, var, nc, np, e);
    return cudaGetLastError();
}
