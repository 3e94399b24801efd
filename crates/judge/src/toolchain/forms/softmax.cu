#include <torch/extension.h>
#include <cuda_runtime.h>


template <typename scalar_t>
__device__ scalar_t warp_max(scalar_t v) {
    for (int offset = 16; offset > 0; offset /= 2) {
        v = max(v, __shfl_xor_sync(0xffffffff, v, offset));
    }
    return v;
}

template <typename scalar_t>
__device__ scalar_t warp_sum(scalar_t v) {
    for (int offset = 16; offset > 0; offset /= 2) {
        v += __shfl_xor_sync(0xffffffff, v, offset);
    }
    return v;
}

template <typename scalar_t, int WARPS = 4>
__global__ void softmax_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ out, const int64_t rows, const int columns) {
    const int64_t row = blockIdx.x * int64_t{WARPS} + threadIdx.y;
    if (row >= rows) return;
    const scalar_t* from = x + row * columns;
    scalar_t largest = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += 32) largest = max(largest, from[i]);
    largest = warp_max(largest);
    scalar_t sum = 0;
    for (int i = threadIdx.x; i < columns; i += 32) sum += exp(from[i] - largest);
    sum = warp_sum(sum);
    for (int i = threadIdx.x; i < columns; i += 32) out[row * columns + i] = exp(from[i] - largest) / sum;
}

torch::Tensor softmax_cuda(torch::Tensor x) {
    auto out = torch::empty_like(x);
    const int columns = x.size(-1);
    const int64_t rows = x.numel() / columns;
    const dim3 block(32, 4);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "softmax_cuda", ([&] {
        softmax_kernel<scalar_t><<<(rows + 3) / 4, block>>>(
            x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), rows, columns);
    }));
    if (columns > 1024) {
        softmax_kernel<float, 8><<<(rows + 7) / 8, dim3(32, 8)>>>(x.data_ptr<float>(), out.data_ptr<float>(), rows, columns);
    }
    return out;
}
