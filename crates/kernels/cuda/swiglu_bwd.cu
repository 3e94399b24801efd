// Backward of SwiGLU; the forward kernel is in inference_rowwise.cu.
#include "primitives.cuh"

namespace {
constexpr int threads = 256;
}

struct SwigluBwdParams {
    bf16* gate_up;  // alternating: eight gates, the eight ups that belong to them, and so on; replaced by their gradients
    bf16* hidden;   // gradient of silu(gate) * up, replaced by that product, which the weight gradient of the down projection reads
    size_t vectors;
};

extern "C" __global__ __launch_bounds__(threads) void swiglu_bwd(const SwigluBwdParams params) {
    pdl_wait();
    const size_t i = static_cast<size_t>(blockIdx.x) * threads + threadIdx.x;
    if (i >= params.vectors) return;
    Bf16x8* gate_up = reinterpret_cast<Bf16x8*>(params.gate_up) + 2 * i;
    Bf16x8* hidden = reinterpret_cast<Bf16x8*>(params.hidden) + i;
    float gate[8], up[8], d_hidden[8];
    to_float(gate_up[0], gate);
    to_float(gate_up[1], up);
    to_float(*hidden, d_hidden);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float sigmoid = 1.0f / (1.0f + __expf(-gate[j])), silu = gate[j] * sigmoid, d_out = d_hidden[j];
        d_hidden[j] = silu * up[j];
        const float d_gate = d_out * up[j] * sigmoid * (1.0f + gate[j] * (1.0f - sigmoid));
        up[j] = d_out * silu;
        gate[j] = d_gate;
    }
    gate_up[0] = to_bf16(gate);
    gate_up[1] = to_bf16(up);
    *hidden = to_bf16(d_hidden);
}
