// AdamW on all parameters at once, with clipping by the gradient's global norm.
#include "primitives.cuh"

namespace {
constexpr int threads = 512;
}

struct GradNormParams {
    float* partials;  // sum of squares, one a block
    const float* grad;
    size_t count;  // a multiple of four
};

extern "C" __global__ __launch_bounds__(threads) void grad_norm_partials(const GradNormParams params) {
    __shared__ float scratch[threads / 32];
    pdl_wait();
    float sum = 0.0f;
    for (size_t i = 4 * (static_cast<size_t>(blockIdx.x) * threads + threadIdx.x); i < params.count;
         i += 4 * static_cast<size_t>(gridDim.x) * threads) {
        const float4 grad = *reinterpret_cast<const float4*>(params.grad + i);
        sum += (grad.x * grad.x + grad.y * grad.y) + (grad.z * grad.z + grad.w * grad.w);
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) params.partials[blockIdx.x] = sum;
}

// What changes from step to step.
struct AdamWStep {
    float learning_rate;        // divided by the first moment's bias correction
    float inverse_root_second;  // 1 / sqrt of the second moment's bias correction
    float decay_factor;         // 1 - learning rate * weight decay
    float beta1, beta2, epsilon, max_grad_norm;
};

struct AdamWParams {
    float* weights;
    float* first_moment;
    float* second_moment;
    bf16* weights_bf16;
    float* grad_norm;  // before clipping
    const float* grad;
    const float* partials;
    const AdamWStep* step;
    size_t count, decay_from;  // multiples of four; weight decay applies from `decay_from` on
    int partial_count;
};

// One step of all weights. Where the gradient's norm is not finite, only the norm is written.
extern "C" __global__ __launch_bounds__(threads) void adamw_fused(const AdamWParams params) {
    __shared__ float scratch[threads / 32];
    pdl_wait();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < params.partial_count; i += threads) sum += params.partials[i];
    const float grad_norm = sqrtf(block_sum(sum, scratch));
    if (blockIdx.x == 0 && threadIdx.x == 0) *params.grad_norm = grad_norm;
    if (!isfinite(grad_norm)) return;
    const AdamWStep step = *params.step;
    const float clip = fminf(1.0f, step.max_grad_norm / (grad_norm + 1e-6f));
    for (size_t i = 4 * (static_cast<size_t>(blockIdx.x) * threads + threadIdx.x); i < params.count;
         i += 4 * static_cast<size_t>(gridDim.x) * threads) {
        const float decay_factor = i >= params.decay_from ? step.decay_factor : 1.0f;
        const float4 grads = *reinterpret_cast<const float4*>(params.grad + i);
        float4 weights = *reinterpret_cast<const float4*>(params.weights + i);
        float4 firsts = *reinterpret_cast<const float4*>(params.first_moment + i),
               seconds = *reinterpret_cast<const float4*>(params.second_moment + i);
        const auto update = [&](float& weight, float& first, float& second, float grad) {
            grad *= clip;
            first = step.beta1 * first + (1.0f - step.beta1) * grad;
            second = step.beta2 * second + (1.0f - step.beta2) * grad * grad;
            weight = decay_factor * weight - step.learning_rate * first / (sqrtf(second) * step.inverse_root_second + step.epsilon);
        };
        update(weights.x, firsts.x, seconds.x, grads.x);
        update(weights.y, firsts.y, seconds.y, grads.y);
        update(weights.z, firsts.z, seconds.z, grads.z);
        update(weights.w, firsts.w, seconds.w, grads.w);
        *reinterpret_cast<float4*>(params.weights + i) = weights;
        *reinterpret_cast<float4*>(params.first_moment + i) = firsts;
        *reinterpret_cast<float4*>(params.second_moment + i) = seconds;
        *reinterpret_cast<uint2*>(params.weights_bf16 + i) =
            make_uint2(to_bf16(weights.x, weights.y), to_bf16(weights.z, weights.w));
    }
}
