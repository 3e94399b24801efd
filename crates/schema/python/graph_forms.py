"""What the operator names in a graph stand for: PyTorch's functional forms. `docs/reference/graph.md` lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def functional(op: str) -> Callable[..., Any]:
    """The functional form that a name in a graph stands for."""
    if op in FORMS:
        return FORMS[op]
    for space in (F, torch, torch.special, torch.linalg, torch.Tensor):
        if hasattr(space, op):
            return getattr(space, op)
    raise LookupError(f"`{op}` has no functional form")


FORMS: dict[str, Callable[..., Any]] = {
    "logical_not": torch.logical_not,
    "reshape": torch.reshape,
    "expand": lambda input, size: input.expand(size),
    "vector_norm": lambda input, ord, dim, keepdim, dtype=None: torch.linalg.vector_norm(
        input, ord, dim, keepdim, dtype=getattr(torch, dtype) if dtype else None),
    "to": lambda input, dtype: input.to(getattr(torch, dtype)),
    "full": lambda size, fill_value, dtype: torch.full(size, fill_value, dtype=getattr(torch, dtype)),
    "arange": lambda start, step, length, dtype: start + step * torch.arange(length, dtype=getattr(torch, dtype)),
    "cat": lambda *tensors, dim: torch.cat(tensors, dim),
    "stack": lambda *tensors, dim: torch.stack(tensors, dim),
    "einsum": lambda *tensors, equation: torch.einsum(equation, *tensors),
    "slice": lambda input, dim, start, length, step: input.narrow(dim, start, (length - 1) * step + 1).index_select(
        dim, torch.arange(0, (length - 1) * step + 1, step, device=input.device)),
    "unfold": lambda input, dimension, size, step: input.unfold(dimension, size, step),
    "repeat": lambda input, repeats: input.repeat(repeats),
    "amax": lambda input, dim, keepdim: torch.amax(input, dim, keepdim),
    "amin": lambda input, dim, keepdim: torch.amin(input, dim, keepdim),
    "floor_divide": lambda input, other: torch.floor_divide(input, other),
    "embedding": lambda input, weight, **rest: F.embedding(input, weight),
    "max": lambda input, dim, keepdim: torch.max(input, dim, keepdim),
    "min": lambda input, dim, keepdim: torch.min(input, dim, keepdim),
    "index": lambda input, *indices, dims: input[tuple(
        indices[dims.index(dim)] if dim in dims else slice(None) for dim in range(max(dims) + 1))],
}
VARIADIC = {"cat", "stack", "einsum", "index", "lstm", "gru", "rnn_tanh", "rnn_relu"}
# Tensors by name, where others stand between them or a number may stand in their place. Elsewhere they come first.
TENSORS = {
    "layer_norm": ("input", "weight", "bias"),
    "rms_norm": ("input", "weight"),
    "group_norm": ("input", "weight", "bias"),
    "gather": ("input", "index"),
    "index_select": ("input", "index"),
    "where": ("condition", "input", "other"),
    "pow": ("input", "exponent"),
    "float_power": ("input", "exponent"),
    "binary_cross_entropy_with_logits": ("input", "target", "weight", "pos_weight"),
    "multi_margin_loss": ("input", "target", "weight"),
    "clamp": ("input", "min", "max"),
}


def recurrent(op: str, states: int) -> Callable[..., Any]:
    def form(input: Any, *tensors: Any, has_biases: bool, num_layers: int, bidirectional: bool, batch_first: bool) -> Any:
        hx = list(tensors[:states]) if states > 1 else tensors[0]
        return getattr(torch, op)(input, hx, list(tensors[states:]), has_biases, num_layers, 0.0, False, bidirectional, batch_first)

    return form


FORMS.update(lstm=recurrent("lstm", 2), gru=recurrent("gru", 1), rnn_tanh=recurrent("rnn_tanh", 1), rnn_relu=recurrent("rnn_relu", 1))


def revived(value: Any) -> Any:
    """An argument as it was before it became JSON."""
    if isinstance(value, dict) and "non_finite" in value:
        return float(value["non_finite"])
    return [revived(one) for one in value] if isinstance(value, list) else value


def apply(op: str, tensors: list[Any], arguments: dict[str, Any]) -> Any:
    """An operator as the graph alone describes it."""
    form, given = functional(op), {name: revived(value) for name, value in arguments.items()}
    if op not in FORMS and isinstance(given.get("dtype"), str):
        given["dtype"] = getattr(torch, given["dtype"])
    if op not in TENSORS or op in VARIADIC:
        return form(*tensors, **given)
    names = [name for name in TENSORS[op] if name not in given]
    return form(**dict(zip(names, tensors)), **given)
