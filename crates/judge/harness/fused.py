"""One pass over large tensors on a GPU where PyTorch's operators need ten: a witness's keyed sum, an answer's errors.

For the trusted process alone: NVRTC compiles the kernels there when the first large tensor comes. Where this PyTorch cannot do that,
callers do without, and get the same numbers.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

# Below this, launches cost more than passes over memory.
LEAST = 1 << 22
_PIECE = 1 << 30  # what a kernel is handed at once: its numbers are 32 bits wide
_THREADS = 512
_BLOCKS = 8 * 132

_SOURCE = r"""
typedef unsigned long long u64;

__device__ __forceinline__ u64 mixed(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

// Sum of word times factor, modulo 2^64. The factors are odd and follow from the key: a single word that changes changes the sum.
extern "C" __global__ void __launch_bounds__(512) keyed_sum(const unsigned* words, int count, const u64* key, int piece, u64* total) {
    const u64 start = *key + ((u64)piece << 32);
    const int step = gridDim.x * blockDim.x;
    u64 sum = 0;
#pragma unroll 4
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        sum += (mixed(start + (u64)i * 0x9e3779b97f4a7c15ULL) | 1) * words[i];
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0) atomicAdd(total, sum);
}

// z = |got - want| / (|want| + size): the sum of its squares, and the largest with the first place it stands at. NaN is the largest.
extern "C" __global__ void __launch_bounds__(512)
errors(const float* got, const float* want, int count, double mean_size, double* squares, u64* peak) {
    const float size = (float)mean_size;
    const int step = gridDim.x * blockDim.x;
    double sum = 0;
    u64 most = 0;
#pragma unroll 4
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const float ratio = fabsf(got[i] - want[i]) / (fabsf(want[i]) + size);
        sum += (double)ratio * ratio;
        const u64 here = (u64)(__float_as_uint(ratio) & 0x7fffffffu) << 32 | (0xffffffffu - (unsigned)i);
        most = here > most ? here : most;
    }
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, lanes);
        const u64 other = __shfl_down_sync(0xffffffffu, most, lanes);
        most = other > most ? other : most;
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(squares, sum);
        atomicMax(peak, most);
    }
}
"""


@lru_cache(maxsize=1)
def _kernels() -> dict[str, Any] | None:
    try:
        return {name: torch.cuda._compile_kernel(_SOURCE, name) for name in ("keyed_sum", "errors")}
    except (AttributeError, OSError, RuntimeError):
        return None


def _fits(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda and tensor.numel() >= LEAST and tensor.is_contiguous()


def keyed_sum(words: torch.Tensor, key: int) -> torch.Tensor | None:
    """Of int32 words that lie one after the other; None where it must be had in another way."""
    kernels = _kernels() if _fits(words) else None
    if kernels is None:
        return None
    given = torch.tensor([key], device=words.device)
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for number, piece in enumerate(words.view(-1).split(_PIECE)):
        kernels["keyed_sum"]((_BLOCKS, 1, 1), (_THREADS, 1, 1), [piece, piece.numel(), given, number, total])
    return total


def errors(got: torch.Tensor, want: torch.Tensor, size: float) -> tuple[float, float, int] | None:
    """Sum of squares of z, its peak and the first place of the peak; None where it must be had in another way.

    As `measure.ratios` has z where the answer is finite: an element that is not finite shows in the peak.
    """
    alike = got.dtype == want.dtype == torch.float32 and got.shape == want.shape
    kernels = _kernels() if alike and _fits(got) and _fits(want) else None
    if kernels is None:
        return None
    pairs = list(zip(got.view(-1).split(_PIECE), want.view(-1).split(_PIECE)))
    squares = torch.zeros((), dtype=torch.float64, device=got.device)
    peaks = torch.zeros(len(pairs), dtype=torch.int64, device=got.device)
    for number, (here, there) in enumerate(pairs):
        kernels["errors"]((_BLOCKS, 1, 1), (_THREADS, 1, 1), [here, there, here.numel(), size, squares, peaks[number]])
    ratios = (peaks >> 32).to(torch.int32).view(torch.float32).double()
    sums = torch.cat([squares.reshape(1), ratios]).tolist()
    places = [0xFFFFFFFF - (peak & 0xFFFFFFFF) for peak in peaks.tolist()]
    # NaN does not compare: it comes first.
    first = max(range(len(pairs)), key=lambda number: (sums[1 + number] != sums[1 + number], sums[1 + number], -number))
    return sums[0], sums[1 + first], first * _PIECE + places[first]
