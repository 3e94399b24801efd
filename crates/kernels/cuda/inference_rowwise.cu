// Row-wise kernels of inference: embedding, RMS norm, SwiGLU, RoPE. The residual stream is float32, inputs of matrix products are
// bfloat16.
#include "primitives.cuh"

// residual[row] = table[tokens[row]]
extern "C" __global__ void embedding_fwd(float* __restrict__ residual, const bf16* __restrict__ table,
                                         const uint32_t* __restrict__ tokens, int width) {
    const bf16* from = table + static_cast<size_t>(tokens[blockIdx.x]) * width;
    float* to = residual + static_cast<size_t>(blockIdx.x) * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = __bfloat162float(from[i]);
}

// The same for skinny_gemm.cu, which divides by the root mean square after its product: out = residual * weight, and the row's sum
// of squares. Grid: rows.
extern "C" __global__ void embedding_fwd_deferred_norm(float* __restrict__ residual, bf16* __restrict__ out,
                                                       float* __restrict__ row_squares, const bf16* __restrict__ table,
                                                       const uint32_t* __restrict__ tokens, const float* __restrict__ weight,
                                                       int width) {
    __shared__ float scratch[32];
    pdl_launch_dependents();
    const bf16* from = table + static_cast<size_t>(tokens[blockIdx.x]) * width;
    const size_t to = static_cast<size_t>(blockIdx.x) * width;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float value = __bfloat162float(from[i]);
        residual[to + i] = value;
        out[to + i] = __float2bfloat16_rn(value * weight[i]);
        sum += value * value;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) row_squares[blockIdx.x] = sum;
}

// residual[row] += delta[row]; out[row] = residual[row] / rms * weight.
// With `row_ids` row i of `out` comes from row row_ids[i], and the residual is not changed. Without `delta` nothing is added.
extern "C" __global__ void rms_norm_residual_inplace(bf16* __restrict__ out, float* __restrict__ residual,
                                                     const bf16* __restrict__ delta, const float* __restrict__ weight,
                                                     const uint32_t* __restrict__ row_ids, int width, float epsilon) {
    __shared__ float scratch[32];
    const size_t row = row_ids ? row_ids[blockIdx.x] : blockIdx.x;
    float* residual_row = residual + row * width;
    const bf16* delta_row = delta ? delta + row * width : nullptr;
    float row_squares = 0.0f;
    for (int i = 4 * threadIdx.x; i < width; i += 4 * blockDim.x) {
        float4 value = *reinterpret_cast<const float4*>(residual_row + i);
        if (delta_row) {
            const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(delta_row + i));
            const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(delta_row + i + 2));
            value = make_float4(value.x + low.x, value.y + low.y, value.z + high.x, value.w + high.y);
            if (!row_ids) *reinterpret_cast<float4*>(residual_row + i) = value;
        }
        row_squares += value.x * value.x + value.y * value.y + value.z * value.z + value.w * value.w;
    }
    const float scale = rsqrtf(block_sum(row_squares, scratch) / width + epsilon);
    bf16* to = out + static_cast<size_t>(blockIdx.x) * width;
    for (int i = 4 * threadIdx.x; i < width; i += 4 * blockDim.x) {
        float4 value = *reinterpret_cast<const float4*>(residual_row + i);
        if (delta_row && row_ids) {
            const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(delta_row + i));
            const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(delta_row + i + 2));
            value = make_float4(value.x + low.x, value.y + low.y, value.z + high.x, value.w + high.y);
        }
        const float4 by = *reinterpret_cast<const float4*>(weight + i);
        __nv_bfloat162* pair = reinterpret_cast<__nv_bfloat162*>(to + i);
        pair[0] = __floats2bfloat162_rn(value.x * scale * by.x, value.y * scale * by.y);
        pair[1] = __floats2bfloat162_rn(value.z * scale * by.z, value.w * scale * by.w);
    }
}

// out = silu(gate) * up, where a row of `gate_up` alternates: eight gates, the eight ups that belong to them, and so on.
extern "C" __global__ void swiglu_fwd(bf16* __restrict__ out, const bf16* __restrict__ gate_up, int width) {
    const int i = 8 * (blockIdx.y * blockDim.x + threadIdx.x);
    if (i >= width) return;
    const bf16* row = gate_up + static_cast<size_t>(blockIdx.x) * 2 * width;
    float gate[8], up[8];
    to_float(*reinterpret_cast<const Bf16x8*>(row + 2 * i), gate);
    to_float(*reinterpret_cast<const Bf16x8*>(row + 2 * i + 8), up);
#pragma unroll
    for (int j = 0; j < 8; ++j) gate[j] = gate[j] / (1.0f + __expf(-gate[j])) * up[j];
    *reinterpret_cast<Bf16x8*>(out + static_cast<size_t>(blockIdx.x) * width + i) = to_bf16(gate);
}

// Bias, head norm (Qwen3) and RoPE of one head of one row. A row of `qkv` holds all query heads, key heads and value heads. Queries
// are written back in place, keys and values go to their sequence's slot of the KV cache. Grid: rows x heads of all three kinds.
// Block: half a head.
extern "C" __global__ void rope_append_kv(bf16* __restrict__ qkv, const float* __restrict__ bias,
                                          const float* __restrict__ query_norm, const float* __restrict__ key_norm,
                                          bf16* __restrict__ keys, bf16* __restrict__ values, const uint32_t* __restrict__ slots,
                                          const uint32_t* __restrict__ positions, const float* __restrict__ frequencies, int heads,
                                          int kv_heads, int capacity, float epsilon) {
    __shared__ float scratch[32];
    const int half = blockDim.x, head = blockIdx.y, i = threadIdx.x;
    const size_t width = static_cast<size_t>(heads + 2 * kv_heads) * 2 * half;
    bf16* from = qkv + blockIdx.x * width + static_cast<size_t>(head) * 2 * half;
    float x1 = __bfloat162float(from[i]), x2 = __bfloat162float(from[i + half]);
    if (bias) {
        x1 += bias[head * 2 * half + i];
        x2 += bias[head * 2 * half + half + i];
    }
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;
    const float* norm = is_query ? query_norm : is_value ? nullptr : key_norm;
    if (norm) {
        const float scale = rsqrtf(block_sum(x1 * x1 + x2 * x2, scratch) / (2 * half) + epsilon);
        x1 *= scale * norm[i];
        x2 *= scale * norm[half + i];
    }
    const uint32_t position = positions[blockIdx.x];
    if (!is_value) {
        float sine, cosine;
        sincosf(static_cast<float>(position) * frequencies[i], &sine, &cosine);
        const float rotated = x1 * cosine - x2 * sine;
        x2 = x2 * cosine + x1 * sine;
        x1 = rotated;
    }
    bf16* to = from;
    if (!is_query) {
        const int kv_head = is_value ? head - heads - kv_heads : head - heads;
        const size_t index = (static_cast<size_t>(slots[blockIdx.x]) * kv_heads + kv_head) * capacity + position;
        to = (is_value ? values : keys) + index * 2 * half;
    }
    to[i] = __float2bfloat16_rn(x1);
    to[half + i] = __float2bfloat16_rn(x2);
}
