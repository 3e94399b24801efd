// `warpsmith_conv`, by cuDNN.
#include "provided.h"

#include <cudnn.h>

namespace {

constexpr size_t MOST_WORKSPACE = size_t(2) << 30;
// The library counts elements in 32 bits; larger tensors go in several calls.
constexpr int64_t MOST_ELEMENTS = (int64_t(1) << 31) - 1;
// Terms of one sum on tensor cores. The library's float32 is more exact where a convolution is transposed.
constexpr int64_t CHUNK = 320, TRANSPOSED_CHUNK = 160;
// Of what is written for a convolution by parts at a time.
constexpr int64_t MOST_PARTS = int64_t(1) << 29;

cudnnHandle_t& handle(int device) {
    static cudnnHandle_t handles[MOST_DEVICES];
    return handles[device];
}

// ---- shapes ----------------------------------------------------------------------------------------------------------------

// What was asked for, checked, with what follows from it. cuDNN has no convolution of one dimension: a second one of size one.
struct Shape {
    int64_t batch, channels, filters, groups;
    int dims = 0;
    bool transposed, valid = true;
    std::array<int64_t, 3> input{1, 1, 1}, kernel{1, 1, 1}, output{1, 1, 1}, stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};
    int64_t taps = 1, in_pixels = 1, out_pixels = 1;
    int algorithm = 0;

    explicit Shape(const WarpsmithConv& c) : batch(c.batch), channels(c.channels), filters(c.filters), groups(c.groups), transposed(c.transposed), algorithm(std::max(0, c.algorithm)) {
        int given = 0;
        while (given < 3 && c.input[given] > 0) ++given;
        dims = std::max(2, given);
        valid = given > 0 && batch >= 0 && channels > 0 && filters > 0 && groups > 0 && channels % groups == 0 && filters % groups == 0;
        for (int i = dims - given; valid && i < dims; ++i) {
            const int from = i - (dims - given);
            input[i] = c.input[from], kernel[i] = c.kernel[from];
            stride[i] = c.stride[from], padding[i] = c.padding[from], dilation[i] = c.dilation[from];
            if (kernel[i] < 1 || stride[i] < 1 || padding[i] < 0 || dilation[i] < 1) {
                valid = false;
                break;
            }
            const int64_t reach = dilation[i] * (kernel[i] - 1) + 1, room = input[i] + 2 * padding[i] - reach;
            output[i] = transposed ? (input[i] - 1) * stride[i] - 2 * padding[i] + reach + c.output_padding[from] : room < 0 ? 0 : room / stride[i] + 1;
            if (output[i] < 1) valid = false;
            taps *= kernel[i], in_pixels *= input[i], out_pixels *= output[i];
        }
        if (std::max(channels * in_pixels, filters * out_pixels) > MOST_ELEMENTS) valid = false;
    }
};

struct Fused {
    bool relu = false;
    const float* bias = nullptr;
};

int describe(cudnnTensorDescriptor_t* made, int64_t batch, int64_t channels, int space, const std::array<int64_t, 3>& extents, bool channels_last) {
    int dims[5] = {int(batch), int(channels)}, strides[5];
    int64_t step = channels_last ? channels : 1;
    for (int i = space + 1; i >= 2; --i) {
        dims[i] = int(extents[i - 2]);
        strides[i] = int(step);
        step *= dims[i];
    }
    strides[1] = channels_last ? 1 : int(step);
    strides[0] = int(channels_last ? step : step * channels);
    TRY(cudnnCreateTensorDescriptor(made));
    return cudnnSetTensorNdDescriptor(*made, CUDNN_DATA_FLOAT, space + 2, dims, strides);
}

// ---- one convolution as the library plans it -------------------------------------------------------------------------------

using Key = std::array<int64_t, 28>;

struct Plan {
    cudnnTensorDescriptor_t from = nullptr, to = nullptr, shift = nullptr;
    cudnnFilterDescriptor_t filter = nullptr;
    cudnnConvolutionDescriptor_t convolution = nullptr;
    cudnnActivationDescriptor_t activation = nullptr;
    int algorithm = 0;
    size_t workspace = 0;
    bool transposed = false;
    // Whether bias and a ReLU can be had in the same call.
    bool fuses = true;
    int error = 0;

    int make(const Shape& s, bool tf32, bool channels_last, cudnnHandle_t library) {
        transposed = s.transposed;
        TRY(describe(&from, s.batch, s.channels, s.dims, s.input, channels_last));
        TRY(describe(&to, s.batch, s.filters, s.dims, s.output, channels_last));
        int weight[5] = {int(transposed ? s.channels : s.filters), int((transposed ? s.filters : s.channels) / s.groups)};
        int padding[3], stride[3], dilation[3];
        for (int i = 0; i < s.dims; ++i) {
            weight[2 + i] = int(s.kernel[i]);
            padding[i] = int(s.padding[i]), stride[i] = int(s.stride[i]), dilation[i] = int(s.dilation[i]);
        }
        TRY(cudnnCreateFilterDescriptor(&filter));
        TRY(cudnnSetFilterNdDescriptor(filter, CUDNN_DATA_FLOAT, channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW, s.dims + 2, weight));
        TRY(cudnnCreateConvolutionDescriptor(&convolution));
        TRY(cudnnSetConvolutionNdDescriptor(convolution, s.dims, padding, stride, dilation, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
        TRY(cudnnSetConvolutionGroupCount(convolution, int(s.groups)));
        TRY(cudnnSetConvolutionMathType(convolution, tf32 ? CUDNN_DEFAULT_MATH : CUDNN_FMA_MATH));
        int ones[5] = {1, int(s.filters), 1, 1, 1}, strides[5] = {int(s.filters), 1, 1, 1, 1};
        TRY(cudnnCreateTensorDescriptor(&shift));
        TRY(cudnnSetTensorNdDescriptor(shift, CUDNN_DATA_FLOAT, s.dims + 2, ones, strides));
        TRY(cudnnCreateActivationDescriptor(&activation));
        TRY(cudnnSetActivationDescriptor(activation, CUDNN_ACTIVATION_RELU, CUDNN_PROPAGATE_NAN, 0.0));
        return transposed ? choose_transposed(library, s.algorithm) : choose(library, s.algorithm);
    }

    // The first that fits, in the order of the library's own rules, or another of them.
    int choose(cudnnHandle_t library, int which) {
        cudnnConvolutionFwdAlgoPerf_t found[8];
        int count = 0;
        bool fits = false;
        TRY(cudnnGetConvolutionForwardAlgorithm_v7(library, from, filter, convolution, to, 8, &count, found));
        for (int i = 0; i < count; ++i) {
            size_t bytes = 0;
            if (found[i].status || cudnnGetConvolutionForwardWorkspaceSize(library, from, filter, convolution, to, found[i].algo, &bytes)) continue;
            if (bytes > MOST_WORKSPACE) continue;
            algorithm = found[i].algo, workspace = bytes, fits = true;
            if (which-- == 0) break;
        }
        return fits ? 0 : CUDNN_STATUS_NOT_SUPPORTED;
    }

    int choose_transposed(cudnnHandle_t library, int which) {
        cudnnConvolutionBwdDataAlgoPerf_t found[8];
        int count = 0;
        bool fits = false;
        TRY(cudnnGetConvolutionBackwardDataAlgorithm_v7(library, filter, from, convolution, to, 8, &count, found));
        for (int i = 0; i < count; ++i) {
            size_t bytes = 0;
            if (found[i].status || cudnnGetConvolutionBackwardDataWorkspaceSize(library, filter, from, convolution, to, found[i].algo, &bytes)) continue;
            if (bytes > MOST_WORKSPACE) continue;
            algorithm = found[i].algo, workspace = bytes, fits = true;
            if (which-- == 0) break;
        }
        return fits ? 0 : CUDNN_STATUS_NOT_SUPPORTED;
    }

    // With `add` to what `out` holds; with `bias` that and a ReLU.
    int run(float* out, const float* x, const float* weight, const float* bias, bool add, cudnnHandle_t library, cudaStream_t stream) {
        TRY(error);
        Scratch scratch(stream);
        TRY(scratch.take(workspace));
        const float one = 1.0f, zero = 0.0f, before = add ? 1.0f : 0.0f;
        if (transposed) {
            return cudnnConvolutionBackwardData(library, &one, filter, weight, from, x, convolution, cudnnConvolutionBwdDataAlgo_t(algorithm), scratch.at(),
                                                workspace, &before, to, out);
        }
        const auto forward = cudnnConvolutionFwdAlgo_t(algorithm);
        if (bias) {
            return cudnnConvolutionBiasActivationForward(library, &one, from, x, filter, weight, convolution, forward, scratch.at(), workspace, &zero, to,
                                                         out, shift, bias, activation, to, out);
        }
        return cudnnConvolutionForward(library, &one, from, x, filter, weight, convolution, forward, scratch.at(), workspace, &before, to, out);
    }
};

int planned(const Shape& s, bool tf32, bool channels_last, int device, Plan** plan) {
    static auto* plans = new std::map<Key, Plan>();
    Key key{device, s.batch, s.channels, s.filters, s.groups, s.dims, s.transposed, tf32, channels_last};
    key.back() = s.algorithm;
    auto next = key.begin() + 9;
    for (const auto& extents : {s.input, s.kernel, s.output, s.stride, s.padding, s.dilation}) next = std::copy(extents.begin(), extents.end(), next);
    auto found = plans->find(key);
    if (found == plans->end()) {
        Plan made;
        made.error = made.make(s, tf32, channels_last, handle(device));
        found = plans->emplace(key, made).first;
    }
    *plan = &found->second;
    return 0;
}

// ---- bias and activation where the library does not add them -----------------------------------------------------------------

template <int VECTOR>
__global__ void add_bias(float* out, const float* bias, int64_t planes, int64_t pixels, int64_t channels, bool relu) {
    for (int64_t plane = blockIdx.y; plane < planes; plane += gridDim.y) {
        const float add = bias ? bias[plane % channels] : 0.0f;
        for (int64_t i = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) * VECTOR; i < pixels; i += int64_t(gridDim.x) * blockDim.x * VECTOR) {
            float* at = out + plane * pixels + i;
            Vector<VECTOR> v = load<VECTOR>(at);
#pragma unroll
            for (int j = 0; j < VECTOR; ++j) v.at[j] = activated(v.at[j] + add, relu);
            store(at, v);
        }
    }
}

int add_bias_afterwards(float* out, const Shape& s, const Fused& fused, cudaStream_t stream) {
    if (!fused.bias && !fused.relu) return 0;
    const int64_t planes = s.batch * s.filters;
    const bool by_four = s.out_pixels % 4 == 0 && aligned({out});
    const dim3 grid(blocks(s.out_pixels, by_four ? 1024 : 256, 4096), blocks(planes, 1, MOST_GRID_YZ));
    if (by_four) add_bias<4><<<grid, 256, 0, stream>>>(out, fused.bias, planes, s.out_pixels, s.filters, fused.relu);
    else add_bias<1><<<grid, 256, 0, stream>>>(out, fused.bias, planes, s.out_pixels, s.filters, fused.relu);
    return cudaGetLastError();
}

int convolve(float* out, const float* x, const float* weight, const Shape& s, const Fused& fused, bool tf32, int device, cudaStream_t stream) {
    Plan* plan;
    TRY(planned(s, tf32, false, device, &plan));
    // A bias without a ReLU the library adds in one algorithm alone, which is often not the best.
    if (fused.bias && fused.relu && !s.transposed && plan->fuses) {
        if (plan->run(out, x, weight, fused.bias, false, handle(device), stream) == CUDNN_STATUS_SUCCESS) return 0;
        plan->fuses = false;
    }
    TRY(plan->run(out, x, weight, nullptr, false, handle(device), stream));
    return add_bias_afterwards(out, s, fused, stream);
}

// ---- convolutions of operands in two parts -----------------------------------------------------------------------------------

// Both operands get three times as many channels, [low high high] times [high low high], and channels come last.

// (batch, channels, pixels) to (batch, pixels, 3 * filled), of `width` channels from `start`, through tiles in shared memory.
__global__ void split_images(float* __restrict__ out, const float* __restrict__ in, int64_t batch, int64_t channels, int64_t pixels, int64_t start, int width, int filled) {
    __shared__ float tile[32][33];
    const int64_t pixel0 = int64_t(blockIdx.x) * 32;
    const int channel0 = blockIdx.y * 32;
    for (int64_t image = blockIdx.z; image < batch; image += gridDim.z) {
        for (int j = threadIdx.y; j < 32; j += 8) {
            const int channel = channel0 + j;
            const int64_t pixel = pixel0 + threadIdx.x;
            tile[j][threadIdx.x] = channel < width && pixel < pixels ? in[(image * channels + start + channel) * pixels + pixel] : 0.0f;
        }
        __syncthreads();
        for (int j = threadIdx.y; j < 32; j += 8) {
            const int64_t pixel = pixel0 + j;
            const int channel = channel0 + threadIdx.x;
            if (channel < filled && pixel < pixels) {
                const Parts parts = split(tile[threadIdx.x][j]);
                float* to = out + (image * pixels + pixel) * 3 * filled + channel;
                to[0] = parts.low, to[filled] = parts.high, to[2 * filled] = parts.high;
            }
        }
        __syncthreads();
    }
}

// Filters (outer, inner, taps), where one of the first two is summed over, to (outer, taps, 3 * filled) or (3 * filled, taps, inner).
__global__ void split_filters(float* __restrict__ out, const float* __restrict__ in, int64_t outer, int64_t inner, int64_t taps, int64_t start, int64_t width, int64_t filled, bool over_outer) {
    const int64_t count = (over_outer ? inner : outer) * taps * filled;
    for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
        int64_t from, to, step;
        bool inside;
        if (over_outer) {
            const int64_t own = i % inner, tap = i / inner % taps, channel = i / inner / taps;
            inside = channel < width;
            from = ((start + channel) * inner + own) * taps + tap;
            to = (channel * taps + tap) * inner + own, step = filled * taps * inner;
        } else {
            const int64_t channel = i % filled, tap = i / filled % taps, own = i / filled / taps;
            inside = channel < width;
            from = (own * inner + start + channel) * taps + tap;
            to = (own * taps + tap) * 3 * filled + channel, step = filled;
        }
        const Parts parts = split(inside ? in[from] : 0.0f);
        out[to] = parts.high, out[to + step] = parts.low, out[to + 2 * step] = parts.high;
    }
}

// (batch, pixels, channels) back to (batch, channels, pixels), with bias and activation.
__global__ void join_images(float* __restrict__ out, const float* __restrict__ in, const float* __restrict__ bias, int64_t batch, int64_t channels, int64_t pixels, bool relu) {
    __shared__ float tile[32][33];
    const int64_t pixel0 = int64_t(blockIdx.x) * 32, channel0 = int64_t(blockIdx.y) * 32;
    for (int64_t image = blockIdx.z; image < batch; image += gridDim.z) {
        for (int j = threadIdx.y; j < 32; j += 8) {
            const int64_t pixel = pixel0 + j, channel = channel0 + threadIdx.x;
            if (channel < channels && pixel < pixels) tile[j][threadIdx.x] = in[(image * pixels + pixel) * channels + channel];
        }
        __syncthreads();
        for (int j = threadIdx.y; j < 32; j += 8) {
            const int64_t channel = channel0 + j, pixel = pixel0 + threadIdx.x;
            if (channel < channels && pixel < pixels) {
                out[(image * channels + channel) * pixels + pixel] = activated(tile[threadIdx.x][j] + (bias ? bias[channel] : 0.0f), relu);
            }
        }
        __syncthreads();
    }
}

// How many taps a result is summed over: a stride leaves out some of those of a transposed convolution.
int64_t taps_in_sum(const Shape& s) {
    int64_t taps = 1;
    for (int i = 0; i < s.dims; ++i) taps *= s.transposed ? (s.kernel[i] + s.stride[i] - 1) / s.stride[i] : s.kernel[i];
    return taps;
}

int64_t chunks_of(const Shape& s) {
    const int64_t most = s.transposed ? TRANSPOSED_CHUNK : CHUNK;
    return (s.channels * taps_in_sum(s) + most - 1) / most;
}

// How many channels go into one sum: as equal parts as can be, and a multiple of four, so that vectors are aligned.
int64_t channels_at_once(const Shape& s) { return std::min(s.channels, (s.channels / chunks_of(s) + 3) / 4 * 4); }

int convolve_by_parts(float* out, const float* x, const float* weight, const Shape& s, const Fused& fused, int device, cudaStream_t stream) {
    const int64_t width = channels_at_once(s), most = (width + 3) / 4 * 4;
    const size_t images = rounded_up(s.batch * s.in_pixels * 3 * most), filters = rounded_up(s.filters * s.taps * 3 * most);
    Scratch scratch(stream);
    TRY(scratch.take((images + filters + s.batch * s.out_pixels * s.filters) * sizeof(float)));
    float *x3 = scratch.floats(), *w3 = scratch.floats(images), *result = scratch.floats(images + filters);
    const dim3 tile(32, 8);
    for (int64_t start = 0; start < s.channels; start += width) {
        const int64_t own = std::min(width, s.channels - start), filled = (own + 3) / 4 * 4;
        const dim3 grid(blocks(s.in_pixels, 32, INT32_MAX), blocks(filled, 32, MOST_GRID_YZ), blocks(s.batch, 1, MOST_GRID_YZ));
        split_images<<<grid, tile, 0, stream>>>(x3, x, s.batch, s.channels, s.in_pixels, start, int(own), int(filled));
        const int64_t outer = s.transposed ? s.channels : s.filters, inner = s.transposed ? s.filters : s.channels;
        split_filters<<<blocks(s.filters * s.taps * filled, 256, 4096), 256, 0, stream>>>(w3, weight, outer, inner, s.taps, start, own, filled, s.transposed);
        TRY(cudaGetLastError());
        Shape part = s;
        part.channels = 3 * filled;
        Plan* plan;
        TRY(planned(part, true, true, device, &plan));
        TRY(plan->run(result, x3, w3, nullptr, start > 0, handle(device), stream));
    }
    const dim3 grid(blocks(s.out_pixels, 32, INT32_MAX), blocks(s.filters, 32, MOST_GRID_YZ), blocks(s.batch, 1, MOST_GRID_YZ));
    join_images<<<grid, tile, 0, stream>>>(out, result, fused.bias, s.batch, s.filters, s.out_pixels, fused.relu);
    return cudaGetLastError();
}

// Whether that is faster, by what both took on an H200 over some forty shapes, in microseconds. With few channels in a sum it is
// neither faster nor exact enough.
bool parts_pay(const Shape& s) {
    const bool one_dimension = s.input[0] == 1 && s.kernel[0] == 1;
    if (s.groups != 1 || channels_at_once(s) < (s.dims == 3 ? 16 : 12) || taps_in_sum(s) > 32 || s.in_pixels < 512 || (one_dimension && !s.transposed)) return false;
    const double chunks = double(chunks_of(s));
    const double from = double(s.batch) * s.in_pixels, to = double(s.batch) * s.out_pixels;
    const double operations = 2.0 * s.channels * s.filters * s.taps * (s.transposed ? from : to);
    const double tiles = std::ceil((s.transposed ? from : to) / 128) * ((s.filters + 127) / 128), waves = tiles / 132;
    const double filled = (s.filters + 63) / 64 * 64.0 / s.filters;
    const bool strided = s.stride[0] * s.stride[1] * s.stride[2] > 1;
    const double rate = !s.transposed ? 38e6 : strided ? 14e6 : 30e6;
    const double moved = 16.0 * s.channels * from + (8 * chunks + 4) * s.filters * to;
    const double by_parts = 3 * operations * filled / 280e6 * std::ceil(waves) / waves + moved / 2.2e6 + 12 * chunks + 20;
    return by_parts < 0.9 * (operations / rate + 4.0 * s.filters * to / 3e6);
}

std::mutex& one_at_a_time() {
    static auto* mutex = new std::mutex();
    return *mutex;
}

}  // namespace

int warpsmith_conv(float* out, const float* x, const float* weight, const float* bias, const WarpsmithConv& conv, cudaStream_t stream) {
    Shape shape(conv);
    if (!shape.valid) return cudaErrorInvalidValue;
    if (shape.batch == 0) return cudaSuccess;
    const std::lock_guard<std::mutex> lock(one_at_a_time());
    int device;
    TRY(cudaGetDevice(&device));
    if (device >= MOST_DEVICES) return cudaErrorInvalidDevice;
    if (!handle(device)) TRY(cudnnCreate(&handle(device)));
    TRY(cudnnSetStream(handle(device), stream));
    const Fused fused{conv.activation == WARPSMITH_RELU, bias};
    const bool by_parts = conv.precision == WARPSMITH_3XTF32 && parts_pay(shape);
    const int64_t from = shape.channels * shape.in_pixels, to = shape.filters * shape.out_pixels;
    int64_t most = MOST_ELEMENTS / std::max(from, to);
    if (by_parts) most = std::max<int64_t>(1, MOST_PARTS / std::max(3 * channels_at_once(shape) * shape.in_pixels, to));
    for (int64_t image = 0; image < conv.batch; image += most) {
        shape.batch = std::min(most, conv.batch - image);
        const float* images = x + image * from;
        TRY(by_parts ? convolve_by_parts(out + image * to, images, weight, shape, fused, device, stream)
                     : convolve(out + image * to, images, weight, shape, fused, conv.precision == WARPSMITH_TF32, device, stream));
    }
    return cudaSuccess;
}
