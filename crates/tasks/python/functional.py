"""The functional forms that operator names in a graph stand for, and an interpreter of graphs.

`docs/reference/graph.md` lists the names and their arguments.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


class CaptureError(Exception):
    """The module cannot be captured, for a reason that its author can act on."""

    def __init__(self, stage: str, message: str, operator: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.reply = {"stage": stage, "message": message, "operator": operator, "line": line}


def functional(op: str):
    """The functional form that a name in a graph stands for."""
    if op in FORMS:
        return FORMS[op]
    for space in (F, torch, torch.special, torch.linalg):
        if hasattr(space, op):
            return getattr(space, op)
    raise CaptureError("translate", f"`{op}` has no functional form", op)


FORMS = {
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


def recurrent(op: str, states: int):
    def form(input, *tensors, has_biases, num_layers, bidirectional, batch_first):
        hx = list(tensors[:states]) if states > 1 else tensors[0]
        return getattr(torch, op)(input, hx, list(tensors[states:]), has_biases, num_layers, 0.0, False, bidirectional, batch_first)

    return form


FORMS.update(lstm=recurrent("lstm", 2), gru=recurrent("gru", 1), rnn_tanh=recurrent("rnn_tanh", 1), rnn_relu=recurrent("rnn_relu", 1))


def call_of(op: str, names: list[str]):
    """Computes an operator again from its tensors and arguments."""

    def call(tensors: list, arguments: dict):
        form = functional(op)
        if op not in FORMS and isinstance(arguments.get("dtype"), str):
            arguments = {**arguments, "dtype": getattr(torch, arguments["dtype"])}
        if op in VARIADIC:
            return form(*tensors, **arguments)
        given = dict(zip(names, tensors, strict=True))
        return form(**{name: tensor for name, tensor in given.items() if tensor is not None}, **arguments)

    return call


def interpret(graph: dict, calls: list, state: dict, inputs: list) -> list:
    values: list = []
    for value, call in zip(graph["values"], calls, strict=True):
        source = value["from"]
        match source["kind"]:
            case "input" | "scalar":
                made = inputs[source["position"]]
                made = made if isinstance(made, torch.Tensor) else torch.tensor(made, dtype=getattr(torch, value["dtype"]))
            case "state":
                made = state[source["name"]]
            case "constant":
                made = call
            case _:
                operands = [None if place is None else values[place] for place in source["inputs"]]
                made = call(operands, {name: revived(one) for name, one in source["arguments"].items()})
                made = made[source["result"]] if isinstance(made, (tuple, list)) else made
        if list(made.shape) != value["shape"] or (source["kind"] != "scalar" and str(made.dtype) != f"torch.{value['dtype']}"):
            raise CaptureError("compare", f"value {len(values)} ({source.get('op', source['kind'])}) is {list(made.shape)} {made.dtype}, the graph says {value['shape']} {value['dtype']}")
        values.append(made)
    return [values[place] for place in graph["returns"]]


def revived(value):
    if isinstance(value, dict) and "non_finite" in value:
        return float(value["non_finite"])
    return [revived(one) for one in value] if isinstance(value, list) else value


