// The calls of warpsmith.h on a processor, by their definition: for solutions that run thread by thread.
#include "warpsmith.h"

namespace {

void finish(float* out, double sum, float bias, WarpsmithActivation activation) {
    const float value = float(sum + bias);
    *out = activation == WARPSMITH_RELU && value < 0.0f ? 0.0f : value;
}

}  // namespace

int warpsmith_gemm(float* out, const float* a, const float* b, const float* bias, const WarpsmithGemm& g, cudaStream_t) {
    for (int64_t one = 0; one < g.batch; ++one) {
        const float *left = a + (g.share_a ? 0 : one * g.m * g.k), *right = b + (g.share_b ? 0 : one * g.k * g.n);
        for (int64_t i = 0; i < g.m; ++i) {
            for (int64_t j = 0; j < g.n; ++j) {
                double sum = 0;
                for (int64_t l = 0; l < g.k; ++l) {
                    sum += double(left[g.transpose_a ? l * g.m + i : i * g.k + l]) * right[g.transpose_b ? j * g.k + l : l * g.n + j];
                }
                finish(out + (one * g.m + i) * g.n + j, sum, bias ? bias[j] : 0.0f, g.activation);
            }
        }
    }
    return 0;
}

int warpsmith_conv(float* out, const float* x, const float* weight, const float* bias, const WarpsmithConv& c, cudaStream_t) {
    // Of dimensions that it does not have nothing is read.
    std::array<int64_t, 3> input{1, 1, 1}, kernel{1, 1, 1}, output{1, 1, 1}, stride{1, 1, 1}, padding{0, 0, 0}, dilation{1, 1, 1};
    for (int dim = 0; dim < 3 && c.input[dim] > 0; ++dim) {
        input[dim] = c.input[dim], kernel[dim] = c.kernel[dim];
        stride[dim] = c.stride[dim], padding[dim] = c.padding[dim], dilation[dim] = c.dilation[dim];
        const int64_t reach = dilation[dim] * (kernel[dim] - 1) + 1;
        output[dim] = c.transposed ? (input[dim] - 1) * stride[dim] - 2 * padding[dim] + reach + c.output_padding[dim]
                                   : (input[dim] + 2 * padding[dim] - reach) / stride[dim] + 1;
    }
    const int64_t each = c.channels / c.groups, of_group = c.filters / c.groups;
    const int64_t in_pixels = input[0] * input[1] * input[2], out_pixels = output[0] * output[1] * output[2], taps = kernel[0] * kernel[1] * kernel[2];
    for (int64_t i = 0; i < c.batch * c.filters * out_pixels; ++i) {
        const int64_t image = i / out_pixels / c.filters, filter = i / out_pixels % c.filters, group = filter / of_group;
        double sum = 0;
        for (int64_t tap = 0; tap < taps; ++tap) {
            int64_t out_rest = i % out_pixels, tap_rest = tap, place = 0, scale = 1;
            bool inside = true;
            for (int dim = 2; dim >= 0; --dim) {
                const int64_t o = out_rest % output[dim], t = tap_rest % kernel[dim];
                out_rest /= output[dim], tap_rest /= kernel[dim];
                int64_t at = c.transposed ? o + padding[dim] - t * dilation[dim] : o * stride[dim] - padding[dim] + t * dilation[dim];
                if (c.transposed) {
                    inside &= at % stride[dim] == 0;
                    at /= stride[dim];
                }
                inside &= at >= 0 && at < input[dim];
                place += at * scale, scale *= input[dim];
            }
            for (int64_t channel = 0; inside && channel < each; ++channel) {
                const int64_t from = group * each + channel;
                const int64_t filters = c.transposed ? from * of_group + filter % of_group : filter * each + channel;
                sum += double(x[(image * c.channels + from) * in_pixels + place]) * weight[filters * taps + tap];
            }
        }
        finish(out + i, sum, bias ? bias[filter] : 0.0f, c.activation);
    }
    return 0;
}
