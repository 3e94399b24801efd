#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <vector>

#define TILE 32
#define CHECK_INPUT(x) TORCH_CHECK(x.is_cuda() && x.is_contiguous(), #x " must be a contiguous CUDA tensor")

// Square matrices: one element of C a thread.
static constexpr int kRows = TILE / 4;
__constant__ float scale[2] = {1.0f, 2.0f};

struct Shape {
    int n;
    __host__ __device__ int tiles() const { return (n + TILE - 1) / TILE; }
};

__device__ __forceinline__ float load(const float* __restrict__ x, int row, int column, int n) {
    return row < n && column < n ? x[row * n + column] : 0.0f;
}

static __global__ void __launch_bounds__(TILE * TILE)
matmul_kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, Shape shape) {
    __shared__ float as[TILE][TILE];
    __shared__ float bs[TILE][TILE];
    const int n = shape.n;
    int row = blockIdx.y * TILE + threadIdx.y, column = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int tile = 0; tile < shape.tiles(); ++tile) {
        as[threadIdx.y][threadIdx.x] = load(a, row, tile * TILE + threadIdx.x, n);
        bs[threadIdx.y][threadIdx.x] = load(b, tile * TILE + threadIdx.y, column, n);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; ++k) {
            sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
        }
        __syncthreads();
    }
#if __CUDA_ARCH__ >= 700
    sum *= scale[0];
#endif
    if (row < n && column < n) c[row * n + column] = sum;
}

inline int64_t blocks_of(int64_t n) {
    return (n + TILE - 1) / TILE;
}

std::vector<torch::Tensor> matmul_cuda(const torch::Tensor& a, at::Tensor b, double unused, bool also_unused) {
    CHECK_INPUT(a);
    CHECK_INPUT(b);
    auto c = torch::empty({a.size(0), a.size(0)}, a.options());
    const dim3 grid(blocks_of(a.size(0)), blocks_of(a.size(0)));
    const dim3 block(TILE, TILE);
    matmul_kernel<<<grid, block, 0, at::cuda::getCurrentCUDAStream()>>>(
        a.data_ptr<float>(),
        b.data_ptr<float>(),
        c.data_ptr<float>(),
        Shape{static_cast<int>(a.size(0))});
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    cudaError_t failed = cudaGetLastError();
    if (failed != cudaSuccess) {
        printf("%s\n", cudaGetErrorString(failed));
    }
    return {c};
}
