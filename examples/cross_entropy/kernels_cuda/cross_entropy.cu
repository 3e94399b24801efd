// loss = mean over rows of log(sum_j exp(logits[r, j])) - logits[r, target[r]].
//
// One block a row reads its logits once, with an online softmax (maximum and rescaled sum together). The block that
// finishes last adds up the rows' losses in a fixed order, so one launch does it all and the bits are repeatable.
#include <cuda_runtime.h>
#include <cstdint>

constexpr int threads = 256, warps = threads / 32;

// The sum of exponentials seen so far, relative to the largest element seen so far.
struct Online {
    float top, sum;
};

__device__ __forceinline__ Online merge(Online a, Online b) {
    const float top = fmaxf(a.top, b.top);
    if (top == -INFINITY) return {top, 0.0f};
    return {top, a.sum * expf(a.top - top) + b.sum * expf(b.top - top)};
}

__device__ unsigned finished;  // how many blocks are done; wraps to 0 with the last one of each launch

template <bool vector>
__global__ void __launch_bounds__(threads)
cross_entropy_kernel(float* loss, float* row_loss, const float* logits, const int64_t* target, int64_t classes) {
    __shared__ Online part[warps];
    __shared__ bool last;
    const int64_t row = blockIdx.x;
    const float* in = logits + row * classes;

    Online o{-INFINITY, 0.0f};
    if (vector) {
#pragma unroll 4
        for (int64_t i = threadIdx.x; i < classes / 4; i += threads) {
            const float4 v = reinterpret_cast<const float4*>(in)[i];
            const float high = fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w));
            if (high > o.top) {
                o.sum *= expf(o.top - high);
                o.top = high;
            }
            if (o.top != -INFINITY)
                o.sum += (expf(v.x - o.top) + expf(v.y - o.top)) + (expf(v.z - o.top) + expf(v.w - o.top));
        }
    } else {
        for (int64_t i = threadIdx.x; i < classes; i += threads) o = merge(o, {in[i], 1.0f});
    }

    for (int d = 16; d; d >>= 1)
        o = merge(o, {__shfl_xor_sync(0xffffffffu, o.top, d), __shfl_xor_sync(0xffffffffu, o.sum, d)});
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = o;
    __syncthreads();

    if (threadIdx.x == 0) {
        for (int w = 1; w < warps; ++w) o = merge(o, part[w]);
        const int64_t t = target[row];
        // An index out of range must not pass unseen.
        row_loss[row] = t >= 0 && t < classes ? logf(o.sum) + (o.top - in[t]) : NAN;
        __threadfence();  // the loss must be visible before the count says so
        last = atomicInc(&finished, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;

    __threadfence();
    double sum = 0.0;
    for (int64_t r = threadIdx.x; r < gridDim.x; r += threads) sum += __ldcg(row_loss + r);
    for (int d = 16; d; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    __shared__ double total[warps];
    if (threadIdx.x % 32 == 0) total[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < warps; ++w) sum += total[w];
        *loss = static_cast<float>(sum / gridDim.x);
    }
}

extern "C" int cross_entropy(float* loss, float* row_loss, const float* logits, const int64_t* target, int64_t rows,
                             int64_t classes, void* stream) {
    const cudaStream_t s = static_cast<cudaStream_t>(stream);
    if (rows <= 0 || classes <= 0) return cudaErrorInvalidValue;
    const unsigned grid = static_cast<unsigned>(rows);
    const bool vector = classes % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % 16 == 0;
    if (vector) cross_entropy_kernel<true><<<grid, threads, 0, s>>>(loss, row_loss, logits, target, classes);
    else cross_entropy_kernel<false><<<grid, threads, 0, s>>>(loss, row_loss, logits, target, classes);
    return cudaGetLastError();
}
