// out = relu(conv2d(x, weight, bias)), 3x3, stride 1, padding 1, NCHW, strict float32.
//
// A direct convolution: the result is written once, where PyTorch writes the convolution, then reads and writes it again
// for the bias and for the ReLU. With this few channels it is bound by multiplications on the CUDA cores.
//   * A block makes a tile of 32 x 8 pixels in 32 output channels, a thread 4 pixels of a row in 8 of them: 32 sums in
//     registers, so that a value read from shared memory is used up to 24 (inputs) or 4 times (weights).
//   * Inputs, with their border of zeros, and weights come through shared memory, 8 input channels at a time. Weights lie
//     with the output channel innermost: one 16-byte read, the same for the whole warp, serves 4 channels.
#include <cuda_runtime.h>
#include <cstdint>

namespace {

constexpr int tile_w = 32, tile_h = 8, tile_oc = 32, chunk = 8;
constexpr int pixels = 4, channels = 8;  // of a thread
constexpr int across = tile_w / pixels;
constexpr int threads = across * tile_h * (tile_oc / channels);
constexpr int rows = tile_h + 2, pitch = tile_w + 4;  // two columns of border, two more to keep 16-byte alignment

__global__ __launch_bounds__(threads, 4) void conv3x3_relu_kernel(
    float* __restrict__ out, const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
    int in_channels, int out_channels, int height, int width, int tiles_across) {
    __shared__ __align__(16) float input[chunk][rows][pitch];
    __shared__ __align__(16) float filter[chunk][9][tile_oc];

    const int left = blockIdx.x % tiles_across * tile_w, top = blockIdx.x / tiles_across * tile_h;
    const int first_oc = blockIdx.y * tile_oc;
    const int tx = threadIdx.x % across * pixels, ty = threadIdx.x / across % tile_h;
    const int oc = threadIdx.x / (across * tile_h) * channels;
    const float* image = x + static_cast<int64_t>(blockIdx.z) * in_channels * height * width;

    float sum[channels][pixels] = {};
    for (int from = 0; from < in_channels; from += chunk) {
        const int count = min(chunk, in_channels - from);
        __syncthreads();  // everybody is done with the channels before
#pragma unroll 2
        for (int i = threadIdx.x; i < chunk * rows * (tile_w + 2); i += threads) {
            const int column = i % (tile_w + 2), row = i / (tile_w + 2) % rows, c = i / ((tile_w + 2) * rows);
            const int gx = left + column - 1, gy = top + row - 1;
            const bool inside = c < count && gx >= 0 && gx < width && gy >= 0 && gy < height;
            input[c][row][column] = inside ? image[(static_cast<int64_t>(from + c) * height + gy) * width + gx] : 0.0f;
        }
#pragma unroll 2
        for (int i = threadIdx.x; i < tile_oc * chunk * 9; i += threads) {
            const int tap = i % 9, c = i / 9 % chunk, o = i / (9 * chunk);
            const bool inside = c < count && first_oc + o < out_channels;
            filter[c][tap][o] = inside ? weight[(static_cast<int64_t>(first_oc + o) * in_channels + from + c) * 9 + tap] : 0.0f;
        }
        __syncthreads();

        for (int c = 0; c < count; ++c) {
#pragma unroll
            for (int ky = 0; ky < 3; ++ky) {
                const float* line = &input[c][ty + ky][tx];
                const float4 low = *reinterpret_cast<const float4*>(line);
                const float2 high = *reinterpret_cast<const float2*>(line + 4);
                const float v[pixels + 2] = {low.x, low.y, low.z, low.w, high.x, high.y};
#pragma unroll
                for (int kx = 0; kx < 3; ++kx) {
                    const float4* taps = reinterpret_cast<const float4*>(&filter[c][ky * 3 + kx][oc]);
#pragma unroll
                    for (int quad = 0; quad < channels / 4; ++quad) {
                        const float4 f = taps[quad];
#pragma unroll
                        for (int p = 0; p < pixels; ++p) {
                            sum[quad * 4 + 0][p] += f.x * v[p + kx];
                            sum[quad * 4 + 1][p] += f.y * v[p + kx];
                            sum[quad * 4 + 2][p] += f.z * v[p + kx];
                            sum[quad * 4 + 3][p] += f.w * v[p + kx];
                        }
                    }
                }
            }
        }
    }

    const int gy = top + ty, gx = left + tx;
    if (gy >= height) return;
#pragma unroll
    for (int o = 0; o < channels; ++o) {
        const int channel = first_oc + oc + o;
        if (channel >= out_channels) return;
        const float b = bias[channel];
        float r[pixels];
#pragma unroll
        for (int p = 0; p < pixels; ++p) {
            const float value = sum[o][p] + b;
            r[p] = value < 0.0f ? 0.0f : value;  // in this order NaN stays NaN
        }
        float* to = out + ((static_cast<int64_t>(blockIdx.z) * out_channels + channel) * height + gy) * width + gx;
        if (width % 4 == 0 && gx + pixels <= width) {
            *reinterpret_cast<float4*>(to) = make_float4(r[0], r[1], r[2], r[3]);
        } else {
            for (int p = 0; p < pixels && gx + p < width; ++p) to[p] = r[p];
        }
    }
}

}  // namespace

extern "C" int conv3x3_relu(float* out, const float* x, const float* weight, const float* bias, int64_t batch,
                            int64_t in_channels, int64_t out_channels, int64_t height, int64_t width, void* stream) {
    if (batch * out_channels * height * width == 0) return 0;
    const int across_image = static_cast<int>((width + tile_w - 1) / tile_w);
    const int down_image = static_cast<int>((height + tile_h - 1) / tile_h);
    const dim3 grid(across_image * down_image, static_cast<unsigned>((out_channels + tile_oc - 1) / tile_oc),
                    static_cast<unsigned>(batch));
    conv3x3_relu_kernel<<<grid, threads, 0, static_cast<cudaStream_t>(stream)>>>(
        out, x, weight, bias, static_cast<int>(in_channels), static_cast<int>(out_channels), static_cast<int>(height),
        static_cast<int>(width), across_image);
    return static_cast<int>(cudaGetLastError());
}
