// What training does to queries, keys and values between the QKV product and attention, forward and backward: bias, head norm
// (Qwen3) and RoPE.
#include "primitives.cuh"
#include "float4.cuh"

namespace {
constexpr int warps = 8, threads = 32 * warps;
}

struct RopeParams {
    bf16* out;              // in place of what is read, or beside it
    float* norm_partials;   // backward, with head norms: partial sums of their gradients, [block][query norm, key norm]
    const bf16* qkv;        // as the product left it; backward only with head norms
    const float* bias;      // may be null
    const float* norms;     // of queries, then of keys; may be null
    const float2* cos_sin;  // [position][pair]
    const uint32_t* positions;
    int rows, heads, kv_heads, head_dim;
    int heads_per_row;  // heads of a row that are processed
    float epsilon;
};

namespace {

// A few neighbouring lanes have a head, each four dimensions of its first half and the four that rotate with them.
struct HeadSlice {
    int row, head, first, second;
    size_t start;
};

__device__ inline HeadSlice head_slice(const RopeParams& params, size_t item) {
    const int lanes = params.head_dim / 8, i = threadIdx.x % lanes * 4;
    const int row = static_cast<int>(item / params.heads_per_row), head = static_cast<int>(item % params.heads_per_row);
    const size_t width = static_cast<size_t>(params.heads + 2 * params.kv_heads) * params.head_dim;
    return {row, head, i, i + params.head_dim / 2, row * width + static_cast<size_t>(head) * params.head_dim};
}

__device__ inline float head_sum(float value, int lanes) {
    for (int step = lanes / 2; step; step >>= 1) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

__device__ inline void load_head(const RopeParams& params, const HeadSlice& at, float4& x1, float4& x2) {
    x1 = to_float(vec4(params.qkv + at.start + at.first));
    x2 = to_float(vec4(params.qkv + at.start + at.second));
    if (params.bias) {
        x1 = x1 + vec4(params.bias + at.head * params.head_dim + at.first);
        x2 = x2 + vec4(params.bias + at.head * params.head_dim + at.second);
    }
}

// Rotates by the position's angles; with a sign of -1 back.
__device__ inline void rotate(const RopeParams& params, const HeadSlice& at, float4& x1, float4& x2, float sign) {
    const float2* by = params.cos_sin + static_cast<size_t>(params.positions[at.row]) * (params.head_dim / 2) + at.first;
    const float4 low = vec4(reinterpret_cast<const float*>(by)), high = vec4(reinterpret_cast<const float*>(by + 2));
    const float4 cosine = make_float4(low.x, low.z, high.x, high.z), sine = make_float4(low.y, low.w, high.y, high.w) * sign;
    const float4 rotated = x1 * cosine + x2 * sine * -1.0f;
    x2 = x2 * cosine + x1 * sine;
    x1 = rotated;
}

}  // namespace

// Grid-strided over heads of rows.
extern "C" __global__ __launch_bounds__(threads) void rope_qk_fwd(const RopeParams params) {
    pdl_wait();
    const int lanes = params.head_dim / 8, heads_at_once = threads / lanes;
    const size_t items = static_cast<size_t>(params.rows) * params.heads_per_row,
                 stride = static_cast<size_t>(gridDim.x) * heads_at_once;
    // All lanes of a warp make the same number of rounds, since they reduce together.
    const size_t rounds = (items + stride - 1) / stride;
    for (size_t round = 0; round < rounds; ++round) {
        const size_t item = round * stride + static_cast<size_t>(blockIdx.x) * heads_at_once + threadIdx.x / lanes;
        const bool valid = item < items;
        const HeadSlice at = head_slice(params, valid ? item : 0);
        float4 x1, x2;
        load_head(params, at, x1, x2);
        const bool is_value = at.head >= params.heads + params.kv_heads;
        if (params.norms) {
            const float inverse_rms = rsqrtf(head_sum(sum(x1 * x1) + sum(x2 * x2), lanes) / params.head_dim + params.epsilon);
            if (!is_value) {
                const float* norm = params.norms + (at.head >= params.heads ? params.head_dim : 0);
                x1 = x1 * inverse_rms * vec4(norm + at.first);
                x2 = x2 * inverse_rms * vec4(norm + at.second);
            }
        }
        if (!is_value) rotate(params, at, x1, x2, 1.0f);
        if (valid) {
            vec4(params.out + at.start + at.first) = to_bf16(x1);
            vec4(params.out + at.start + at.second) = to_bf16(x2);
        }
    }
}

// From gradients of rotated queries and keys to gradients of what the product left, in place.
extern "C" __global__ __launch_bounds__(threads) void rope_qk_bwd(const RopeParams params) {
    __shared__ float scratch[threads * 8];
    pdl_wait();
    const int lanes = params.head_dim / 8, heads_at_once = threads / lanes;
    const size_t items = static_cast<size_t>(params.rows) * params.heads_per_row,
                 stride = static_cast<size_t>(gridDim.x) * heads_at_once;
    const size_t rounds = (items + stride - 1) / stride;
    const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float4 d_norms[2][2] = {{zero, zero}, {zero, zero}};
    for (size_t round = 0; round < rounds; ++round) {
        const size_t item = round * stride + static_cast<size_t>(blockIdx.x) * heads_at_once + threadIdx.x / lanes;
        const bool valid = item < items;
        const HeadSlice at = head_slice(params, valid ? item : 0);
        float4 d1 = to_float(vec4(params.out + at.start + at.first)), d2 = to_float(vec4(params.out + at.start + at.second));
        rotate(params, at, d1, d2, -1.0f);
        if (params.norms) {
            const bool is_key = at.head >= params.heads;
            const float* norm = params.norms + (is_key ? params.head_dim : 0);
            const float4 norm1 = vec4(norm + at.first), norm2 = vec4(norm + at.second);
            float4 x1, x2;
            load_head(params, at, x1, x2);
            const float squares = head_sum(sum(x1 * x1) + sum(x2 * x2), lanes);
            const float dot = head_sum(sum(x1 * d1 * norm1) + sum(x2 * d2 * norm2), lanes);
            const float inverse_rms = rsqrtf(squares / params.head_dim + params.epsilon);
            const float through_rms = -dot * inverse_rms * inverse_rms * inverse_rms / params.head_dim;
            if (valid) {
                const float4 more1 = d1 * x1 * inverse_rms, more2 = d2 * x2 * inverse_rms;
                // With constant indices: variable ones would move the sums out of registers.
                if (is_key) {
                    d_norms[1][0] = d_norms[1][0] + more1;
                    d_norms[1][1] = d_norms[1][1] + more2;
                } else {
                    d_norms[0][0] = d_norms[0][0] + more1;
                    d_norms[0][1] = d_norms[0][1] + more2;
                }
            }
            d1 = d1 * norm1 * inverse_rms + x1 * through_rms;
            d2 = d2 * norm2 * inverse_rms + x2 * through_rms;
        }
        if (valid) {
            vec4(params.out + at.start + at.first) = to_bf16(d1);
            vec4(params.out + at.start + at.second) = to_bf16(d2);
        }
    }
    if (!params.norms) return;
    const int mine = threadIdx.x / lanes * params.head_dim, i = threadIdx.x % lanes * 4;
    for (int kind = 0; kind < 2; ++kind) {
        __syncthreads();
        vec4(scratch + mine + i) = kind ? d_norms[1][0] : d_norms[0][0];
        vec4(scratch + mine + params.head_dim / 2 + i) = kind ? d_norms[1][1] : d_norms[0][1];
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < params.head_dim) {
            float total = 0.0f;
            for (int other = 0; other < heads_at_once; ++other) total += scratch[other * params.head_dim + threadIdx.x];
            params.norm_partials[(static_cast<size_t>(blockIdx.x) * 2 + kind) * params.head_dim + threadIdx.x] = total;
        }
    }
}
