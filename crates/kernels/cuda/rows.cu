// Work on single rows: embedding, norm, SwiGLU. The residual stream is float32, what matrices read is bfloat16.
#include "common.cuh"

// residual[row] = table[tokens[row]]
extern "C" __global__ void embed(float* __restrict__ residual, const bf16* __restrict__ table,
                                 const uint32_t* __restrict__ tokens, int width) {
    const bf16* from = table + static_cast<size_t>(tokens[blockIdx.x]) * width;
    float* to = residual + static_cast<size_t>(blockIdx.x) * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = __bfloat162float(from[i]);
}

// The same, and what the first product of few rows reads: out = residual * weight, and the row's squares. Grid: rows.
extern "C" __global__ void embed_stream(float* __restrict__ residual, bf16* __restrict__ out, float* __restrict__ squares,
                                        const bf16* __restrict__ table, const uint32_t* __restrict__ tokens,
                                        const float* __restrict__ weight, int width) {
    __shared__ float room[32];
    let_next_start();
    const bf16* from = table + static_cast<size_t>(tokens[blockIdx.x]) * width;
    const size_t to = static_cast<size_t>(blockIdx.x) * width;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float value = __bfloat162float(from[i]);
        residual[to + i] = value;
        out[to + i] = __float2bfloat16_rn(value * weight[i]);
        sum += value * value;
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// residual[row] += delta[row]; out[row] = residual[row] / rms * weight.
// With `picked` row i of `out` comes from row picked[i], and the residual stays as it is. Without `delta` nothing is added.
extern "C" __global__ void add_norm(bf16* __restrict__ out, float* __restrict__ residual, const bf16* __restrict__ delta,
                                    const float* __restrict__ weight, const uint32_t* __restrict__ picked, int width,
                                    float epsilon) {
    __shared__ float room[32];
    const size_t row = picked ? picked[blockIdx.x] : blockIdx.x;
    float* stream = residual + row * width;
    const bf16* added = delta ? delta + row * width : nullptr;
    float squares = 0.0f;
    for (int i = 4 * threadIdx.x; i < width; i += 4 * blockDim.x) {
        float4 value = *reinterpret_cast<const float4*>(stream + i);
        if (added) {
            const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(added + i));
            const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(added + i + 2));
            value = make_float4(value.x + low.x, value.y + low.y, value.z + high.x, value.w + high.y);
            if (!picked) *reinterpret_cast<float4*>(stream + i) = value;
        }
        squares += value.x * value.x + value.y * value.y + value.z * value.z + value.w * value.w;
    }
    const float scale = rsqrtf(block_sum(squares, room) / width + epsilon);
    bf16* to = out + static_cast<size_t>(blockIdx.x) * width;
    for (int i = 4 * threadIdx.x; i < width; i += 4 * blockDim.x) {
        float4 value = *reinterpret_cast<const float4*>(stream + i);
        if (added && picked) {
            const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(added + i));
            const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(added + i + 2));
            value = make_float4(value.x + low.x, value.y + low.y, value.z + high.x, value.w + high.y);
        }
        const float4 by = *reinterpret_cast<const float4*>(weight + i);
        __nv_bfloat162* pair = reinterpret_cast<__nv_bfloat162*>(to + i);
        pair[0] = __floats2bfloat162_rn(value.x * scale * by.x, value.y * scale * by.y);
        pair[1] = __floats2bfloat162_rn(value.z * scale * by.z, value.w * scale * by.w);
    }
}

// out = silu(gate) * up, where a row of `both` is eight gates, their eight factors, the next eight gates and so on.
extern "C" __global__ void swiglu(bf16* __restrict__ out, const bf16* __restrict__ both, int width) {
    const int i = 8 * (blockIdx.y * blockDim.x + threadIdx.x);
    if (i >= width) return;
    const bf16* row = both + static_cast<size_t>(blockIdx.x) * 2 * width;
    float gate[8], up[8];
    widen(*reinterpret_cast<const Eight*>(row + 2 * i), gate);
    widen(*reinterpret_cast<const Eight*>(row + 2 * i + 8), up);
#pragma unroll
    for (int j = 0; j < 8; ++j) gate[j] = gate[j] / (1.0f + __expf(-gate[j])) * up[j];
    *reinterpret_cast<Eight*>(out + static_cast<size_t>(blockIdx.x) * width + i) = narrow(gate);
}

// One head of one row: bias, norm of the head (Qwen3), rotation; keys and values go to where their sequence keeps them.
// A row of `qkv` is all query heads, key heads and value heads; queries are written back in place.
// Grid: rows x heads of all three kinds. Block: half a head.
extern "C" __global__ void rotate_append(bf16* __restrict__ qkv, const float* __restrict__ bias,
                                         const float* __restrict__ query_norm, const float* __restrict__ key_norm,
                                         bf16* __restrict__ keys, bf16* __restrict__ values,
                                         const uint32_t* __restrict__ slots, const uint32_t* __restrict__ positions,
                                         const float* __restrict__ frequencies, int heads, int kv_heads, int capacity,
                                         float epsilon) {
    __shared__ float room[32];
    const int half = blockDim.x, head = blockIdx.y, i = threadIdx.x;
    const size_t width = static_cast<size_t>(heads + 2 * kv_heads) * 2 * half;
    bf16* from = qkv + blockIdx.x * width + static_cast<size_t>(head) * 2 * half;
    float one = __bfloat162float(from[i]), two = __bfloat162float(from[i + half]);
    if (bias) {
        one += bias[head * 2 * half + i];
        two += bias[head * 2 * half + half + i];
    }
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;
    const float* norm = is_query ? query_norm : is_value ? nullptr : key_norm;
    if (norm) {
        const float scale = rsqrtf(block_sum(one * one + two * two, room) / (2 * half) + epsilon);
        one *= scale * norm[i];
        two *= scale * norm[half + i];
    }
    const uint32_t position = positions[blockIdx.x];
    if (!is_value) {
        float sine, cosine;
        sincosf(static_cast<float>(position) * frequencies[i], &sine, &cosine);
        const float turned = one * cosine - two * sine;
        two = two * cosine + one * sine;
        one = turned;
    }
    bf16* to = from;
    if (!is_query) {
        const int kv_head = is_value ? head - heads - kv_heads : head - heads;
        const size_t place = (static_cast<size_t>(slots[blockIdx.x]) * kv_heads + kv_head) * capacity + position;
        to = (is_value ? values : keys) + place * 2 * half;
    }
    to[i] = __float2bfloat16_rn(one);
    to[half + i] = __float2bfloat16_rn(two);
}
