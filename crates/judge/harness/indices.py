"""Outputs that are not floats: integers that may choose elements, and Python's own numbers. Pure functions on tensors."""

from __future__ import annotations

import math
from typing import Any

import torch

from measure import sizes
from tolerances import FLOOR_EPS, PEAK_OVER_RMS
from task import IndexCall
from values import FLOATS

INDEX_EPS = 64.0



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
        size = float(sizes(source.double().nan_to_num(0.0, 0.0, 0.0))[0]) if source.numel() <= 1 << 24 else float(reference.abs().mean())
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
