// The calls of warpsmith.h on a processor, by their definition: for solutions that run thread by thread.
// Solutions are built without; these take most of the time.
#pragma GCC optimize("O3")
#include "warpsmith.h"

#include <algorithm>
#include <vector>

namespace {

void finish(float* out, double sum, float bias, WarpsmithActivation activation) {
    const float value = float(sum + bias);
    *out = activation == WARPSMITH_RELU && value < 0.0f ? 0.0f : value;
}

}  // namespace

int warpsmith_gemm(float* out, const float* a, const float* b, const float* bias, const WarpsmithGemm& g, cudaStream_t) {
    for (int64_t one = 0; one < g.batch; ++one) {
        const float *left = a + (g.share_a ? 0 : one * g.m * g.k), *right = b + (g.share_b ? 0 : one * g.k * g.n);
        std::vector<double> sums(g.n);
        for (int64_t i = 0; i < g.m; ++i) {
            std::fill(sums.begin(), sums.end(), 0.0);
            for (int64_t l = 0; l < g.k && !g.transpose_b; ++l) {
                const double factor = left[g.transpose_a ? l * g.m + i : i * g.k + l];
                for (int64_t j = 0; j < g.n; ++j) sums[j] += factor * right[l * g.n + j];
            }
            for (int64_t j = 0; j < g.n && g.transpose_b; ++j) {
                for (int64_t l = 0; l < g.k; ++l) sums[j] += double(left[g.transpose_a ? l * g.m + i : i * g.k + l]) * right[j * g.k + l];
            }
            for (int64_t j = 0; j < g.n; ++j) finish(out + (one * g.m + i) * g.n + j, sums[j], bias ? bias[j] : 0.0f, g.activation);
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
    // For each dimension the place that a tap reads for a place of the output, or -1 beside the input.
    std::array<std::vector<int64_t>, 3> from;
    for (int dim = 0; dim < 3; ++dim) {
        for (int64_t t = 0; t < kernel[dim]; ++t) {
            for (int64_t o = 0; o < output[dim]; ++o) {
                int64_t at = c.transposed ? o + padding[dim] - t * dilation[dim] : o * stride[dim] - padding[dim] + t * dilation[dim];
                const bool between = c.transposed && at % stride[dim] != 0;
                if (c.transposed) at /= stride[dim];
                from[dim].push_back(between || at < 0 || at >= input[dim] ? -1 : at);
            }
        }
    }
    const int64_t each = c.channels / c.groups, of_group = c.filters / c.groups;
    const int64_t in_pixels = input[0] * input[1] * input[2], out_pixels = output[0] * output[1] * output[2], taps = kernel[0] * kernel[1] * kernel[2];
    std::vector<double> sums(out_pixels);
    for (int64_t plane = 0; plane < c.batch * c.filters; ++plane) {
        const int64_t image = plane / c.filters, filter = plane % c.filters, group = filter / of_group;
        std::fill(sums.begin(), sums.end(), 0.0);
        for (int64_t channel = 0; channel < each; ++channel) {
            const int64_t source = group * each + channel;
            const int64_t filters = c.transposed ? source * of_group + filter % of_group : filter * each + channel;
            const float* pixels = x + (image * c.channels + source) * in_pixels;
            for (int64_t tap = 0; tap < taps; ++tap) {
                const double factor = weight[filters * taps + tap];
                const int64_t* from0 = from[0].data() + tap / (kernel[1] * kernel[2]) * output[0];
                const int64_t* from1 = from[1].data() + tap / kernel[2] % kernel[1] * output[1];
                const int64_t* from2 = from[2].data() + tap % kernel[2] * output[2];
                for (int64_t o0 = 0; o0 < output[0]; ++o0) {
                    for (int64_t o1 = 0; o1 < output[1]; ++o1) {
                        if (from0[o0] < 0 || from1[o1] < 0) continue;
                        const float* line = pixels + (from0[o0] * input[1] + from1[o1]) * input[2];
                        double* sum = sums.data() + (o0 * output[1] + o1) * output[2];
                        for (int64_t o2 = 0; o2 < output[2]; ++o2) {
                            if (from2[o2] >= 0) sum[o2] += factor * line[from2[o2]];
                        }
                    }
                }
            }
        }
        for (int64_t i = 0; i < out_pixels; ++i) finish(out + plane * out_pixels + i, sums[i], bias ? bias[filter] : 0.0f, c.activation);
    }
    return 0;
}
