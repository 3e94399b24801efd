"""Is an answer as exact as it should be? Pure functions on tensors.

All errors are normalised element by element: `z = |error| / (|y| + m)` with `y` the exact answer and `m` the mean of |y|.
Large elements are thus judged relatively, small ones against the typical size, and neither an outlier nor a crowd of zeros
moves the bar for the others. A limit on z is a multiple of eager's own error, never below what a plain sequential
implementation in the same dtype needs, and never so wide that it reaches a noticeable part of the answer's spread: a
softmax over many entries must refuse zeros and the mean, a sum of positive numbers must not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from task import IndexCall
from values import FLOATS, Leaf, Path, leaves

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
# Below this many eps nothing in the dtype itself can be told apart; half types are summed in float32 everywhere.
LEAST_EPS = 2.0
LEAST_EPS_HALF = 1.0
# Rounding the terms of a sum to bfloat16 moves it by 1.5e-3 of its spread, whatever the number of terms.
SPREAD_SHARE = 1e-3
JUMP_SHARE, JUMP_MEDIAN = 1e-2, 1e-4
INDEX_EPS = 64.0
OUTLIERS_PER_JUMP, OUTLIERS_LEAST = 8, 4
TINY = 1e-30
SCALE_SAMPLE = 1 << 22
FEW = 1024  # fewer elements than this say little about eager's typical error: earlier draws help out
UNKNOWN_EPS = 2.0
QUICK = 1 << 25  # elements that are compared in one piece


@dataclass(frozen=True)
class Scale:
    """An answer's size: mean of |y|, spread about its mean, and whether all of it is finite."""

    mean_abs: float
    mean: float
    spread: float
    count: int
    finite: bool

    @property
    def relative_spread(self) -> float:
        return self.spread / self.mean_abs if self.mean_abs > 0 else 0.0


@dataclass(frozen=True)
class Errors:
    """Normalised errors of one tensor; `peak_at` is a row-major position."""

    rms: float
    peak: float
    peak_at: int = 0
    finite: bool = True

    def joined(self, other: Errors | None) -> Errors:
        """The worse of both: what was seen so far."""
        if other is None:
            return self
        return Errors(max(self.rms, other.rms), max(self.peak, other.peak))


@dataclass(frozen=True)
class Limits:
    rms: float
    peak: float

    def admit(self, errors: Errors) -> bool:
        return errors.finite and errors.rms <= self.rms and errors.peak <= self.peak

    def plus(self, errors: Errors) -> Limits:
        """For a comparison with an answer that has these errors itself."""
        return Limits(self.rms + errors.rms, self.peak + errors.peak)


# ---- measuring -------------------------------------------------------------------------------------------------------


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
    spread, mean = torch.std_mean(sample, correction=0)
    return Scale(float(sample.abs().mean()), float(mean), float(spread), sample.numel(), finite)


def scale_numbers(answer: torch.Tensor) -> torch.Tensor:
    """What `scale_from` needs of an answer, without waiting for it: for answers that are finite, as they nearly always are."""
    flat = answer.reshape(-1)
    if flat.numel() == 0:
        return torch.zeros(4, dtype=torch.float64, device=answer.device)
    sample = _sample_of(flat)
    spread, mean = torch.std_mean(sample, correction=0)
    return torch.stack([flat.sum().isfinite().double(), sample.abs().mean(), mean, spread])


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


def errors_of(
    candidate: torch.Tensor, answer: torch.Tensor, scale: Scale, exclude: torch.Tensor | None = None, enough: float = math.inf
) -> Errors:
    """Normalised errors against `answer`; elements under `exclude` are left out, but must be as finite as the answer.

    Stops looking once the peak is above `enough`.
    """
    if answer.numel() == 0:
        return Errors(0.0, 0.0)
    size = max(scale.mean_abs, TINY)
    squares, peak, peak_at, count, start, finite = 0.0, -1.0, 0, 0, 0, True
    parts = (candidate, answer) if exclude is None else (candidate, answer, exclude)
    for got, want, *skip in pieces(*parts):
        ratio, same = _ratios(got, want, size, scale.finite)
        finite &= same
        if skip:
            ratio = ratio.masked_fill(skip[0], 0)
        norm, top = torch.stack([torch.linalg.vector_norm(ratio), ratio.max()]).tolist()
        squares += norm * norm
        if not top <= peak and not math.isnan(peak):  # NaN is the worst of all
            peak, peak_at = top, start + int(ratio.argmax())
        start += got.numel()
        count += got.numel() - (int(skip[0].sum()) if skip else 0)
        if not peak <= enough:
            break
    finite &= math.isfinite(peak)
    rms = math.sqrt(squares / max(count, 1)) if math.isfinite(squares) else math.inf
    return Errors(rms, max(peak, 0.0) if math.isfinite(peak) else math.inf, peak_at, finite)


def _ratios(got: torch.Tensor, want: torch.Tensor, size: float, all_finite: bool) -> tuple[torch.Tensor, bool]:
    """z of a piece, and whether the non-finite elements are the same ones. Where all should be finite, z itself tells."""
    if want.dtype in (torch.float16, torch.bfloat16):
        want = want.float()
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
        ratio, _ = _ratios(got, want, max(scale.mean_abs, TINY), scale.finite)
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


# ---- limits ----------------------------------------------------------------------------------------------------------


def fp32_limits(dtype: torch.dtype, eager: Errors, tf32: Errors | None, relative_spread: float) -> Limits:
    """What an answer in the task's own precision may be off. `tf32` is the error that must not pass, where known."""
    eps = torch.finfo(dtype).eps
    least = (LEAST_EPS_HALF if dtype in (torch.float16, torch.bfloat16) else LEAST_EPS) * eps
    floor = min(FLOOR_EPS * eps, SPREAD_SHARE * relative_spread)
    if tf32 is not None and tf32.rms > TF32_TELLS * eps:
        floor = min(floor, TF32_SHARE * tf32.rms)
    floor = max(floor, least)
    rms = min(EAGER_RMS * eager.rms, max(EAGER_RMS * EAGER_POOR * eps, EAGER_POOR_RMS * eager.rms))
    peak = min(EAGER_PEAK * eager.peak, max(EAGER_PEAK * PEAK_OVER_RMS * EAGER_POOR * eps, EAGER_POOR_PEAK * eager.peak))
    return Limits(max(rms, floor), max(peak, FLOOR_PEAK_OVER_RMS * floor))


def tf32_limits(strict: Limits, tf32: Errors) -> Limits:
    return Limits(max(strict.rms, TF32_RMS * tf32.rms), max(strict.peak, TF32_PEAK * tf32.peak))


def allowed_outliers(excluded_share: float, count: int) -> int:
    """None at all for a continuous answer."""
    return math.ceil(OUTLIERS_PER_JUMP * excluded_share * count) + OUTLIERS_LEAST if excluded_share > 0 else 0


# ---- integers --------------------------------------------------------------------------------------------------------


def chosen_alike(candidate: torch.Tensor, answer: torch.Tensor, call: IndexCall) -> torch.Tensor:
    """Per element: do both indices choose the same value of the source, up to rounding? Ties are then no mistake."""
    source = call.source
    got, want = candidate.to(torch.int64).reshape(call.indices.shape), answer.to(torch.int64).reshape(call.indices.shape)
    if call.dims:
        source = source.flatten(-call.dims)
        got, want = got.flatten(-call.dims), want.flatten(-call.dims)
        axis = source.dim() - 1
    elif call.dim is None:
        source, got, want, axis = source.reshape(-1), got.reshape(-1), want.reshape(-1), 0
    else:
        axis = call.dim % max(source.dim(), 1)
        if got.dim() < source.dim():
            got, want = got.unsqueeze(axis), want.unsqueeze(axis)
    if source.dim() == 0:
        return candidate == answer
    room = source.shape[axis]
    inside = (got >= 0) & (got < room)
    values = source.gather(axis, got.clamp(0, room - 1)).double()
    reference = source.gather(axis, want).double()
    near = torch.ones_like(inside)
    if source.dtype in FLOATS.values():
        size = float(source.double().abs().nan_to_num(0.0, 0.0, 0.0).mean()) if source.numel() <= 1 << 24 else float(reference.abs().mean())
        near = (values - reference).abs() <= INDEX_EPS * torch.finfo(source.dtype).eps * (reference.abs() + size)
    near |= (values == reference) | (values.isnan() & reference.isnan())
    good = inside & near
    if call.distinct:
        good &= _distinct(got, axis)
    return good.reshape(answer.shape)


def _distinct(indices: torch.Tensor, axis: int) -> torch.Tensor:
    """False along every line that names an element twice."""
    ordered = indices.sort(dim=axis).values
    twice = (ordered.diff(dim=axis) == 0).any(dim=axis, keepdim=True)
    return (~twice).expand_as(indices)


def index_call(answer: torch.Tensor, calls: list[IndexCall]) -> IndexCall | None:
    """The recorded call whose indices this output is."""
    for call in reversed(calls):
        if call.indices.numel() != answer.numel() or not call.intact:
            continue
        if call.indices.data_ptr() == answer.data_ptr() or bool((call.indices.reshape(-1) == answer.reshape(-1)).all()):
            return call
    return None


def numbers_alike(candidate: Any, answer: Any) -> bool:
    """Python numbers: floats as float32 answers are, everything else exactly."""
    if type(candidate) is not type(answer):
        return False
    if type(answer) is not float:
        return candidate == answer
    if math.isnan(answer) or math.isinf(answer):
        return candidate == answer or (math.isnan(answer) and math.isnan(candidate))
    return abs(candidate - answer) <= PEAK_OVER_RMS * FLOOR_EPS * torch.finfo(torch.float32).eps * abs(answer)


# ---- answers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Learnt:
    """What the exact draws of one output have shown so far: serves draws that have no float64 answer."""

    eager: Errors | None = None
    tf32: Errors | None = None
    excluded_share: float = 0.0
    finite: bool = True
    count: int = 0
    mean: float = 0.0
    mean_abs: float = 0.0
    squares: float = 0.0  # sum of squared distances from `mean`, over plain draws

    def with_scale(self, scale: Scale) -> Learnt:
        """Pools a plain draw's elements with those before (Chan's update)."""
        count = self.count + scale.count
        if count == 0:
            return self
        shift = scale.mean - self.mean
        squares = self.squares + scale.spread**2 * scale.count + shift * shift * self.count * scale.count / count
        mean = self.mean + shift * scale.count / count
        mean_abs = self.mean_abs + (scale.mean_abs - self.mean_abs) * scale.count / count
        finite = self.finite and scale.finite
        return replace(self, finite=finite, count=count, mean=mean, mean_abs=mean_abs, squares=squares)

    def with_errors(self, eager: Errors, tf32: Errors | None, excluded_share: float) -> Learnt:
        worse = tf32.joined(self.tf32) if tf32 is not None else self.tf32
        share = max(self.excluded_share, excluded_share)
        return replace(self, eager=eager.joined(self.eager), tf32=worse, excluded_share=share)

    @property
    def relative_spread(self) -> float:
        return math.sqrt(self.squares / self.count) / self.mean_abs if self.count and self.mean_abs > 0 else 0.0


@dataclass(frozen=True)
class LeafAnswer:
    """One output's answer with everything needed to judge another one against it."""

    path: Path
    kind: str
    value: Any
    dtype: torch.dtype | None = None
    scale: Scale | None = None
    strict: Limits | None = None
    loose: Limits | None = None  # the TF32 class, where there is one
    eager: Errors | None = None
    tf32: Errors | None = None
    exclude: torch.Tensor | None = None
    allowed: int = 0
    call: IndexCall | None = None

    @property
    def excluded(self) -> int:
        return 0 if self.exclude is None else int(self.exclude.sum())


@dataclass(frozen=True)
class Runs:
    """One draw's answers: eager always, the others where they were asked for and could be had."""

    eager: Any
    exact: Any | None
    tf32: Any | None
    calls: list[IndexCall]


def answer_leaves(
    runs: Runs, learnt: dict[Path, Learnt], plain: bool, tf32_class: bool, scales: dict[Path, Scale] | None = None
) -> tuple[list[LeafAnswer], dict[Path, Learnt]]:
    """The answers of one draw, and what is known after it. `scales` are eager's, where they were taken already."""
    exact = {leaf.path: leaf.value for leaf in leaves(runs.exact)} if runs.exact is not None else {}
    rounded = {leaf.path: leaf.value for leaf in leaves(runs.tf32)} if runs.tf32 is not None else {}
    answers, known = [], dict(learnt)
    for leaf in leaves(runs.eager):
        if leaf.kind != "tensor":
            answers.append(LeafAnswer(leaf.path, leaf.kind, leaf.value))
        elif leaf.value.dtype not in FLOATS.values():
            call = index_call(leaf.value, runs.calls) if leaf.value.dtype != torch.bool else None
            answers.append(LeafAnswer(leaf.path, leaf.kind, leaf.value.contiguous(), leaf.value.dtype, call=call))
        else:
            before = known.get(leaf.path, Learnt())
            truth = exact.get(leaf.path)
            scale = scales[leaf.path] if scales is not None and truth is None else None
            made, after = _float_answer(leaf, truth, rounded.get(leaf.path), before, plain, tf32_class, scale)
            answers.append(made)
            known[leaf.path] = after
    return answers, known


def _float_answer(
    leaf: Leaf, exact: torch.Tensor | None, rounded: torch.Tensor | None, before: Learnt, plain: bool, tf32_class: bool,
    scale: Scale | None = None,
) -> tuple[LeafAnswer, Learnt]:  # fmt: skip
    eager_value, dtype = leaf.value.contiguous(), leaf.value.dtype
    value = eager_value if exact is None else exact.double().contiguous()
    scale = scale or scale_of(value)
    # An answer that happens to be all zero under one transform is still judged by the size it has otherwise.
    scale = replace(scale, mean_abs=max(scale.mean_abs, 1e-3 * before.mean_abs))
    after = before.with_scale(scale) if plain else before
    exclude = jumps(eager_value, value, scale) if exact is not None else None
    if exact is not None:
        eager = errors_of(eager_value, value, scale, exclude)
        tf32 = errors_of(rounded, value, scale, exclude) if rounded is not None else None
        share = float(exclude.double().mean()) if exclude is not None else 0.0
        after = after.with_errors(eager, tf32, share)
        if value.numel() < FEW or not eager.finite:
            eager, tf32 = after.eager, after.tf32
    else:
        eager = before.eager or Errors(UNKNOWN_EPS * torch.finfo(dtype).eps, 4 * UNKNOWN_EPS * torch.finfo(dtype).eps)
        tf32 = before.tf32
    strict = fp32_limits(dtype, eager, tf32, max(scale.relative_spread, after.relative_spread))
    loose = tf32_limits(strict, tf32) if tf32 is not None and tf32_class else None
    if exact is None:  # eager is not the truth: its own error is added to what the candidate may be off
        strict, loose = strict.plus(eager), loose.plus(eager) if loose else None
    allowed = allowed_outliers(after.excluded_share, value.numel())
    made = LeafAnswer(leaf.path, leaf.kind, value, dtype, scale, strict, loose, eager, tf32, exclude, allowed)
    return made, after


@dataclass(frozen=True)
class LeafReport:
    """How one output compares. `grade` is the class it reaches, None if none."""

    grade: str | None
    finite: bool
    share: float
    errors: Errors | None
    position: int | None


def judge_leaf(candidate: Any, answer: LeafAnswer) -> LeafReport:
    """Shape and dtype are the same already."""
    if answer.kind != "tensor":
        alike = numbers_alike(candidate, answer.value)
        return LeafReport("fp32" if alike else None, True, float(alike), None, None if alike else 0)
    if answer.scale is None:
        call = answer.call
        good = chosen_alike(candidate, answer.value, call) if call is not None else candidate == answer.value
        if bool(good.all()):
            return LeafReport("fp32", True, 1.0, None, None)
        return LeafReport(None, True, float(good.double().mean()), None, int((~good).reshape(-1).int().argmax()))
    return _judge_float(candidate, answer)


def quick_numbers(candidate: torch.Tensor, answer: LeafAnswer) -> torch.Tensor | None:
    """What `quick_report` needs, without waiting for it; None where only a close look tells."""
    if answer.scale is None:
        return (candidate == answer.value).all() if answer.call is None else None
    if answer.exclude is not None or not answer.scale.finite or not 0 < answer.value.numel() <= QUICK:
        return None
    ratio, _ = _ratios(candidate.reshape(-1), answer.value.reshape(-1), max(answer.scale.mean_abs, TINY), True)
    return torch.stack([torch.linalg.vector_norm(ratio), ratio.max()])


def quick_report(answer: LeafAnswer, numbers: list[float]) -> LeafReport | None:
    """How an output compares that is right; None where it may not be, and `judge_leaf` must say how."""
    if answer.scale is None:
        return LeafReport("fp32", True, 1.0, None, None) if numbers[0] else None
    norm, peak = numbers
    if not (math.isfinite(norm) and math.isfinite(peak)):
        return None
    errors = Errors(norm / math.sqrt(answer.value.numel()), peak)
    grade = _grade(answer, errors)
    return LeafReport(grade, True, 1.0, errors, None) if grade else None


def _grade(answer: LeafAnswer, errors: Errors) -> str | None:
    return "fp32" if answer.strict.admit(errors) else "tf32" if answer.loose and answer.loose.admit(errors) else None


def passes(candidate: Any, answer: LeafAnswer) -> bool:
    """As `judge_leaf`, but only whether, and quick where not: for answers that are expected to fail."""
    if answer.scale is None or answer.allowed:
        return judge_leaf(candidate, answer).grade is not None
    limits = answer.loose or answer.strict
    return limits.admit(errors_of(candidate, answer.value, answer.scale, answer.exclude, enough=limits.peak))


def _judge_float(candidate: torch.Tensor, answer: LeafAnswer) -> LeafReport:
    exclude = answer.exclude
    errors = errors_of(candidate, answer.value, answer.scale, exclude)
    widest = answer.loose or answer.strict
    if answer.allowed and errors.finite and errors.peak > widest.peak:
        more = outliers(candidate, answer.value, answer.scale, answer.strict.peak, answer.allowed + answer.excluded)
        if more is not None:
            exclude = more if exclude is None else more | exclude
            errors = errors_of(candidate, answer.value, answer.scale, exclude)
    grade = _grade(answer, errors)
    if grade is not None:
        return LeafReport(grade, True, 1.0, errors, None)
    share = share_within(candidate, answer.value, answer.scale, widest.peak, exclude)
    return LeafReport(None, errors.finite, share, errors, errors.peak_at)
