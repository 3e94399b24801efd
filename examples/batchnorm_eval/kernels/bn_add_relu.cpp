// out = relu((x - mean) / sqrt(var + eps) * weight + bias + residual), with mean and var per channel (inference).
//
// One pass: two reads and one write, where batch_norm, add and relu together make four reads and three writes.
// The per-channel factor is computed here, in every call: parameters and statistics may change between calls.
#include <cmath>
#include <cstdint>

extern "C" int bn_add_relu(float* out, const float* x, const float* residual, const float* weight, const float* bias,
                           const float* mean, const float* var, int64_t batch, int64_t channels, int64_t plane,
                           double eps, void*) {
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < batch * channels; ++p) {
        const int64_t c = p % channels, at = p * plane;
        const float scale = static_cast<float>(weight[c] / std::sqrt(var[c] + eps));
        const float centre = mean[c], offset = bias[c];
#pragma omp simd simdlen(16)
        for (int64_t i = 0; i < plane; ++i) {
            const float v = (x[at + i] - centre) * scale + offset + residual[at + i];
            out[at + i] = v < 0.0f ? 0.0f : v;  // in this order NaN stays NaN, as in torch.relu
        }
    }
    return 0;
}
