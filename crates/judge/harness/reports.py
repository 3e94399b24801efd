"""What the supervisor is told of a comparison (PROTOCOL.md, `check`)."""

from __future__ import annotations

import math
from typing import Any

import torch

import values
from compare import LeafAnswer, LeafReport


def number(value: float) -> float | str:
    """JSON has no infinity and no NaN: they travel as text."""
    return value if math.isfinite(value) else repr(value)


def empty_report(answers: list[LeafAnswer]) -> dict[str, Any]:
    eager = [answer.eager.rms for answer in answers if answer.eager]
    tf32 = [answer.tf32.rms for answer in answers if answer.tf32 and answer.loose]
    return {
        "structure_ok": False,
        "shape_ok": False,
        "dtype_ok": False,
        "finite_ok": False,
        "passed": False,
        "class": None,
        "share_within_tolerance": 0.0,
        "worst": None,
        "excluded": sum(answer.excluded for answer in answers),
        "candidate_error": None,
        "eager_error": number(max(eager, default=0.0)),
        "tf32_error": number(max(tf32)) if tf32 else None,
        "message": "",
    }


def worst(leaf: int, got: Any, answer: LeafAnswer, result: LeafReport) -> dict[str, Any] | None:
    if result.position is None:
        return None
    want = answer.value
    if answer.kind == "tensor":
        got, want = got.reshape(-1)[result.position].item(), want.reshape(-1)[result.position].item()
    kept = [number(float(value)) if isinstance(value, (int, float)) else str(value)[:200] for value in (got, want)]
    return {"leaf": leaf, "index": result.position, "got": kept[0], "want": kept[1]}


def place(position: int, answer: LeafAnswer) -> str:
    """Where an element is, as whoever indexes the output says it: `[3, 17] of [64, 128]`."""
    shape = list(answer.value.shape) if answer.kind == "tensor" else []
    if not shape:
        return str(position)
    indices = []
    for size in reversed(shape):
        indices.append(position % size)
        position //= size
    return f"{indices[::-1]} of {shape}"


def value_message(worst: dict[str, Any] | None, share: float, answer: LeafAnswer | None, result: LeafReport | None) -> str:
    if worst is None or answer is None or result is None:
        return "as exact as TF32 while it was timed, and as float32 before"
    text = f"output {worst['leaf']} at {place(worst['index'], answer)}: got {worst['got']}, want {worst['want']}; {share:.2%} within tolerance"
    errors, limits = result.errors, answer.loose or answer.strict
    if errors is None or limits is None or not errors.finite:
        return text
    if errors.peak <= limits.peak < math.inf and errors.rms > limits.rms:
        text += f"; no element is far off, but all together are: root mean square error {errors.rms:.1e}, {limits.rms:.1e} allowed"
    if abs(errors.slope) > limits.slope:
        text += f"; the error goes with the answer: {abs(errors.slope):.1%} of its variation is missing or too much"
    if errors.lost > limits.lost:
        text += f"; {errors.lost:.2%} of the elements are off by more than a tenth of themselves"
    return text


def structure_message(answers: list[LeafAnswer], given: dict[values.Path, values.Leaf]) -> str:
    want = [answer.kind for answer in answers][:8]
    got = [leaf.kind for leaf in given.values()][:8]
    return f"the output's structure differs: got {got}, want {want}"


def form_message(pairs: list[tuple[torch.Tensor, LeafAnswer]]) -> str:
    got = [f"{values.NAMES[value.dtype]}{list(value.shape)}" for value, _ in pairs][:8]
    want = [f"{values.NAMES[answer.dtype]}{list(answer.value.shape)}" for _, answer in pairs][:8]
    return f"shape or dtype differs: got {', '.join(got)}; want {', '.join(want)}"
