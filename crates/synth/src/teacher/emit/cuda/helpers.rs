//! Functions that kernels call.

use crate::teacher::emit::Helper;

/// What a file needs before its kernels.
pub(in crate::teacher) fn helper(helper: Helper) -> Option<String> {
    let text = match helper {
        Helper::Tanh => TANH.to_owned(),
        Helper::Log => LOG.to_owned(),
        Helper::WarpSum => warp("sum", "v + other"),
        Helper::WarpProduct => warp("product", "v * other"),
        Helper::WarpMax => warp("max", "fmaxf(v, other)"),
        Helper::WarpMin => warp("min", "fminf(v, other)"),
        Helper::BlockSum => block("sum", "0.0f"),
        Helper::BlockProduct => block("product", "1.0f"),
        Helper::BlockMax => block("max", "-INFINITY"),
        Helper::BlockMin => block("min", "INFINITY"),
        Helper::WarpArgMax => WARP_BEST.to_owned(),
        Helper::BlockArgMax => BLOCK_BEST.to_owned(),
        Helper::Vectorised(_) => return None,
    };
    Some(text)
}

fn warp(name: &str, combined: &str) -> String {
    format!(
        "__device__ __forceinline__ float warp_{name}(float v) {{
    for (int d = 16; d > 0; d >>= 1) {{
        const float other = __shfl_xor_sync(0xffffffffu, v, d);
        v = {combined};
    }}
    return v;
}}"
    )
}

fn block(name: &str, neutral: &str) -> String {
    format!(
        "template <int threads>
__device__ __forceinline__ float block_{name}(float v) {{
    __shared__ float parts[threads / 32];
    v = warp_{name}(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < threads / 32 ? parts[threadIdx.x % 32] : {neutral};
    return warp_{name}(v);
}}"
    )
}

const TANH: &str = "// tanhf becomes an approximation under --use_fast_math.
__device__ __forceinline__ float exact_tanh(float x) {
    const float a = fabsf(x);
    const float large = 1.0f - 2.0f / (expf(2.0f * a) + 1.0f);
    const float s = x * x;
    float small = fmaf(-5.70498872745e-3f, s, 2.06390887954e-2f);
    small = fmaf(small, s, -5.37397155531e-2f);
    small = fmaf(small, s, 1.33314422036e-1f);
    small = fmaf(small, s, -3.33332819422e-1f);
    small = fmaf(small * s, a, a);
    return copysignf(a < 0.625f ? small : large, x);
}";

const LOG: &str = "// logf becomes an approximation under --use_fast_math.
__device__ __forceinline__ float exact_log(float x) {
    if (!(x > 0.0f) || x == INFINITY) return x == 0.0f ? -INFINITY : x < 0.0f ? NAN : x;
    const int e = (__float_as_int(x) - 0x3f2aaaab) & 0xff800000;
    const float f = __int_as_float(__float_as_int(x) - e) - 1.0f;
    const float s = f * f;
    float r = fmaf(-0.130310059f, s, -0.121484190f);
    float t = fmaf(0.140869141f, s, 0.139814854f);
    r = fmaf(r, s, -0.166846052f);
    t = fmaf(t, s, 0.200120345f);
    r = fmaf(r, s, -0.249996200f);
    r = fmaf(t, f, r);
    r = fmaf(r, f, 0.333331972f);
    r = fmaf(r, f, -0.5f);
    r = fmaf(r, s, f);
    return fmaf(float(e) * 1.1920929e-7f, 0.693147182f, r);
}";

const WARP_BEST: &str = "struct Best {
    float value;
    int64_t place;
};
// Of equals the first.
__device__ __forceinline__ void take(Best& best, float value, int64_t place) {
    if (value > best.value || (value == best.value && place < best.place)) best = {value, place};
}
__device__ __forceinline__ Best warp_best(Best best) {
    for (int d = 16; d > 0; d >>= 1) {
        const float value = __shfl_xor_sync(0xffffffffu, best.value, d);
        const int64_t place = __shfl_xor_sync(0xffffffffu, best.place, d);
        take(best, value, place);
    }
    return best;
}";

const BLOCK_BEST: &str = "template <int threads>
__device__ __forceinline__ Best block_best(Best best) {
    __shared__ float values[threads / 32];
    __shared__ int64_t places[threads / 32];
    best = warp_best(best);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        values[threadIdx.x / 32] = best.value;
        places[threadIdx.x / 32] = best.place;
    }
    __syncthreads();
    const int warp = threadIdx.x % (threads / 32);
    return warp_best({values[warp], places[warp]});
}";
