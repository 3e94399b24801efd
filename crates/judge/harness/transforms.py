"""What is done to a task's inputs besides drawing them: each transform keeps what they mean, and breaks what could be relied on.

`scaled`, `negated`: one global factor. `far`, `far_negated`: so large that the exponential of the largest input overflows, or that of its negative. `mixed`: some rows
nearly equal to others. `uneven`: half of the rows and all columns of other sizes, the ends most of all. `outliers`: a row or a few elements, where
nobody who looks at a part would see them. `faint`: some samples and rows are zeros, others nearly so, where an epsilon decides. `centered`: inputs of one sign lose their mean, so that a product is all
cancellation. `shaken`: inputs that are the same in every draw (zeros, tables) are not.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from structure import is_mask, restructured
from values import FLOATS, tensors, tree_map

# These ask whether an answer is computed at all, not how exactly: their limits are wide, and they choose no class.
STRUCTURAL = frozenset(("mixed", "uneven", "outliers", "faint", "shaken"))
TRANSFORMS = ("plain", "scaled", "negated", "far", "far_negated", "mixed", "uneven", "outliers", "faint", "centered", "shaken")
# While a candidate is timed, one name stands for all but these, and the seed says which.
BY_NAME = ("plain", "scaled", "negated", "far", "far_negated")
# Where only float64 tells what is right. Inputs with both signs are far on both sides at once.
FAR_SIDES = frozenset(("far", "far_negated"))
OTHER = "other"
FAR = (128.0, 512.0)
MIXED_SHARE = 0.25
NEARNESS = (0.125, 0.5)  # how much of itself a row keeps that is moved to another
ROW_EXPONENT, COLUMN_EXPONENT = 3.0, 1.0
END_EXPONENT, SMALL_END_EXPONENT = (3.0, 5.0), 16.0
OUTLIERS = 3
ROW_OUTLIER, ELEMENT_OUTLIER = (2.0, 4.0), (3.0, 5.0)
FAINT_SHARE = 0.125  # of samples, and of rows; half of them are zeros
FAINT_EXPONENT = (8.0, 16.0)
SMALL_SHARE = 0.125  # of outliers that are smaller than the rest instead


def chosen(transform: str, admissible: tuple[str, ...], seed: int) -> str:
    """The transform that a name stands for."""
    if transform != OTHER:
        return transform
    others = [name for name in admissible if name not in BY_NAME]
    return random.Random(f"other {seed}").choice(others) if others else "plain"


def factor(transform: str, seed: int) -> float:
    """The number all float inputs are multiplied with; when far what the largest of them comes to."""
    if transform not in TRANSFORMS:
        raise ValueError(f"unknown transform {transform}")
    chance = random.Random(f"transform {seed}")
    if transform in FAR_SIDES:
        return math.exp(chance.uniform(*map(math.log, FAR))) * (1.0 if transform == "far" else -1.0)
    if transform == "scaled":
        size = math.exp(chance.uniform(math.log(2), math.log(8)))
        return size if chance.random() < 0.5 else 1 / size
    return -1.0 if transform == "negated" else 1.0


def transformed(inputs: list[Any], transform: str, seed: int, fixed: tuple[bool, ...] = ()) -> list[Any]:
    """`fixed` says for each tensor whether it is the same in every draw."""
    by = factor(transform, seed)
    if transform not in BY_NAME:
        return _each(inputs, transform, seed, fixed)
    if transform in FAR_SIDES:
        largest = max((float(part.abs().max()) for part in tensors(inputs) if _is_float(part)), default=0)
        by = by / largest if 0 < largest < abs(by) else math.copysign(1.0, by)
    if by == 1.0:
        return inputs
    return tree_map(lambda tensor: tensor * by if _is_float(tensor) else tensor, inputs)


def fitting(inputs: list[Any], fixed: tuple[bool, ...], gemm: bool) -> list[str]:
    """Transforms that would change these inputs."""
    given = tensors(inputs)
    floats = [tensor for tensor in given if _is_float(tensor)]
    named = ["scaled", "negated", "far"] if floats else []
    if any(_one_sided(tensor) and not is_mask(tensor) for tensor in floats):
        named.append("far_negated")
    if any(_has_rows(tensor) for tensor in floats):
        named.append("mixed")
    if any(tensor.numel() > 1 for tensor in floats):
        named += ["uneven", "outliers"]
    if any(_has_rows(tensor) and not is_mask(tensor) for tensor in floats):
        named.append("faint")
    if gemm and any(_one_sided(tensor) and not is_mask(tensor) for tensor in floats):
        named.append("centered")
    if any(restructured(tensor, _generator(tensor, 0, 0)) is not None for tensor, same in zip(given, fixed) if same):
        named.append("shaken")
    return named


def _each(inputs: list[Any], transform: str, seed: int, fixed: tuple[bool, ...]) -> list[Any]:
    number, earlier = -1, []

    def change(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal number
        number += 1
        generator = _generator(tensor, seed, number)
        if transform == "shaken":
            made = restructured(tensor, generator) if number < len(fixed) and fixed[number] else None
            return tensor if made is None else made
        if not _is_float(tensor) or is_mask(tensor):
            return tensor
        if transform == "centered":
            return tensor - tensor.mean(dtype=torch.float32).to(tensor.dtype) if _one_sided(tensor) else tensor
        if transform == "uneven":
            return uneven(tensor, generator)
        if transform == "faint":
            return faint(tensor, generator)
        if transform == "outliers":
            return with_outliers(tensor, random.Random(f"outliers {seed} {number}"))
        earlier.append(tensor)
        return mixed(tensor, earlier[:-1], generator)

    return tree_map(change, inputs)


def mixed(tensor: torch.Tensor, earlier: list[torch.Tensor], generator: torch.Generator) -> torch.Tensor:
    """Some rows nearly equal to others, of this tensor or of an earlier one of its form. Each is a mean of two rows: whatever holds for
    both of them (a range, a sum of one) holds for it."""
    if not _has_rows(tensor):
        return tensor
    rows, device = tensor.shape[-2], tensor.device
    count = max(1, int(MIXED_SHARE * rows))
    order = torch.randperm(rows, generator=generator, device=device)
    moved, near = order[:count], order[count:][torch.randint(rows - count, (count,), generator=generator, device=device)]
    source = tensor[..., near, :]
    other = next((before for before in earlier if before.shape == tensor.shape and before.dtype == tensor.dtype), None)
    if other is not None:
        source[..., count // 2 :, :] = other[..., near[count // 2 :], :]
    keep = _powers((count, 1), *map(math.log2, NEARNESS), generator, tensor)
    made = tensor.clone()
    made[..., moved, :] = (source + keep * tensor[..., moved, :]) / (1 + keep)
    return made


def uneven(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Half of all rows and every column are scaled, each by a factor of its own; last of all the ends."""
    if tensor.numel() < 2:
        return tensor
    columns = _powers(tensor.shape[-1:], -COLUMN_EXPONENT, COLUMN_EXPONENT, generator, tensor)
    if tensor.dim() < 2:
        return _with_ends(tensor * columns, generator)
    rows = (*tensor.shape[:-1], 1)
    touched = torch.rand(rows, generator=generator, device=tensor.device) < 0.5
    by = _powers(rows, -ROW_EXPONENT, ROW_EXPONENT, generator, tensor)
    return _with_ends(tensor * torch.where(touched, by, 1) * columns, generator)


def _with_ends(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The last elements along each dimension are often the largest or the smallest: whoever stops before them misses what counts."""
    made = tensor.clone()
    for dim, size in enumerate(tensor.shape):
        if size > 1:
            end = tensor.select(dim, -1)
            chance = torch.rand(end.shape, generator=generator, device=tensor.device)
            up = _powers(end.shape, *END_EXPONENT, generator, tensor)
            made.select(dim, -1).copy_(end * torch.where(chance < 0.5, up, torch.where(chance < 0.75, 2.0**-SMALL_END_EXPONENT, 1)))
    return made


def faint(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Some samples and some rows of the others are zeros, as many are very small."""
    if not _has_rows(tensor):
        return tensor
    samples, rows = (tensor.shape[0], *(1,) * (tensor.dim() - 1)), (*tensor.shape[:-1], 1)
    made = tensor
    for shape in (samples, rows) if samples != rows else (rows,):
        # A place in a random order: so that where there are few, some are of each kind.
        count = math.prod(shape)
        place = torch.randperm(count, generator=generator, device=tensor.device).reshape(shape)
        each = max(1, round(FAINT_SHARE / 2 * count)) if count > 2 else 0
        small = _powers(shape, -FAINT_EXPONENT[1], -FAINT_EXPONENT[0], generator, tensor)
        made = made * torch.where(place < each, 0, torch.where(place < 2 * each, small, 1))
    # A zero that was negative is none that anybody would pad with.
    return torch.where(made == 0, torch.zeros_like(made), made)


def with_outliers(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """One row, or up to three elements, are far larger than the rest, or far smaller."""
    if tensor.numel() < 2:
        return tensor
    made = tensor.clone(memory_format=torch.contiguous_format)
    typical = torch.linalg.vector_norm(tensor.to(torch.promote_types(tensor.dtype, torch.float32))) / tensor.numel() ** 0.5
    by_row = _has_rows(tensor) and chance.random() < 0.5
    lines = made.view(-1, tensor.shape[-1]) if by_row else made.view(-1)
    for _ in range(1 if by_row else chance.randint(1, OUTLIERS)):
        exponent = chance.uniform(*(ROW_OUTLIER if by_row else ELEMENT_OUTLIER))
        line = lines[chance.randrange(len(lines))]
        if chance.random() < SMALL_SHARE:
            line *= 2.0**-exponent
        else:  # of the typical size at least, on its side of zero
            line.copy_(2.0**exponent * (line + line.sign() * typical.to(line.dtype)))
    return made


def _powers(shape: Any, low: float, high: float, generator: torch.Generator, like: torch.Tensor) -> torch.Tensor:
    exponents = torch.rand(shape, generator=generator, device=like.device) * (high - low) + low
    return torch.exp2(exponents).to(like.dtype)


def _generator(tensor: torch.Tensor, seed: int, number: int) -> torch.Generator:
    return torch.Generator(tensor.device).manual_seed((seed + 0x9E3779B97F4A7C15 * (number + 1)) % (1 << 63))


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.dtype in FLOATS.values() and tensor.numel() > 0


def _has_rows(tensor: torch.Tensor) -> bool:
    return tensor.dim() > 1 and tensor.shape[-2] > 1


def _one_sided(tensor: torch.Tensor) -> bool:
    low, high = float(tensor.min()), float(tensor.max())
    return low != high and (low >= 0 or high <= 0)
