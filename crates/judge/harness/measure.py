"""The error of an answer, and what is needed to judge it. Pure functions on tensors.

All errors are normalised element by element: `z = |error| / (|y| + m)` with `y` the exact answer and `m` the mean of |y|.
Large elements are thus judged relatively, small ones against the typical size, and neither an outlier nor a crowd of zeros
moves the bar for the others. Nor does what a mask put in many places, one number far larger than all else: `m` is of the rest.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

import fused
from tolerances import Errors

JUMP_SHARE, JUMP_MEDIAN = 1e-2, 1e-4
TINY = 1e-30
SCALE_SAMPLE = 1 << 22
QUICK = 1 << 25  # elements that are compared in one piece
LOST = 0.1  # an element that is off by more than this share of itself
LOOK_SAMPLE = 1 << 18
# What a mask fills in: at least this share of the elements, within this of the largest, so many times the mean of the others, and
# a number (-1e4, -1e9) that no function saturates at.
FILL_SHARE, FILL_NEARNESS, FILL_TIMES, FILL_LEAST = 1 / 64, 1 / 128, 256.0, 1e3
VISIBLE = 1e-24  # smaller ones may be lost to products that underflow on the way


@dataclass(frozen=True)
class Scale:
    """An answer's size without what a mask filled in: mean of |y|, spread about its mean, and whether all of it is finite."""

    mean_abs: float
    mean: float
    spread: float
    count: int
    finite: bool

    @property
    def relative_spread(self) -> float:
        return self.spread / self.mean_abs if self.mean_abs > 0 else 0.0


def pieces(*parts: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Flat pieces of tensors of the same shape, small enough that temporaries cost little."""
    flat = [part.reshape(-1) for part in parts]
    step = 1 << (25 if flat[0].is_cuda else 22)
    for start in range(0, flat[0].numel(), step):
        yield tuple(part[start : start + step] for part in flat)


def all_finite(tensor: torch.Tensor) -> bool:
    """One cheap pass in the usual case: a finite sum has only finite terms."""
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())


def scale_of(answer: torch.Tensor) -> Scale:
    """Sizes over the finite elements, in float64; a few million of them where there are more."""
    flat = answer.reshape(-1)
    sample, finite = _sample_of(flat), all_finite(flat)
    if not finite:
        sample = sample[sample.isfinite()]
    if sample.numel() == 0:
        return Scale(0.0, 0.0, 0.0, 0, finite)
    mean_abs, mean, spread = sizes(sample).tolist()
    return Scale(mean_abs, mean, spread, sample.numel(), finite)


def sizes(sample: torch.Tensor) -> torch.Tensor:
    """Mean of the absolute, mean and spread of numbers in float64, apart from what a mask filled in; without waiting for a GPU."""
    size = sample.abs()
    largest = size.max()
    whole_spread, whole_mean = torch.std_mean(sample, correction=0)
    whole = torch.stack([size.mean(), whole_mean, whole_spread])
    if not sample.is_cuda and not largest >= FILL_LEAST:
        return whole
    rest = size < (1 - FILL_NEARNESS) * largest
    count = rest.sum()
    mean_abs, mean = (torch.where(rest, part, 0).sum() / count.clamp(min=1) for part in (size, sample))
    spread = torch.where(rest, sample - mean, 0).square().sum().div(count.clamp(min=1)).sqrt()
    common, far = sample.numel() - count >= FILL_SHARE * sample.numel(), largest >= (FILL_TIMES * mean_abs).clamp(min=FILL_LEAST)
    filled = common & far & (mean_abs > 0)
    return torch.where(filled, torch.stack([mean_abs, mean, spread]), whole)


def scale_numbers(answer: torch.Tensor) -> torch.Tensor:
    """What `scale_from` needs of an answer, without waiting for it: for answers that are finite, as they nearly always are."""
    flat = answer.reshape(-1)
    if flat.numel() == 0:
        return torch.zeros(4, dtype=torch.float64, device=answer.device)
    sample = _sample_of(flat)
    return torch.cat([flat.sum().isfinite().double().reshape(1), sizes(sample)])


def scale_from(answer: torch.Tensor, numbers: list[float]) -> Scale:
    finite, mean_abs, mean, spread = numbers
    if not finite:  # empty, not finite, or a sum too large for its type
        return scale_of(answer)
    return Scale(mean_abs, mean, spread, _sample_of(answer.reshape(-1)).numel(), True)


def _sample_of(flat: torch.Tensor) -> torch.Tensor:
    """In float64; a few million where there are more."""
    step = flat.numel() // SCALE_SAMPLE
    step += step % 2 == 0  # odd: not in step with rows and channels
    return flat[::step].double()


@dataclass(frozen=True)
class Looks:
    """What is asked of an error besides its size."""

    slope: bool = False
    lost: bool = False


def errors_of(
    candidate: torch.Tensor, answer: torch.Tensor, scale: Scale, exclude: torch.Tensor | None = None, enough: float = math.inf,
    looks: Looks = Looks(),
) -> Errors:  # fmt: skip
    """Normalised errors against `answer`; elements under `exclude` are left out, but must be as finite as the answer.

    Stops looking once the peak is above `enough`.
    """
    if answer.numel() == 0:
        return Errors(0.0, 0.0)
    size = max(scale.mean_abs, TINY)
    in_one_pass = fused.errors(candidate, answer, size) if exclude is None and scale.finite else None
    if in_one_pass is not None:
        squares, peak, peak_at = in_one_pass
        more = torch.stack([number.double() for number in further(candidate.reshape(-1), answer.reshape(-1), scale, looks)]).tolist()
        return _errors((squares, *more), peak, peak_at, candidate.numel(), True)
    sums, peak, peak_at, count, start, finite = [0.0] * 5, -1.0, 0, 0, 0, True
    parts = (candidate, answer) if exclude is None else (candidate, answer, exclude)
    for got, want, *skip in pieces(*parts):
        ratio, same = ratios(got, want, size, scale.finite)
        finite &= same
        if skip:
            ratio = ratio.masked_fill(skip[0], 0)
        numbers = [torch.linalg.vector_norm(ratio), ratio.max(), *further(got, want, scale, looks, *skip)]
        norm, top, *more = torch.stack([number.double() for number in numbers]).tolist()
        sums = [total + part for total, part in zip(sums, (norm * norm, *more))]
        if not top <= peak and not math.isnan(peak):  # NaN is the worst of all
            peak, peak_at = top, start + int(ratio.argmax())
        start += got.numel()
        count += got.numel() - (int(skip[0].sum()) if skip else 0)
        if not peak <= enough:
            break
    return _errors(sums, peak, peak_at, count, finite)


def _errors(sums: Sequence[float], peak: float, peak_at: int, count: int, finite: bool) -> Errors:
    """`sums`: of squares, then what `shares` needs."""
    rms = math.sqrt(sums[0] / max(count, 1)) if math.isfinite(sums[0]) else math.inf
    slope, lost = shares(list(sums[1:]))
    found = math.isfinite(peak)
    return Errors(rms, max(peak, 0.0) if found else math.inf, peak_at, finite and found, slope, lost)


def further(
    got: torch.Tensor, want: torch.Tensor, scale: Scale, looks: Looks, exclude: torch.Tensor | None = None
) -> list[torch.Tensor]:
    """The sums that `shares` needs, over a random part of many elements; zeros where they are not asked for. Elements that are
    not finite are another check's."""
    zero = torch.zeros((), device=want.device, dtype=torch.float64)
    if not (looks.slope or looks.lost) or not scale.finite:
        return [zero] * 4
    start, step = 0, 1
    if want.numel() > LOOK_SAMPLE:
        step = random.randrange(want.numel() // LOOK_SAMPLE, 2 * want.numel() // LOOK_SAMPLE)
        start = random.randrange(step)
    got, want = got[start::step].float(), want[start::step].float()
    error = got - want
    if exclude is not None:
        error = error.masked_fill(exclude[start::step], 0)
    sums = [zero] * 4
    if looks.slope:
        away = want - scale.mean
        sums[0], sums[1] = (error * away).sum(dtype=torch.float64), (away * away).sum(dtype=torch.float64)
    if looks.lost:
        size = want.abs()
        visible = size >= VISIBLE
        sums[2], sums[3] = ((error.abs_() > LOST * size) & visible).sum(), visible.sum()
    return sums


def shares(sums: list[float]) -> tuple[float, float]:
    """Slope and lost share; a sum that is not finite is another check's."""
    along, squares, lost, visible = sums
    slope = along / squares if squares > 0 and math.isfinite(along) else 0.0
    return slope, lost / visible if visible > 0 else 0.0


def ratios(got: torch.Tensor, want: torch.Tensor, size: float, all_finite: bool) -> tuple[torch.Tensor, bool]:
    """z of a piece, and whether the non-finite elements are the same ones. Where all should be finite, z itself tells."""
    want = want.float() if want.dtype.itemsize < 4 else want
    error = (got.to(want.dtype) - want).abs_()
    ratio = error.div_(want.abs().add_(size))
    if all_finite:
        return ratio, True
    odd = ~want.isfinite()
    same = (want == got.to(want.dtype)) | (want.isnan() & got.isnan())
    alike = bool(torch.where(odd, same, got.isfinite()).all())
    return ratio.masked_fill_(odd, 0), alike


def share_within(candidate: torch.Tensor, answer: torch.Tensor, scale: Scale, limit: float, exclude: torch.Tensor | None) -> float:
    """Share of elements whose z is within `limit`; not a number is not within."""
    if answer.numel() == 0:
        return 1.0
    within = 0
    parts = (candidate, answer) if exclude is None else (candidate, answer, exclude)
    for got, want, *skip in pieces(*parts):
        ratio, _ = ratios(got, want, max(scale.mean_abs, TINY), scale.finite)
        good = ratio <= limit
        within += int((good | skip[0]).sum() if skip else good.sum())
    return within / answer.numel()


def jumps(eager: torch.Tensor, exact: torch.Tensor, scale: Scale) -> torch.Tensor | None:
    """Where rounding alone carries float32 over a discontinuity: far off, while half of all elements are very near."""
    if exact.numel() < 2 or scale.spread == 0:
        return None
    far, medians = [], []
    for got, want in pieces(eager, exact):
        error = (got.double() - want).abs_().nan_to_num_(0.0, 0.0)
        far.append(error > JUMP_SHARE * scale.spread)
        medians.append(error[:: max(1, error.numel() // 65536)].median())
    if not any(bool(part.any()) for part in far):
        return None
    typical = float(torch.stack(medians).median())
    return torch.cat(far).reshape(exact.shape) if typical < JUMP_MEDIAN * scale.spread else None


def outliers(candidate: torch.Tensor, answer: torch.Tensor, scale: Scale, limit: float, allowed: int) -> torch.Tensor | None:
    """A discontinuous answer's elements that the candidate may have rounded over the edge, if no more than `allowed`."""
    size = max(scale.mean_abs, TINY)
    ratio = (candidate.double() - answer.double()).abs_().div_(answer.double().abs().add_(size))
    far = ~(ratio <= limit) & candidate.isfinite()
    return far if int(far.sum()) <= allowed else None
