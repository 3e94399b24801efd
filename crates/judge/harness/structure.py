"""Tensors of the same kind without their structure: no zeros, no constants, no table that could be known by heart.

What is zero, constant or a table when a module is built need not be so in its next checkpoint. A tensor keeps its side of
zero, its order if it is sorted, and masks stay masks: what they leave out is part of what a task means.
"""

from __future__ import annotations

import torch

from values import FLOATS

RELATIVE_NOISE = 0.05
CONSTANT_NOISE = 0.1
MASK_SHARE = 1 / 8  # of two values the rarer one takes at least this share in a mask; in an identity less
FLIPPED_SHARE = 1 / 8
SAMPLE = 256


def normal(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Drawn in float32, so that a seed means the same in every dtype."""
    drawn = torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32)
    return drawn.to(tensor.dtype)


def is_constant(tensor: torch.Tensor) -> bool:
    return bool((tensor == tensor.flatten()[0]).all())


def shaken(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A float tensor with noise on every element: relative where it is large, of the typical size where it is small or zero."""
    if not bool(tensor.sum(dtype=torch.float64).isfinite()):
        finite = tensor.isfinite()
        return torch.where(finite, shaken(torch.where(finite, tensor, 0), generator), tensor)
    noise = normal(tensor, generator)
    # The typical size is capped: a mask of -1e9 and zeros must not have its zeros drowned.
    size = (torch.linalg.vector_norm(tensor.to(torch.promote_types(tensor.dtype, torch.float32))) / tensor.numel() ** 0.5).clamp(max=1.0)
    low, high, size = torch.stack([part.double() for part in (*tensor.aminmax(), size)]).tolist()
    if low == high:
        return tensor + noise.mul_(CONSTANT_NOISE * max(abs(low), 1.0))
    moved = tensor.abs().clamp_(min=size).mul_(RELATIVE_NOISE).mul_(noise).add_(tensor)
    return moved.abs_() if low >= 0 else moved.abs_().neg_() if high <= 0 else moved


def restructured(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor | None:
    """Another tensor that may stand where a fixed one stood, or None where its structure is its meaning."""
    if tensor.numel() < 2:  # a setting
        return None
    if tensor.dtype == torch.bool:
        return _flipped(tensor, generator) if is_constant(tensor) else None
    if tensor.dtype in FLOATS.values():
        if is_mask(tensor):
            return None
        made = shaken(tensor, generator)
        return made.sort().values if tensor.dim() == 1 and not is_constant(tensor) and _is_sorted(tensor) else made
    return _permuted(tensor, generator)


def _flipped(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return tensor ^ (torch.rand(tensor.shape, generator=generator, device=tensor.device) < FLIPPED_SHARE)


def _permuted(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor | None:
    """Integers stay within the range they have. Sorted ones are offsets, unless they count through."""
    low, high = int(tensor.min()), int(tensor.max())
    flat = tensor.flatten()
    if low == high:
        if high < 2:
            return None
        least = (high + 1) // 2
        return torch.randint(least, high + 1, tensor.shape, generator=generator, device=tensor.device, dtype=tensor.dtype)
    counts = high - low + 1 == flat.numel() and bool((flat.sort().values.diff() == 1).all())
    if not counts and _is_sorted(flat):
        return None
    order = torch.randperm(flat.numel(), generator=generator, device=tensor.device)
    return flat[order].reshape(tensor.shape)


def is_mask(tensor: torch.Tensor) -> bool:
    """Two values, of which either is common or one is infinite."""
    flat = tensor.flatten()
    if len(flat[:: max(1, flat.numel() // SAMPLE)].unique()) > 2:  # the usual case, quickly
        return False
    low, high = flat.aminmax()
    above = flat == high
    if low == high or not bool((above | (flat == low)).all()):
        return False
    share = float(above.double().mean())
    return not bool((low.isfinite() & high.isfinite())) or min(share, 1 - share) >= MASK_SHARE


def _is_sorted(flat: torch.Tensor) -> bool:
    return bool((flat.diff() >= 0).all())
