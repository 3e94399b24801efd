// Layer norm of few, very long rows: many blocks a row add up parts, each part in double, then one pass writes.
#include <cuda_runtime.h>
#include <cstdint>

constexpr int threads = 256, parts = 128;

__global__ void __launch_bounds__(threads) sums(double* part, const float* x, int64_t columns) {
    __shared__ double of_sum[threads], of_square[threads];
    const float* row = x + int64_t{blockIdx.y} * columns;
    double sum = 0.0, square = 0.0;
    for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < columns; i += int64_t{parts} * threads) {
        const double value = row[i];
        sum += value;
        square += value * value;
    }
    of_sum[threadIdx.x] = sum;
    of_square[threadIdx.x] = square;
    for (int half = threads / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            of_sum[threadIdx.x] += of_sum[threadIdx.x + half];
            of_square[threadIdx.x] += of_square[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        double* to = part + 2 * (int64_t{blockIdx.y} * parts + blockIdx.x);
        to[0] = of_sum[0];
        to[1] = of_square[0];
    }
}

__global__ void __launch_bounds__(threads) normalise(float* out, const float* x, const float* weight, const float* bias,
                                                     const double* part, int64_t columns, double epsilon) {
    __shared__ float mean, scale;
    if (threadIdx.x == 0) {
        double sum = 0.0, square = 0.0;
        for (int i = 0; i < parts; ++i) {
            sum += part[2 * (int64_t{blockIdx.y} * parts + i)];
            square += part[2 * (int64_t{blockIdx.y} * parts + i) + 1];
        }
        const double centre = sum / columns;
        mean = static_cast<float>(centre);
        scale = static_cast<float>(rsqrt(square / columns - centre * centre + epsilon));
    }
    __syncthreads();
    const int64_t row = int64_t{blockIdx.y} * columns;
    for (int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x; i < columns; i += int64_t{gridDim.x} * threads)
        out[row + i] = (x[row + i] - mean) * scale * weight[i] + bias[i];
}

// `part` holds 256 doubles a row.
extern "C" int layernorm(float* out, const float* x, const float* weight, const float* bias, double* part, int64_t rows,
                         int64_t columns, double epsilon, void* stream) {
    const auto on = static_cast<cudaStream_t>(stream);
    sums<<<dim3(parts, static_cast<unsigned>(rows)), threads, 0, on>>>(part, x, columns);
    normalise<<<dim3(1024, static_cast<unsigned>(rows)), threads, 0, on>>>(out, x, weight, bias, part, columns, epsilon);
    return cudaGetLastError();
}
