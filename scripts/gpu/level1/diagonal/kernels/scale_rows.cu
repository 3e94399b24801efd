// out[i][j] = a[i] * b[i][j]
#include <cuda_runtime.h>
#include <cstdint>

__global__ void scale_rows_kernel(float* out, const float* a, const float* b, int64_t count, int64_t columns) {
    const int64_t stride = int64_t{gridDim.x} * blockDim.x;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) out[i] = a[i / columns] * b[i];
}

extern "C" int scale_rows(float* out, const float* a, const float* b, int64_t rows, int64_t columns, void* stream) {
    const int64_t count = rows * columns;
    if (count == 0) return 0;
    const int64_t blocks = (count + 255) / 256;
    scale_rows_kernel<<<static_cast<unsigned>(blocks < 65536 ? blocks : 65536), 256, 0, static_cast<cudaStream_t>(stream)>>>(
        out, a, b, count, columns);
    return cudaGetLastError();
}
