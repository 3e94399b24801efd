"""Is an answer as exact as it should be? Answers of a draw, what they allow, and the grade that another one reaches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from indices import chosen_alike, index_call, numbers_alike
from measure import (
    LOOK_SAMPLE,
    QUICK,
    TINY,
    Looks,
    Scale,
    errors_of,
    further,
    jumps,
    outliers,
    ratios,
    scale_of,
    share_within,
    shares,
)
from task import IndexCall
from tolerances import (
    FEW,
    HALF,
    Errors,
    Form,
    Limits,
    by_error,
    class_limits,
    strict_limits,
    structural_limits,
    tf32_limits,
    unknown_error,
)
from values import FLOATS, Leaf, Path, leaves

OUTLIERS_PER_JUMP, OUTLIERS_LEAST = 8, 4


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
    looks: Looks = Looks()

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


def allowed_outliers(excluded_share: float, count: int) -> int:
    """None at all for a continuous answer."""
    return math.ceil(OUTLIERS_PER_JUMP * excluded_share * count) + OUTLIERS_LEAST if excluded_share > 0 else 0


@dataclass(frozen=True)
class Terms:
    """What kind of draw an answer is of."""

    plain: bool  # the task's own distribution
    tf32_class: bool  # the machine has TF32
    all_scales: bool = False  # small elements are held to their own size
    structural: bool = False  # only asks whether an answer is computed at all
    tells_class: bool = False  # only asks whether it is computed in float32


def answer_leaves(
    runs: Runs, learnt: dict[Path, Learnt], terms: Terms, scales: dict[Path, Scale] | None = None
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
            made, known[leaf.path] = _float_answer(leaf, (truth, rounded.get(leaf.path)), before, terms, scale)
            answers.append(made)
    return answers, known


def _float_answer(
    leaf: Leaf, known: tuple[torch.Tensor | None, torch.Tensor | None], before: Learnt, terms: Terms, scale: Scale | None
) -> tuple[LeafAnswer, Learnt]:
    (exact, rounded), eager_value, dtype = known, leaf.value.contiguous(), leaf.value.dtype
    value = eager_value if exact is None else exact.double().contiguous()
    scale = scale or scale_of(value)
    # An answer that happens to be all zero under one transform is still judged by the size it has otherwise.
    scale = replace(scale, mean_abs=max(scale.mean_abs, 1e-3 * before.mean_abs))
    after = before.with_scale(scale) if terms.plain else before
    looks = Looks(slope=dtype in HALF, lost=terms.all_scales and dtype not in HALF)
    exclude, rounding = None, None
    if exact is not None:
        exclude = jumps(eager_value, value, scale)
        eager = errors_of(eager_value, value, scale, exclude, looks=looks)
        tf32 = errors_of(rounded, value, scale, exclude, looks=looks) if rounded is not None and dtype not in HALF else None
        rounding = errors_of(value.to(dtype), value, scale, exclude) if dtype in HALF else None
        share = float(exclude.double().mean()) if exclude is not None else 0.0
        after = after.with_errors(eager, tf32, share)
        if value.numel() < FEW or not eager.finite:
            eager, tf32 = after.eager, after.tf32
    else:
        eager, tf32 = before.eager or unknown_error(dtype), before.tf32
    spread = max(scale.relative_spread, after.relative_spread)
    form = Form(dtype, min(value.numel(), LOOK_SAMPLE // 2), spread, scale.relative_spread, looks.lost)
    strict = strict_limits(form, eager, rounding, tf32)
    if terms.tells_class and tf32 is not None:
        strict = class_limits(strict, tf32)
    loose = tf32_limits(strict, tf32) if tf32 is not None and terms.tf32_class else None
    if terms.structural:
        strict, loose = structural_limits(dtype, strict, loose), None
    if exact is None:  # eager is not the truth: its own error is added to what the candidate may be off
        strict, loose = strict.plus(eager), loose.plus(eager) if loose else None
    allowed = allowed_outliers(after.excluded_share, value.numel())
    made = LeafAnswer(leaf.path, leaf.kind, value, dtype, scale, strict, loose, eager, tf32, exclude, allowed, looks=looks)
    return made, after


def relaxed(answer: LeafAnswer, honest: Errors | None) -> LeafAnswer:
    """The same answer, with limits that admit work which errs as much as `honest` does."""
    if honest is None:
        return answer
    strict = answer.strict.joined(by_error(answer.dtype, honest))
    return replace(answer, strict=strict, loose=tf32_limits(strict, answer.tf32) if answer.loose else None)


def with_honest_errors(learnt: dict[Path, Learnt], honest: dict[Path, Errors]) -> dict[Path, Learnt]:
    """For later draws that have no float64 answer: what honest work errs counts like what eager does."""
    return {path: known.with_errors(honest[path], None, 0.0) if path in honest else known for path, known in learnt.items()}


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


def compare_as_if_right(candidate: torch.Tensor, answer: LeafAnswer) -> None:
    """The work of a comparison that holds: an output made before is wrong, and to say how costs a second pass."""
    if answer.scale is None:
        judge_leaf(candidate, answer)
    else:
        errors_of(candidate, answer.value, answer.scale, answer.exclude, looks=answer.looks)


def quick_numbers(candidate: torch.Tensor, answer: LeafAnswer) -> torch.Tensor | None:
    """What `quick_report` needs, without waiting for it; None where only a close look tells."""
    if answer.scale is None:
        return (candidate == answer.value).all() if answer.call is None else None
    if answer.exclude is not None or not answer.scale.finite or not 0 < answer.value.numel() <= QUICK:
        return None
    got, want = candidate.reshape(-1), answer.value.reshape(-1)
    ratio, _ = ratios(got, want, max(answer.scale.mean_abs, TINY), True)
    numbers = [torch.linalg.vector_norm(ratio), ratio.max()]
    if answer.looks != Looks():
        numbers += further(got, want, answer.scale, answer.looks)
    return torch.stack([number.double() for number in numbers])


def quick_report(answer: LeafAnswer, numbers: list[float]) -> LeafReport | None:
    """How an output compares that is right; None where it may not be, and `judge_leaf` must say how."""
    if answer.scale is None:
        return LeafReport("fp32", True, 1.0, None, None) if numbers[0] else None
    norm, peak, *more = numbers
    if not (math.isfinite(norm) and math.isfinite(peak)):
        return None
    slope, lost = shares(more) if more else (0.0, 0.0)
    errors = Errors(norm / math.sqrt(answer.value.numel()), peak, slope=slope, lost=lost)
    grade = _grade(answer, errors)
    return LeafReport(grade, True, 1.0, errors, None) if grade else None


def _grade(answer: LeafAnswer, errors: Errors) -> str | None:
    return "fp32" if answer.strict.admit(errors) else "tf32" if answer.loose and answer.loose.admit(errors) else None


def passes(candidate: Any, answer: LeafAnswer) -> bool:
    """As `judge_leaf`, but only whether, and quick where not: for answers that are expected to fail."""
    if answer.scale is None or answer.allowed:
        return judge_leaf(candidate, answer).grade is not None
    limits = answer.loose or answer.strict
    return limits.admit(errors_of(candidate, answer.value, answer.scale, answer.exclude, limits.peak, answer.looks))


def _judge_float(candidate: torch.Tensor, answer: LeafAnswer) -> LeafReport:
    exclude = answer.exclude
    errors = errors_of(candidate, answer.value, answer.scale, exclude, looks=answer.looks)
    widest = answer.loose or answer.strict
    if answer.allowed and errors.finite and errors.peak > widest.peak:
        more = outliers(candidate, answer.value, answer.scale, answer.strict.peak, answer.allowed + answer.excluded)
        if more is not None:
            exclude = more if exclude is None else more | exclude
            errors = errors_of(candidate, answer.value, answer.scale, exclude, looks=answer.looks)
    grade = _grade(answer, errors)
    if grade is not None:
        return LeafReport(grade, True, 1.0, errors, None)
    share = share_within(candidate, answer.value, answer.scale, widest.peak, exclude)
    return LeafReport(None, errors.finite, share, errors, errors.peak_at)
