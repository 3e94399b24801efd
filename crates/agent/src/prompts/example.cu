#include <cstdint>
#include <cuda_runtime.h>

__global__ void scale_relu_kernel(float* out, const float* x, const float* scale, int64_t count, int64_t columns) {
    const int64_t step = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        out[i] = fmaxf(x[i] * scale[i % columns], 0.0f);
    }
}

extern "C" int scale_relu(float* out, const float* x, const float* scale, int64_t count, int64_t columns, cudaStream_t stream) {
    const int64_t blocks = (count + 255) / 256;
    scale_relu_kernel<<<blocks < 4096 ? blocks : 4096, 256, 0, stream>>>(out, x, scale, count, columns);
    return cudaGetLastError();
}
