"""How far an answer may be off. Pure arithmetic on errors that were measured.

A limit is a multiple of eager's own error, never below what a plain sequential implementation in the same dtype needs, and
never so wide that it reaches a noticeable part of the answer's spread: a softmax over many entries must refuse zeros and the
mean, a sum of positive numbers must not. Half types are held to what rounding the answer once costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

EAGER_RMS, EAGER_PEAK = 8.0, 16.0
# Where eager itself is far off (a float32 norm over millions on the CPU), eight times that would admit anything.
EAGER_POOR, EAGER_POOR_RMS, EAGER_POOR_PEAK = 32.0, 3.0, 4.0
# Operand rounding, not order of summation, makes TF32's error: an honest kernel is close to eager's, while bfloat16
# operands, with three bits less, are eight times off. Three lies between.
TF32_RMS, TF32_PEAK = 3.0, 4.0
# Measured, in eps of z: a sequential float32 sum of 16,384 terms 7 (all positive) to 11 (random signs), an exponential
# that is 20 ulp off 4. Its peak over ten million elements is about nine times its rms.
FLOOR_EPS = 16.0
PEAK_OVER_RMS = 8.0
# One sum in a thousand that adds 8,192 numbers one after the other is off by 200 eps: careless, not low precision.
FLOOR_PEAK_OVER_RMS = 32.0
# Measured for a GEMM of positive numbers, K = 16,384: sequential 7.1, TF32 11.2. Elsewhere they are far apart.
TF32_SHARE = 0.75
# Where TF32 moves the answer less than summing in order does, it is float32 as far as anyone can tell.
TF32_TELLS = 10.0
# Where sums cancel TF32 is a thousand times off, and careless summing in order ten times: anything between is float32.
CLASS_SHARE = 0.25
# Below this many eps nothing in the dtype itself can be told apart.
LEAST_EPS = 2.0
# Rounding the terms of a sum to bfloat16 moves it by 1.5e-3 of its spread, whatever the number of terms.
SPREAD_SHARE = 1e-3
UNKNOWN_EPS = 2.0
FEW = 1024  # fewer elements than this say little about eager's typical error: earlier draws help out

# Half types are summed in float32 everywhere, so rounding is all that an honest answer errs. Rounding twice as much (a bias or
# an activation after the sum was rounded) makes 1.4 times the error, four times makes twice.
HALF = frozenset((torch.float16, torch.bfloat16))
HALF_RMS, HALF_PEAK = 2.0, 4.0
HALF_LEAST_RMS, HALF_LEAST_PEAK, HALF_FEW_RMS = 0.05, 0.25, 0.25  # eps; an answer that is exact for once proves nothing
HALF_UNKNOWN_EPS = 0.25
# The share of an answer's variation that may be missing. Rounding has next to none in common with the answer; leaving out what
# a matrix product is besides its row and column sums costs 0.14, however long the sums.
SLOPE, SLOPE_EAGER, SLOPE_NOISE = 0.02, 4.0, 6.0
# Elements that are off by more than a tenth of themselves, where eager has none.
LOST_SHARE, LOST_EAGER = 1e-3, 4.0
# What a draw that only asks for structure may be off more.
STRUCTURAL_TIMES, STRUCTURAL_TIMES_HALF = 16.0, 2.0


@dataclass(frozen=True)
class Errors:
    """Normalised errors of one tensor; `peak_at` is a row-major position.

    `slope` is how the error goes with the answer's deviation from its mean (-1: nothing of its variation is there), `lost` the
    share of elements that are off by a good part of themselves. Both are 0 where nobody asked.
    """

    rms: float
    peak: float
    peak_at: int = 0
    finite: bool = True
    slope: float = 0.0
    lost: float = 0.0

    def joined(self, other: Errors | None) -> Errors:
        """The worse of both: what was seen so far."""
        if other is None:
            return self
        slope = max(abs(self.slope), abs(other.slope))
        return Errors(max(self.rms, other.rms), max(self.peak, other.peak), slope=slope, lost=max(self.lost, other.lost))


@dataclass(frozen=True)
class Limits:
    rms: float
    peak: float
    slope: float = math.inf
    lost: float = math.inf

    def admit(self, errors: Errors) -> bool:
        return (
            errors.finite and errors.rms <= self.rms and errors.peak <= self.peak
            and abs(errors.slope) <= self.slope and errors.lost <= self.lost
        )  # fmt: skip

    def plus(self, errors: Errors) -> Limits:
        """For a comparison with an answer that has these errors itself."""
        return Limits(self.rms + errors.rms, self.peak + errors.peak, self.slope + abs(errors.slope), self.lost)

    def times(self, factor: float) -> Limits:
        return Limits(self.rms * factor, self.peak * factor, self.slope, self.lost)

    def joined(self, other: Limits) -> Limits:
        """The wider of both."""
        return Limits(
            max(self.rms, other.rms), max(self.peak, other.peak), max(self.slope, other.slope), max(self.lost, other.lost)
        )


@dataclass(frozen=True)
class Form:
    """What a limit depends on besides errors."""

    dtype: torch.dtype
    count: int
    relative_spread: float  # over draws
    drawn_spread: float  # in this one
    all_scales: bool  # small elements are held to their own size


def strict_limits(form: Form, eager: Errors, rounding: Errors | None, tf32: Errors | None) -> Limits:
    """What an answer in the task's own precision may be off. `rounding` is the error of the exact answer rounded to its dtype,
    `tf32` the error that must not pass, each where known."""
    lost = max(LOST_SHARE, LOST_EAGER * eager.lost) if form.all_scales else math.inf
    if form.dtype in HALF:
        limits = _half_limits(form, eager.joined(rounding))
    else:
        limits = _float_limits(form, eager, tf32)
    return Limits(limits.rms, limits.peak, _slope_limit(form, eager, limits.rms), lost)


def _float_limits(form: Form, eager: Errors, tf32: Errors | None) -> Limits:
    eps = torch.finfo(form.dtype).eps
    floor = min(FLOOR_EPS * eps, SPREAD_SHARE * form.relative_spread)
    if tf32 is not None and tf32.rms > TF32_TELLS * eps:
        floor = min(floor, TF32_SHARE * tf32.rms)
    floor = max(floor, LEAST_EPS * eps)
    known = by_error(form.dtype, eager)
    return Limits(max(known.rms, floor), max(known.peak, FLOOR_PEAK_OVER_RMS * floor))


def by_error(dtype: torch.dtype, honest: Errors) -> Limits:
    """What errors that honest work makes allow, floors aside."""
    if dtype in HALF:
        return Limits(HALF_RMS * honest.rms, HALF_PEAK * honest.peak, SLOPE_EAGER * abs(honest.slope), LOST_EAGER * honest.lost)
    eps = torch.finfo(dtype).eps
    rms = min(EAGER_RMS * honest.rms, max(EAGER_RMS * EAGER_POOR * eps, EAGER_POOR_RMS * honest.rms))
    peak = min(EAGER_PEAK * honest.peak, max(EAGER_PEAK * PEAK_OVER_RMS * EAGER_POOR * eps, EAGER_POOR_PEAK * honest.peak))
    return Limits(rms, peak, SLOPE_EAGER * abs(honest.slope), LOST_EAGER * honest.lost)


def _half_limits(form: Form, honest: Errors) -> Limits:
    eps = torch.finfo(form.dtype).eps
    rms = max(honest.rms, (HALF_LEAST_RMS if form.count >= FEW else HALF_FEW_RMS) * eps)
    return Limits(HALF_RMS * rms, HALF_PEAK * max(honest.peak, HALF_LEAST_PEAK * eps))


def _slope_limit(form: Form, eager: Errors, rms: float) -> float:
    """Errors that have nothing to do with the answer still go with it a little, the more the fewer elements there are."""
    if form.drawn_spread == 0 or form.count == 0:
        return math.inf
    chance = 2 * rms / (form.drawn_spread * math.sqrt(form.count))
    return SLOPE + SLOPE_EAGER * abs(eager.slope) + SLOPE_NOISE * chance


def tf32_limits(strict: Limits, tf32: Errors) -> Limits:
    wide = Limits(TF32_RMS * tf32.rms, TF32_PEAK * tf32.peak)
    # Elements that are a small rest of large terms are lost in TF32, whoever computes them.
    lost = max(strict.lost, LOST_EAGER * tf32.lost)
    return Limits(max(strict.rms, wide.rms), max(strict.peak, wide.peak), strict.slope, lost)


def class_limits(strict: Limits, tf32: Errors) -> Limits:
    """For draws that only tell TF32 from float32: what is several times as exact as TF32 is float32."""
    wide = Limits(CLASS_SHARE * tf32.rms, CLASS_SHARE * tf32.peak)
    return Limits(max(strict.rms, wide.rms), max(strict.peak, wide.peak), strict.slope, strict.lost)


def structural_limits(dtype: torch.dtype, strict: Limits, loose: Limits | None) -> Limits:
    """For draws that ask only whether an answer is computed at all."""
    wide = strict.times(STRUCTURAL_TIMES_HALF if dtype in HALF else STRUCTURAL_TIMES)
    return wide if loose is None else wide.joined(loose)


def unknown_error(dtype: torch.dtype) -> Errors:
    """Eager's, where no float64 answer was ever had."""
    eps = (HALF_UNKNOWN_EPS if dtype in HALF else UNKNOWN_EPS) * torch.finfo(dtype).eps
    return Errors(eps, 4 * eps)
