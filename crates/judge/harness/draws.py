"""Fresh weights, and where everything that is drawn lies.

Everything is a function of a 64-bit seed, so that a verdict can be replayed.
"""

from __future__ import annotations

import enum
from typing import Any

import torch

from regions import align
from structure import normal, restructured, shaken
from task import Reference, TaskError, blame, build, math_mode
from values import FLOATS, NAMES, decode, leaves, tensors, tree_map

STATISTICS_NOISE = 0.1


class Moved(enum.Enum):
    """How much of a state dict is moved off its initial values: as much as the reference stands."""

    STATE = "state"
    PARAMETERS = "parameters"
    NOTHING = "nothing"


def has_float(inputs: list[Any]) -> bool:
    return any(tensor.dtype in FLOATS.values() for tensor in tensors(inputs))


# ---- weights ---------------------------------------------------------------------------------------------------------


def perturb(model: torch.nn.Module, seed: int, moved: Moved = Moved.STATE) -> None:
    """Moves every parameter, running statistic and buffer off its initial value, in place; tied ones once.

    Fresh modules have affine parameters of one and zero, layers that are the identity, states of zeros, tables that can be
    known by heart: code that relies on them would never be caught.
    """
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    done: set[tuple[int, torch.Size]] = set()
    with torch.no_grad():
        for number, (name, tensor) in enumerate(model.state_dict().items()):
            if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0 or (tensor.data_ptr(), tensor.shape) in done:
                continue
            done.add((tensor.data_ptr(), tensor.shape))
            generator = torch.Generator(tensor.device).manual_seed((seed + 0x9E3779B97F4A7C15 * (number + 1)) % (1 << 63))
            made = _moved(name, tensor, name in parameters, moved, generator)
            if made is not None:
                tensor.copy_(made)


def _moved(name: str, tensor: torch.Tensor, parameter: bool, moved: Moved, generator: torch.Generator) -> torch.Tensor | None:
    is_float, last = tensor.dtype in FLOATS.values(), name.rsplit(".", 1)[-1]
    if is_float and last == "running_var":
        spread = torch.rand(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32)
        return tensor * (0.5 + spread).to(tensor.dtype)
    if is_float and last == "running_mean":
        size = max(float(tensor.float().std(correction=0)), 1.0)
        return tensor + normal(tensor, generator) * (STATISTICS_NOISE * size)
    if parameter:
        return shaken(tensor, generator) if is_float else None
    return restructured(tensor, generator) if moved is Moved.STATE else None


def fresh_model(reference: Reference, seed: int, moved: Moved) -> torch.nn.Module:
    """A module constructed under `seed` and moved off its initial values."""
    model = build(reference.module, reference.init, reference.target, seed % (1 << 63))
    if moved is not Moved.NOTHING:
        perturb(model, seed, moved)
    if reference.calibrated:
        calibrate(model, reference.inputs(0, seed), seed)
    return model


def has_movable_buffers(model: torch.nn.Module) -> bool:
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    known = ("running_mean", "running_var", "num_batches_tracked")
    named = (name for name in model.state_dict() if name not in parameters)
    return any(name.rsplit(".", 1)[-1] not in known for name in named)


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
            part.running_mean.add_(noise * part.running_var.sqrt(), alpha=STATISTICS_NOISE)
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
