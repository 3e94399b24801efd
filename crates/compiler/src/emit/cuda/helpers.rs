//! Functions that kernels call.

use super::mathematics;
use crate::emit::Helper;

/// What a file needs before its kernels.
pub(crate) fn helper(helper: Helper) -> Option<String> {
    let text = match helper {
        Helper::Tanh => mathematics::TANH.to_owned(),
        Helper::Log => mathematics::LOG.to_owned(),
        Helper::LogAdd => mathematics::LOG_ADD.to_owned(),
        Helper::Quadrant => mathematics::QUADRANT.to_owned(),
        Helper::Sin => mathematics::SIN.to_owned(),
        Helper::Cos => mathematics::COS.to_owned(),
        Helper::Tan => mathematics::TAN.to_owned(),
        Helper::Pow => mathematics::POW.to_owned(),
        Helper::WarpSum => warp("sum", "v + other"),
        Helper::WarpProduct => warp("product", "v * other"),
        Helper::WarpMax => warp("max", "fmaxf(v, other)"),
        Helper::WarpMin => warp("min", "fminf(v, other)"),
        Helper::BlockSum => block("sum", "0.0f"),
        Helper::BlockProduct => block("product", "1.0f"),
        Helper::BlockMax => block("max", "-INFINITY"),
        Helper::BlockMin => block("min", "INFINITY"),
        Helper::ColumnSum => column("sum", "v + other"),
        Helper::ColumnProduct => column("product", "v * other"),
        Helper::ColumnMax => column("max", "fmaxf(v, other)"),
        Helper::ColumnMin => column("min", "fminf(v, other)"),
        Helper::WarpArgMax => WARP_BEST.to_owned(),
        Helper::BlockArgMax => BLOCK_BEST.to_owned(),
        Helper::Vectorised(_) | Helper::Simd(_) => return None,
    };
    Some(text)
}

fn warp(name: &str, combined: &str) -> String {
    format!(
        "template <int threads = 32>
__device__ __forceinline__ float warp_{name}(float v) {{
#pragma unroll
    for (int d = threads / 2; d > 0; d >>= 1) {{
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

/// Of threads one below the other.
fn column(name: &str, combined: &str) -> String {
    format!(
        "template <int threads>
__device__ __forceinline__ float column_{name}(float v) {{
    __shared__ float parts[threads][32];
    __syncthreads();
    parts[threadIdx.y][threadIdx.x] = v;
    __syncthreads();
    v = parts[0][threadIdx.x];
#pragma unroll
    for (int y = 1; y < threads; ++y) {{
        const float other = parts[y][threadIdx.x];
        v = {combined};
    }}
    return v;
}}"
    )
}

const WARP_BEST: &str = "struct Best {
    float value;
    int64_t place;
};
// Of equals the first.
__device__ __forceinline__ void take(Best& best, float value, int64_t place) {
    if (value > best.value || (value == best.value && place < best.place)) best = {value, place};
}
template <int threads = 32>
__device__ __forceinline__ Best warp_best(Best best) {
    for (int d = threads / 2; d > 0; d >>= 1) {
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
