// out[b, j, i] = x[b, i, j] * scale[j].
//
// A 32 x 32 tile goes through shared memory, so that both the reads and the writes of a warp are whole lines of 128
// bytes. The extra column puts the elements of a tile's column into different banks.
#include <cuda_runtime.h>
#include <cstdint>

constexpr int tile = 32, step = 8;  // a block is 32 x 8 threads; each moves four elements

__global__ void __launch_bounds__(tile * step)
transpose_scale_kernel(float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ scale, int rows,
                       int cols, int batch) {
    __shared__ float block[tile][tile + 1];
    const int left = blockIdx.x * tile, top = blockIdx.y * tile;
    const int j = left + threadIdx.x;
    const float factor = j < cols ? scale[j] : 0.0f;
    for (int b = blockIdx.z; b < batch; b += gridDim.z) {
        const int64_t base = int64_t{b} * rows * cols;
#pragma unroll
        for (int k = 0; k < tile; k += step) {
            const int i = top + threadIdx.y + k;
            if (i < rows && j < cols) block[threadIdx.y + k][threadIdx.x] = x[base + int64_t{i} * cols + j] * factor;
        }
        __syncthreads();
        const int i = top + threadIdx.x;
#pragma unroll
        for (int k = 0; k < tile; k += step) {
            const int row = left + threadIdx.y + k;
            if (row < cols && i < rows) out[base + int64_t{row} * rows + i] = block[threadIdx.x][threadIdx.y + k];
        }
        __syncthreads();  // before the next image overwrites the tile
    }
}

extern "C" int transpose_scale(float* out, const float* x, const float* scale, int64_t batch, int64_t rows,
                               int64_t cols, void* stream) {
    if (batch * rows * cols == 0) return 0;
    const dim3 grid(static_cast<unsigned>((cols + tile - 1) / tile), static_cast<unsigned>((rows + tile - 1) / tile),
                    static_cast<unsigned>(batch < 65535 ? batch : 65535));
    transpose_scale_kernel<<<grid, dim3(tile, step), 0, static_cast<cudaStream_t>(stream)>>>(
        out, x, scale, static_cast<int>(rows), static_cast<int>(cols), static_cast<int>(batch));
    return cudaGetLastError();
}
