"""Fresh inputs and weights: the distributions a candidate is judged on.

Everything is a function of a 64-bit seed, so that a verdict can be replayed. A transform keeps what a task's inputs mean
(one global factor, one global sign); integers are only drawn again. `far` makes the factor so large that the exponential of
the largest input overflows: where the reference stands that, so must a candidate.
"""

from __future__ import annotations

import math
import random
from typing import Any

import torch

from regions import align
from task import Reference, TaskError, blame, build, math_mode
from values import FLOATS, NAMES, decode, leaves, tensors, tree_map

TRANSFORMS = ("plain", "scaled", "negated", "scaled_negated", "far")
FAR = (128.0, 512.0)
AFFINE_NOISE = 0.1
WEIGHT_NOISE = 0.05


def factor(transform: str, seed: int) -> float:
    """The number all float inputs are multiplied with; for `far` what the largest of them comes to."""
    if transform not in TRANSFORMS:
        raise ValueError(f"unknown transform {transform}")
    chance = random.Random(f"transform {seed}")
    size = 1.0
    if transform == "far":
        return math.exp(chance.uniform(*map(math.log, FAR)))
    if transform.startswith("scaled"):
        size = math.exp(chance.uniform(math.log(2), math.log(8)))
        size = size if chance.random() < 0.5 else 1 / size
    return -size if transform.endswith("negated") else size


def transformed(inputs: list[Any], transform: str, seed: int) -> list[Any]:
    by = factor(transform, seed)
    if transform == "far":
        largest = max((float(part.abs().max()) for part in tensors(inputs) if part.dtype in FLOATS.values() and part.numel()), default=0)
        by = by / largest if 0 < largest < by else 1.0
    if by == 1.0:
        return inputs
    return tree_map(lambda tensor: tensor * by if tensor.dtype in FLOATS.values() else tensor, inputs)


def has_float(inputs: list[Any]) -> bool:
    return any(tensor.dtype in FLOATS.values() for tensor in tensors(inputs))


# ---- weights ---------------------------------------------------------------------------------------------------------


def perturb(model: torch.nn.Module, seed: int) -> None:
    """Moves every parameter and running statistic off its initial value, in place; tied ones once.

    Fresh modules have affine parameters of one and zero: code that leaves them out would never be caught. Other buffers
    (masks, tables) are part of a task's meaning and stay.
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    done: set[tuple[int, torch.Size]] = set()
    with torch.no_grad():
        for number, (name, tensor) in enumerate(model.state_dict().items()):
            key = (tensor.data_ptr(), tensor.shape)
            if tensor.dtype not in FLOATS.values() or tensor.numel() == 0 or key in done:
                continue
            done.add(key)
            generator = torch.Generator(tensor.device).manual_seed((seed + 0x9E3779B97F4A7C15 * (number + 1)) % (1 << 63))
            _perturb_one(name, tensor, name in parameters, generator)


def _perturb_one(name: str, tensor: torch.Tensor, parameter: bool, generator: torch.Generator) -> None:
    def noise() -> torch.Tensor:
        drawn = torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32)
        return drawn.to(tensor.dtype)

    last = name.rsplit(".", 1)[-1]
    if last == "running_var":
        spread = torch.rand(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32)
        tensor.mul_((0.5 + spread).to(tensor.dtype))
    elif last == "running_mean":
        scale = max(float(tensor.float().std(correction=0)), 1.0)
        tensor.add_(noise().mul_(AFFINE_NOISE * scale))
    elif not parameter:
        return
    elif bool((tensor == tensor.flatten()[0]).all()):
        tensor.add_(noise().mul_(AFFINE_NOISE))
    else:
        tensor.mul_(noise().mul_(WEIGHT_NOISE).add_(1))


def fresh_model(reference: Reference, seed: int, perturbed: bool = True) -> torch.nn.Module:
    """A module constructed under `seed` and, unless told otherwise, perturbed."""
    model = build(reference.module, reference.init, reference.target, seed % (1 << 63))
    if perturbed:
        perturb(model, seed)
    if reference.calibrated:
        calibrate(model, reference.inputs(0, seed), seed)
    return model


def keeps_statistics(model: torch.nn.Module) -> list[torch.nn.Module]:
    norms = torch.nn.modules.batchnorm._NormBase
    return [part for part in model.modules() if isinstance(part, norms) and part.running_mean is not None]


def calibrate(model: torch.nn.Module, arguments: list[Any], seed: int) -> None:
    """Running statistics as if the module had seen data, then moved a little.

    A deep network with untouched statistics lets its signal die out in `eval()`: the answer no longer depends on the input.
    """
    parts = keeps_statistics(model)
    momenta = [part.momentum for part in parts]
    with blame("model_raised", "Model.forward"), math_mode(tf32=False):
        for part in parts:
            part.train()
            part.momentum = 1.0
        model(*tree_map(torch.clone, arguments))
        for number, (part, momentum) in enumerate(zip(parts, momenta)):
            part.eval()
            part.momentum = momentum
            part.num_batches_tracked.zero_()
            generator = torch.Generator(part.running_mean.device).manual_seed((seed ^ (number + 1)) % (1 << 63))
            shape, device = part.running_mean.shape, part.running_mean.device
            noise = torch.randn(shape, generator=generator, device=device).to(part.running_mean.dtype)
            part.running_mean.add_(noise * part.running_var.sqrt(), alpha=AFFINE_NOISE)
            part.running_var.mul_(0.5 + torch.rand(shape, generator=generator, device=device).to(part.running_var.dtype))


# ---- memory ----------------------------------------------------------------------------------------------------------


def dense_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    """The tensor's own strides if they fill memory without gap or overlap, else contiguous ones."""
    expected = 1
    for step, size in sorted((step, size) for step, size in zip(tensor.stride(), tensor.shape) if size != 1):
        if step != expected:
            return contiguous_stride(tensor)
        expected *= size
    return tuple(tensor.stride())


class Layout:
    """Hands out aligned offsets, one tensor after the other."""

    def __init__(self) -> None:
        self.bytes = 0

    def place(self, tensor: torch.Tensor) -> int:
        offset = self.bytes
        self.bytes += align(tensor.numel() * tensor.element_size())
        return offset


def lay_out_state(model: torch.nn.Module) -> tuple[list[dict[str, Any]], int]:
    layout, entries = Layout(), []
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor) or tensor.dtype not in NAMES:
            raise TaskError("unsupported_input", f"the state dict's `{name}` is not a supported tensor")
        entries.append({
            "name": name,
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "offset": layout.place(tensor),
            "bytes": tensor.numel() * tensor.element_size(),
            "kind": "parameter" if name in parameters else "buffer",
            "persistent": True,
        })
    return entries, layout.bytes


def contiguous_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    return torch.empty(tensor.shape, device="meta").stride()


def outline(inputs: list[Any]) -> list[Any]:
    """What must be the same from draw to draw: everything but the tensors' contents."""
    return [
        (leaf.path, leaf.kind, (leaf.value.shape, leaf.value.dtype) if leaf.kind == "tensor" else repr(leaf.value))
        for leaf in leaves(inputs)
    ]


def tensor_specs(tree: list[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for value in tree:
        decode(value, found.append)
    return found
